-- Prolong a lease. One that ran out comes back to life if nobody took it in between.
-- KEYS: lease, fence.  ARGV: token, ttl (ms).  Returns 1, or 0 when another holder came.
if redis.call('HGET', KEYS[2], 'token') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
