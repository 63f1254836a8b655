-- Give a lease back; its token is void from now on.
-- KEYS: lease, fence.  ARGV: token.  Returns 1, or 0 when it was not ours any more.
if redis.call('HGET', KEYS[2], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], 'token', '')
redis.call('DEL', KEYS[1])
return 1
