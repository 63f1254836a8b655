-- Remember what WeCom calls the uploaded image of a claimed part, before it is sent: to be sent
-- again it must be the very same request.
-- KEYS: fence, outbox, part hash, send times.
-- ARGV: token, part id, media id.
-- Returns 1, or 0 when the lease was lost: then it must not be sent under this media id.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[3], 'media_id', ARGV[3], 'media_ms', now_ms)
-- The message leaves after the upload: the member's budget counts from here.
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('LSET', KEYS[4], 0, now_ms) end
return 1
