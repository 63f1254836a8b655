-- Say one thing more about a turn, once.
-- KEYS: outbox, part hash.  ARGV: part id, turn id, text.  Returns 1 when added.
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'turn_id', ARGV[2], 'kind', 'notice', 'seq', 0,
  'total', 0, 'body', ARGV[3], 'state', 'pending', 'attempts', 0, 'created_ms', now_ms)
redis.call('RPUSH', KEYS[1], ARGV[1])
return 1
