-- Take one message: remember it, create its turn and append it to the user's inbox, or do nothing.
-- KEYS: dedupe key, inbox, turn hash, epoch.  ARGV: turn id, dedupe expiry (s), then field, value, ...
-- Returns {1, turn id, now in ms}, or {0, id of the turn that took it before, now in ms}.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then
  return {0, redis.call('GET', KEYS[1]), now_ms}
end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[3], 'id', ARGV[1], 'status', 'queued', 'attempts', 0, 'created_ms', now_ms,
  'epoch', redis.call('GET', KEYS[4]) or 0)
redis.call('RPUSH', KEYS[2], ARGV[1])
return {1, ARGV[1], now_ms}
