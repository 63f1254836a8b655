-- Drop an index entry unless it was touched since it was read.
-- KEYS: index.  ARGV: member, score as read.  Returns 1 when dropped.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
