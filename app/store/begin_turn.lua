-- Count an attempt at the first message of the inbox, before any work is done for it.
-- KEYS: fence, inbox, turn hash.  ARGV: token, turn id, most attempts.
-- Returns {verdict, attempts}; verdict: lost | moved | gone | parked | begun.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {'lost', 0} end
if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[2] then return {'moved', 0} end
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('LPOP', KEYS[2])
  return {'gone', 0}
end
local attempts = tonumber(redis.call('HGET', KEYS[3], 'attempts'))
if attempts >= tonumber(ARGV[3]) then return {'parked', attempts} end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[3], 'status', 'running', 'started_ms', now_ms, 'steps', '[]')
return {'begun', redis.call('HINCRBY', KEYS[3], 'attempts', 1)}
