-- Count an attempt to send the first part of an outbox, before the request leaves.
-- The state becomes "unknown" here, so that a sender killed in mid-flight leaves the truth behind.
-- KEYS: fence, outbox, part hash, send times, sent-body mark.
-- ARGV: token, part id, duplicate-check window (ms), oldest age (ms), ended expiry (s).
-- Returns {verdict, number}; verdict: lost | moved | gone | wait (ms) | ended | claimed (0/1:
-- whether WeCom's duplicate check is to be asked for).
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
    return {'ended', 0}
  end
elseif now_ms - tonumber(redis.call('HGET', KEYS[3], 'created_ms')) > tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[3], 'state', 'refused', 'errmsg', 'too old to be of use')
  redis.call('LPOP', KEYS[2])
  redis.call('EXPIRE', KEYS[3], ARGV[5])
  return {'ended', 0}
end

-- WeCom drops what goes beyond 30 a minute or 1000 an hour to one member, with errcode 0.
for _, limit in ipairs({{29, 60000}, {999, 3600000}}) do
  local sent_ms = redis.call('LINDEX', KEYS[4], limit[1])
  if sent_ms and now_ms - tonumber(sent_ms) < limit[2] then
    return {'wait', limit[2] - (now_ms - tonumber(sent_ms))}
  end
end

if state == 'pending' then
  -- The same text twice within the window is meant, and the check would swallow the second.
  local checked = 1 - redis.call('EXISTS', KEYS[5])
  redis.call('HSET', KEYS[3], 'duplicate_check', checked, 'first_sent_ms', now_ms)
  redis.call('SET', KEYS[5], ARGV[2], 'PX', window_ms)
end
redis.call('HSET', KEYS[3], 'state', 'unknown', 'last_sent_ms', now_ms)
redis.call('HINCRBY', KEYS[3], 'attempts', 1)
redis.call('LPUSH', KEYS[4], now_ms)
redis.call('LTRIM', KEYS[4], 0, 999)
redis.call('EXPIRE', KEYS[4], 3600)
return {'claimed', tonumber(redis.call('HGET', KEYS[3], 'duplicate_check'))}
