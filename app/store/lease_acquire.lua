-- Take the lease of a user if nobody holds it; every holder gets a token never given before.
-- KEYS: lease, fence.  ARGV: nonce of this call, ttl (ms), fence expiry (s).  Returns token or nil.
local held = redis.call('GET', KEYS[1])
if held then
  -- The same call again, after a broken connection: it already succeeded.
  if string.sub(held, -#ARGV[1]) == ARGV[1] then return held end
  return false
end
local token = redis.call('HINCRBY', KEYS[2], 'count', 1) .. '-' .. ARGV[1]
redis.call('HSET', KEYS[2], 'token', token)
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
return token
