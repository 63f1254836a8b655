-- Record what became of a claimed part.
-- KEYS: fence, outbox, part hash, send times, sent-body mark, send-wait, unreachable mark, image.
-- ARGV: token, part id, state, msgid, errcode, errmsg, wait before the next try (ms),
--       ended expiry (s), 1 to mark the user as not to be reached, 1 to forget the media id.
-- Returns 1, or 0 when the lease was lost: the next holder sees "unknown" and acts on that.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[3], 'state', ARGV[3], 'msgid', ARGV[4], 'errcode', ARGV[5],
  'errmsg', ARGV[6])
if ARGV[10] == '1' then redis.call('HDEL', KEYS[3], 'media_id', 'media_ms') end
if ARGV[9] == '1' then
  redis.call('SET', KEYS[7], ARGV[5], 'EX', 86400)
elseif ARGV[3] == 'sent' then
  redis.call('DEL', KEYS[7])
end
if ARGV[3] == 'sent' or ARGV[3] == 'refused' then
  redis.call('LPOP', KEYS[2])
  redis.call('EXPIRE', KEYS[3], ARGV[8])
  redis.call('EXPIRE', KEYS[8], ARGV[8])
elseif tonumber(ARGV[7]) > 0 then
  redis.call('SET', KEYS[6], ARGV[2], 'PX', ARGV[7])
end
-- Surely not taken by WeCom: neither the budget nor the duplicate check knows of it.
if ARGV[3] == 'pending' or ARGV[3] == 'refused' then
  redis.call('LPOP', KEYS[4])
  if redis.call('GET', KEYS[5]) == ARGV[2] then redis.call('DEL', KEYS[5]) end
elseif redis.call('EXISTS', KEYS[4]) == 1 then
  -- It arrived no later than now: the budget counts from here.
  local time = redis.call('TIME')
  redis.call('LSET', KEYS[4], 0, time[1] * 1000 + math.floor(time[2] / 1000))
end
return 1
