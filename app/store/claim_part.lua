-- Count an attempt to send the first part of an outbox, before the request leaves.
-- The state becomes "unknown" here, so that a sender killed in mid-flight leaves the truth behind.
-- KEYS: fence, outbox, part hash, send times, sent-body mark, turn hash, image.
-- ARGV: token, part id, duplicate-check window (ms), oldest age (ms), ended expiry (s), most
--       bytes of a text, life of a media id (ms).
-- Returns {verdict, number}; verdict: lost | moved | gone | wait (ms) | ended | dropped | claimed (0/1:
-- whether WeCom's duplicate check is to be asked for; then the text to send, and the media id of
-- an image that WeCom has already, or '').
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {'lost', 0} end
if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[2] then return {'moved', 0} end
local state = redis.call('HGET', KEYS[3], 'state')
if not state then
  redis.call('LPOP', KEYS[2])
  return {'gone', 0}
end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local window_ms = tonumber(ARGV[3])

-- What may have arrived is sent again only under the duplicate check, and while WeCom remembers.
if state == 'unknown' then
  local first_ms = tonumber(redis.call('HGET', KEYS[3], 'first_sent_ms'))
  local checked = redis.call('HGET', KEYS[3], 'duplicate_check') == '1'
  if not checked or now_ms - first_ms > window_ms then
    redis.call('LPOP', KEYS[2])
    redis.call('EXPIRE', KEYS[3], ARGV[5])
    redis.call('EXPIRE', KEYS[7], ARGV[5])
    return {'ended', 0}
  end
elseif now_ms - tonumber(redis.call('HGET', KEYS[3], 'replayed_ms')
    or redis.call('HGET', KEYS[3], 'created_ms')) > tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[3], 'state', 'refused', 'errmsg', 'too old to be of use')
  redis.call('LPOP', KEYS[2])
  redis.call('EXPIRE', KEYS[3], ARGV[5])
  redis.call('EXPIRE', KEYS[7], ARGV[5])
  return {'ended', 0}
end

-- A line that only bridges the waiting is left out when the answer is there already, or when it
-- would use up what is kept for answers.
local kind = redis.call('HGET', KEYS[3], 'kind')
if state == 'pending' and (kind == 'ack' or kind == 'progress') then
  local reason = nil
  local status = redis.call('HGET', KEYS[6], 'status')
  if status ~= 'queued' and status ~= 'running' then reason = 'the answer overtook it' end
  for _, limit in ipairs({{19, 60000}, {899, 3600000}}) do
    local sent_ms = redis.call('LINDEX', KEYS[4], limit[1])
    if sent_ms and now_ms - tonumber(sent_ms) < limit[2] then reason = 'kept for answers' end
  end
  if reason then
    redis.call('HSET', KEYS[3], 'state', 'refused', 'errmsg', reason)
    redis.call('LPOP', KEYS[2])
    redis.call('EXPIRE', KEYS[3], ARGV[5])
    return {'dropped', 0}
  end
end

-- WeCom drops what goes beyond 30 a minute or 1000 an hour to one member, with errcode 0. It counts
-- when a request arrives, which may be long after it left: the 5 s are the time-out of a request.
for _, limit in ipairs({{29, 65000}, {999, 3605000}}) do
  local sent_ms = redis.call('LINDEX', KEYS[4], limit[1])
  if sent_ms and now_ms - tonumber(sent_ms) < limit[2] then
    return {'wait', limit[2] - (now_ms - tonumber(sent_ms))}
  end
end

if state == 'pending' then
  -- The same text twice within the window is meant, and the check would swallow the second: an
  -- answer gets spaces nobody sees at its end, so that it too can be sent again after a time-out.
  local checked = 1 - redis.call('EXISTS', KEYS[5])
  if redis.call('HGET', KEYS[3], 'image') == '1' then
    checked = 1 -- its media id makes it unlike any other
  elseif checked == 0 and kind ~= 'ack' and kind ~= 'progress' then
    local count = redis.call('INCR', KEYS[5] .. ':repeats')
    redis.call('PEXPIRE', KEYS[5] .. ':repeats', window_ms)
    local body = redis.call('HGET', KEYS[3], 'body')
    if #body + count <= tonumber(ARGV[6]) then
      redis.call('HSET', KEYS[3], 'body', body .. string.rep(' ', count))
      checked = 1
    end
  elseif checked == 1 then
    redis.call('SET', KEYS[5], ARGV[2], 'PX', window_ms)
  end
  redis.call('HSET', KEYS[3], 'duplicate_check', checked, 'first_sent_ms', now_ms)
end
redis.call('HSET', KEYS[3], 'state', 'unknown', 'last_sent_ms', now_ms)
redis.call('HINCRBY', KEYS[3], 'attempts', 1)
redis.call('LPUSH', KEYS[4], now_ms)
redis.call('LTRIM', KEYS[4], 0, 999)
redis.call('EXPIRE', KEYS[4], 3600)
local claimed = redis.call('HMGET', KEYS[3], 'duplicate_check', 'body', 'media_id', 'media_ms')
local kept = claimed[3] and now_ms - tonumber(claimed[4]) < tonumber(ARGV[7])
return {'claimed', tonumber(claimed[1]), claimed[2], kept and claimed[3] or ''}
