-- Count a message of a user against the limit of a minute; a re-delivery is counted once.
-- KEYS: recent messages of the user (sorted set by time).
-- ARGV: id of the message, most in a minute.  Returns 1 when it is within the limit.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms - 60000)
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 1 end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1
