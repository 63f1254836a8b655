-- Everything of one member at one moment, as RESTORE takes it. The inbox and the outbox come last.
-- KEYS: inbox, outbox, epoch, first session, prefix of turn hashes, prefix of part hashes, prefix
--       of images, then the keys that were found by looking.
-- Returns {name, end of life (ms since 1970, 0: never), value, name, ...}.
local names, seen = {}, {[KEYS[1]] = true, [KEYS[2]] = true}
local function add(name)
  if not seen[name] then
    seen[name] = true
    names[#names + 1] = name
  end
end
for i = 8, #KEYS do add(KEYS[i]) end
-- What came into being since the looking.
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do add(KEYS[5] .. id) end
for _, id in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  add(KEYS[6] .. id)
  add(KEYS[7] .. id)
end
local epoch = redis.call('GET', KEYS[3])
add(KEYS[3])
add(epoch and KEYS[4] .. ':' .. epoch or KEYS[4])
names[#names + 1] = KEYS[1]
names[#names + 1] = KEYS[2]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for _, name in ipairs(names) do
  local value = redis.call('DUMP', name)
  if value then
    local left_ms = redis.call('PTTL', name)
    found[#found + 1] = name
    found[#found + 1] = left_ms > 0 and now_ms + left_ms or 0
    found[#found + 1] = value
  end
end
return found
