-- End a turn: all of it or nothing.
-- KEYS: fence, inbox, turn hash, first session, outbox, prefix of part hashes, prefix of images,
--       last answered turns.
-- ARGV: token, turn id, status, answer, steps (JSON), error, session document ('' for none),
--       session expiry (s), most documents, ended expiry (s), markdown (0/1), image ('' for none)
--       and what it shows, then the parts' texts. The image is the last part.
-- Returns 1 when ended now, or by this very token before; 0 when the fence forbids it.
local turn_id = ARGV[2]
if redis.call('HGET', KEYS[3], 'ended_by') == ARGV[1] then return 1 end
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if redis.call('LINDEX', KEYS[2], 0) ~= turn_id then return 0 end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('HSET', KEYS[3], 'status', ARGV[3], 'answer', ARGV[4], 'steps', ARGV[5],
  'error', ARGV[6], 'ended_by', ARGV[1], 'ended_ms', now_ms)
redis.call('EXPIRE', KEYS[3], ARGV[10])

if ARGV[7] ~= '' then
  -- The session of the time when the message came: /new may have been sent since.
  local epoch = tonumber(redis.call('HGET', KEYS[3], 'epoch') or 0)
  local session = epoch > 0 and KEYS[4] .. ':' .. epoch or KEYS[4]
  redis.call('RPUSH', session, ARGV[7])
  redis.call('LTRIM', session, -tonumber(ARGV[9]), -1)
  redis.call('EXPIRE', session, ARGV[8])
end

local dry_run = redis.call('HGET', KEYS[3], 'dry_run') == '1'
if ARGV[3] == 'done' and ARGV[5] ~= '[]' then
  redis.call('HSET', KEYS[8], dry_run and 'dry' or 'real', turn_id)
  redis.call('EXPIRE', KEYS[8], ARGV[10])
end

local texts = #ARGV - 13
local total = ARGV[12] ~= '' and texts + 1 or texts
if dry_run then total = 0 end
for seq = 1, total do
  local part_id = turn_id .. ':' .. seq
  local is_image = seq > texts
  redis.call('HSET', KEYS[6] .. part_id, 'id', part_id, 'turn_id', turn_id, 'kind', 'answer',
    'seq', seq, 'total', total, 'body', is_image and ARGV[13] or ARGV[13 + seq],
    'markdown', is_image and 0 or ARGV[11], 'image', is_image and 1 or 0,
    'state', 'pending', 'attempts', 0, 'created_ms', now_ms)
  if is_image then redis.call('SET', KEYS[7] .. part_id, ARGV[12]) end
  redis.call('RPUSH', KEYS[5], part_id)
end
redis.call('LPOP', KEYS[2])
return 1
