-- Shared: rates, by Redis' clock, and how many more a rule lets start.
-- BUCKETS: name -> the instant whose message has started: the next may an interval later; nothing: now. So another rate than
-- before, and another task's, counts from the same start. The names: limits, 'rate' and 'release' of the topic.
-- TIMERS: limit that something waits for -> when to look at it.
local UNUSED, STEP, LOOK = 500, 50, 1000

-- How many may start now, and the instant from which they count. What UNUSED ms give is kept, in whole messages, so that
-- dispatchers that come late lose nothing.
local function tokens(name, interval)
  local used = tonumber(redis.call('ZSCORE', BUCKETS, name))
  local kept = math.max(100, math.floor(UNUSED / interval) * interval)
  local from = math.max(used and math.min(used, NOW) + interval or 0, NOW - kept)
  return math.max(0, math.floor((NOW - from) / interval + 0.001) + 1), from
end

local function spend(name, interval, count)
  if not interval or count == 0 then return end
  local _, from = tokens(name, interval)
  redis.call('ZADD', BUCKETS, from + (count - 1) * interval, name)
end

-- Buckets that are full again, also at the slowest rate here, are as good as none.
local function forget_full(limit, slowest)
  local full = redis.call('ZRANGEBYSCORE', BUCKETS, '-inf', NOW - UNUSED - slowest, 'LIMIT', 0, limit)
  if #full > 0 then redis.call('ZREM', BUCKETS, unpack(full)) end
end

-- Not each token wakes the dispatchers: they come at the next step, when several may be there.
local function step(instant) return math.ceil(instant / STEP) * STEP end

-- When to look again at what no clock ends: once in a while, all at the same instants.
local function look() return math.ceil((NOW + LOOK) / LOOK) * LOOK end

-- What runs under the limit, or is about to.
local function running(limit)
  return '[r' .. limit, '(r' .. limit .. string.rep('\255', 17)
end

-- How many more the rule lets start now, and whether it is only the end of a run that makes room.
local function room_under(limit, rule)
  local room = rule.interval and tokens(limit, rule.interval) or 1000
  if room < 1 or not rule.most then return room, false end
  local free = rule.most - redis.call('ZLEXCOUNT', LIMITS, running(limit))
  return math.min(room, free), free < 1
end

-- Something waits for the limit, after `ahead` others: look when its rate lets it start. Without a rate, and when only the
-- end of a run makes room, look once in a while. `sooner`: a new one does not put off the look that comes anyway.
local function look_at(limit, rule, full, ahead, sooner)
  local at = look()
  if rule.interval and not full then
    local _, from = tokens(limit, rule.interval)
    at = step(math.max(from + ahead * rule.interval, NOW + 1))
  end
  redis.call('ZADD', TIMERS, sooner and 'LT' or 'CH', at, limit)
end
