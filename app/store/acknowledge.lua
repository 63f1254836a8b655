-- Tell a waiting user that the message was taken, once, or how a long turn gets on: a part before
-- its answer that may be left out.
-- KEYS: turn hash, outbox, prefix of part hashes, send times, unreachable mark.
-- ARGV: turn id, kind (ack | progress), text ('' to mark the turn only).
-- Returns 1 when a part was added, else 0.
local turn = redis.call('HMGET', KEYS[1], 'status', 'acked_ms', 'dry_run', 'progress')
if turn[1] ~= 'running' and (turn[1] ~= 'queued' or ARGV[2] ~= 'ack') then return 0 end
if ARGV[2] == 'ack' and turn[2] then return 0 end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local part_id = ARGV[1] .. ':ack'
if ARGV[2] == 'ack' then
  redis.call('HSET', KEYS[1], 'acked_ms', now_ms)
else
  local before = tonumber(turn[4] or 0)
  redis.call('HSET', KEYS[1], 'progress', before + 1, 'progress_ms', now_ms)
  -- One that still waits to be sent takes the newer words.
  local waiting = KEYS[3] .. ARGV[1] .. ':progress' .. before
  if before > 0 and redis.call('HGET', waiting, 'state') == 'pending' then
    redis.call('HSET', waiting, 'body', ARGV[3])
    return 0
  end
  part_id = ARGV[1] .. ':progress' .. (before + 1)
end
if ARGV[3] == '' or turn[3] == '1' or redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
-- The last third of a minute's budget and the last tenth of an hour's are kept for answers.
for _, limit in ipairs({{19, 60000}, {899, 3600000}}) do
  local sent_ms = redis.call('LINDEX', KEYS[4], limit[1])
  if sent_ms and now_ms - tonumber(sent_ms) < limit[2] then return 0 end
end
redis.call('HSET', KEYS[3] .. part_id, 'id', part_id, 'turn_id', ARGV[1], 'kind', ARGV[2],
  'seq', 0, 'total', 0, 'body', ARGV[3], 'state', 'pending', 'attempts', 0, 'created_ms', now_ms)
redis.call('RPUSH', KEYS[2], part_id)
return 1
