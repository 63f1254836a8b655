-- Show the steps done so far of a running turn.
-- KEYS: fence, turn hash.  ARGV: token, steps (JSON).  Returns 1, or 0 when the lease is lost or the turn ended.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[2], 'status') ~= 'running' then return 0 end
redis.call('HSET', KEYS[2], 'steps', ARGV[2])
return 1
