-- Put before every script but that of a lone message (lone.lua): the keys of one partition and the clock.
-- KEYS: all nine of the partition, in the order of store/keys.py, so that every key a script may touch is declared; for a
--   bulk load also its fence.
local HIGH, NORMAL, LOW, LEASED, MESSAGES, ATTEMPTS, FINISHED, FOLLOWERS, META, FENCE = unpack(KEYS)
local LANES = {HIGH, NORMAL, LOW}
local TIME = redis.call('TIME')
local NOW_US = TIME[1] * 1000000 + TIME[2]
local NOW = math.floor(NOW_US / 1000)

-- A record's lane is in its flags (byte 15); a damaged record still has one, so that it can be claimed and buried.
local function lane_of(record)
  return LANES[(string.byte(record or '', 15) or 1) % 4 + 1] or NORMAL
end

local function put(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end
