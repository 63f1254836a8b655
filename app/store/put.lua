-- Take one message: remember it, create its turn and append it to the user's inbox, or do nothing.
-- KEYS: dedupe key, inbox, turn hash, epoch, recent messages of the user (sorted set by time).
-- ARGV: turn id, dedupe expiry (s), most messages in a minute (0: any), then field, value, ...
-- Returns {1, turn id, now in ms}, {0, id of the turn that took it before, now in ms}, or
-- {2, '', now in ms} when the user has sent too many: nothing is taken then.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local before = redis.call('GET', KEYS[1])
if before then return {0, before, now_ms} end
local most = tonumber(ARGV[3])
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now_ms - 60000)
  if redis.call('ZCARD', KEYS[5]) >= most then return {2, '', now_ms} end
  redis.call('ZADD', KEYS[5], now_ms, ARGV[1])
  redis.call('PEXPIRE', KEYS[5], 60000)
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[3], 'id', ARGV[1], 'status', 'queued', 'attempts', 0, 'created_ms', now_ms,
  'epoch', redis.call('GET', KEYS[4]) or 0)
redis.call('RPUSH', KEYS[2], ARGV[1])
return {1, ARGV[1], now_ms}
