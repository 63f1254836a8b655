-- Take one message and answer it at once, beside the inbox: no worker is needed for it.
-- KEYS: dedupe key, inbox, outbox, prefix of turn hashes, prefix of part hashes, epoch.
-- ARGV: turn id, dedupe expiry (s), ended expiry (s), action (say | new | stop), text,
--       text when there is nothing to stop, number of parts of the text, the parts, then field,
--       value, ...
-- Returns {1, turn id, id of the turn that was stopped or ''}, or {0, id that took it before, ''}.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then
  return {0, redis.call('GET', KEYS[1]), ''}
end

-- One reply: the end of the running turn when there is one to stop, else of this message's own.
local text, ended_id, stopped = ARGV[5], ARGV[1], ''
local total = tonumber(ARGV[7])
local parts = {unpack(ARGV, 8, 7 + total)}
if ARGV[4] == 'stop' then
  local head = redis.call('LINDEX', KEYS[2], 0)
  if head and redis.call('HGET', KEYS[4] .. head, 'status') == 'running' then
    ended_id, stopped = head, head
    -- The worker that runs it finds it gone from the inbox: whatever it still writes is refused.
    redis.call('LPOP', KEYS[2])
    redis.call('HSET', KEYS[4] .. head, 'status', 'failed', 'error', 'cancelled', 'answer', text,
      'ended_by', ARGV[1], 'ended_ms', now_ms)
    redis.call('EXPIRE', KEYS[4] .. head, ARGV[3])
  else
    text, parts = ARGV[6], ARGV[6] ~= '' and {ARGV[6]} or {}
  end
elseif ARGV[4] == 'new' then
  -- Messages sent before this one keep the memory they were sent with; it expires by itself.
  redis.call('INCR', KEYS[6])
  redis.call('EXPIRE', KEYS[6], 30 * 86400)
end

local own = KEYS[4] .. ARGV[1]
for i = 8 + total, #ARGV, 2 do
  redis.call('HSET', own, ARGV[i], ARGV[i + 1])
end
redis.call('HSET', own, 'id', ARGV[1], 'status', 'done', 'answer', text, 'attempts', 0,
  'created_ms', now_ms, 'ended_ms', now_ms)
redis.call('EXPIRE', own, ARGV[3])

if redis.call('HGET', KEYS[4] .. ended_id, 'dry_run') ~= '1' then
  for seq, body in ipairs(parts) do
    local part_id = ended_id .. ':' .. seq
    redis.call('HSET', KEYS[5] .. part_id, 'id', part_id, 'turn_id', ended_id, 'kind', 'answer',
      'seq', seq, 'total', #parts, 'body', body, 'state', 'pending', 'attempts', 0,
      'created_ms', now_ms)
    redis.call('RPUSH', KEYS[3], part_id)
  end
end
return {1, ARGV[1], stopped}
