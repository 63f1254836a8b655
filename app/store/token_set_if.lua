-- Replace a value only if it is the expected one.
-- KEYS: key.  ARGV: expected ('' for absent), value ('' to delete), ttl (ms).  Returns 1 when done.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
