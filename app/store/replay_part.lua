-- Put a part that was refused or given up back among those to be sent, once, at its place.
-- KEYS: part hash, outbox, prefix of part hashes, image.
-- ARGV: part id, number of replays so far as the caller saw it.
-- Returns 1 when it waits now, else 0: it is sent, waits already, is gone, or was replayed since.
local part = redis.call('HMGET', KEYS[1], 'state', 'kind', 'replays', 'created_ms', 'seq')
if part[1] ~= 'refused' and part[1] ~= 'unknown' then return 0 end
if part[2] ~= 'answer' and part[2] ~= 'notice' then return 0 end
if tonumber(part[3] or 0) ~= tonumber(ARGV[2]) then return 0 end
local waiting = redis.call('LRANGE', KEYS[2], 0, -1)
for _, id in ipairs(waiting) do
  if id == ARGV[1] then return 0 end
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- Its age counts from now, its place in the row from when it was made.
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', 0, 'replayed_ms', now_ms)
redis.call('HDEL', KEYS[1], 'errcode', 'errmsg', 'msgid', 'first_sent_ms', 'duplicate_check')
redis.call('HINCRBY', KEYS[1], 'replays', 1)
redis.call('PERSIST', KEYS[1])
redis.call('PERSIST', KEYS[4])

-- Before the first younger part, but never before one that is being sent: its sender settles the
-- head of the list.
local created_ms, seq = tonumber(part[4]), tonumber(part[5])
for place, id in ipairs(waiting) do
  local other = redis.call('HMGET', KEYS[3] .. id, 'state', 'created_ms', 'seq')
  if other[1] and not (place == 1 and other[1] == 'unknown') then
    local others_ms, others_seq = tonumber(other[2]), tonumber(other[3])
    -- Two replies of one millisecond: their numbers say nothing of each other.
    local same_turn = string.match(id, '^(.*):') == string.match(ARGV[1], '^(.*):')
    if others_ms > created_ms
        or (others_ms == created_ms and (not same_turn or others_seq > seq)) then
      redis.call('LINSERT', KEYS[2], 'BEFORE', id, ARGV[1])
      return 1
    end
  end
end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 1
