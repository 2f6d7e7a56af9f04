-- Put before every script but that of a lone message (lone.lua): the keys of one partition and the clock.
-- KEYS: all ten of the partition, in the order of store/keys.py, so that every key a script may touch is declared; for a
--   claim under limits also those of their rates, for a bulk load its fence, for what can have a window that of windows.
local HIGH, NORMAL, LOW, LEASED, MESSAGES, ATTEMPTS, FINISHED, FOLLOWERS, META, LIMITS, BUCKETS, TIMERS = unpack(KEYS)
local FENCE, WINDOWS = BUCKETS, BUCKETS
local LANES = {HIGH, NORMAL, LOW}
local TIME = redis.call('TIME')
local NOW_US = TIME[1] * 1000000 + TIME[2]
local NOW = math.floor(NOW_US / 1000)

-- A whole number as Redis gets it. Redis writes a number of Lua with %.17g, which takes three times as long as this:
-- 0.3 us, a thirtieth of what a message of a batch costs Redis, at each of three places.
local function text_of(number) return string.format('%d', number) end

-- A message that a limit holds back stays in its lane, with this added to its due time (shared/limits.lua).
local HELD = 2 ^ 48

-- The due time behind a score of a lane.
local function due_in(score)
  score = tonumber(score)
  return score >= HELD and score < 2 * HELD and score - HELD or score
end

-- A record's lane is in its flags (byte 15); a damaged record still has one, so that it can be claimed and buried.
local function lane_of(record)
  return LANES[(string.byte(record or '', 15) or 1) % 4 + 1] or NORMAL
end

local function put(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end
