-- Tell a waiting user once that the message was taken: a part before its answer.
-- KEYS: turn hash, outbox, part hash, send times.
-- ARGV: turn id, part id, text ('' to mark the turn only).
-- Returns 1 when a part was added, else 0.
local turn = redis.call('HMGET', KEYS[1], 'status', 'acked_ms', 'dry_run')
if turn[1] ~= 'queued' and turn[1] ~= 'running' then return 0 end
if turn[2] then return 0 end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'acked_ms', now_ms)
if ARGV[3] == '' or turn[3] == '1' then return 0 end
-- The last ten of the thirty a minute are kept for answers.
local sent_ms = redis.call('LINDEX', KEYS[4], 19)
if sent_ms and now_ms - tonumber(sent_ms) < 60000 then return 0 end
redis.call('HSET', KEYS[3], 'id', ARGV[2], 'turn_id', ARGV[1], 'kind', 'ack', 'seq', 0,
  'total', 0, 'body', ARGV[3], 'state', 'pending', 'attempts', 0, 'created_ms', now_ms)
redis.call('RPUSH', KEYS[2], ARGV[2])
return 1
