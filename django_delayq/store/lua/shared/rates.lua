-- Shared: rates, by Redis' clock, and how many more a rule lets start.
-- BUCKETS: name -> when the next message may start; nothing: now. What was left unused is kept for TOLERANCE ms: in t ms at
-- most (t + TOLERANCE) / interval + 1 messages start. The names: limits, 'rate' and 'release' of the topic.
local TOLERANCE, STEP, LOOK = 100, 50, 1000

-- How many may start now, and the instant from which they count. Another rate than before counts from now on.
local function tokens(name, interval)
  local from = tonumber(redis.call('ZSCORE', BUCKETS, name)) or 0
  from = math.min(math.max(from, NOW - TOLERANCE), NOW + interval)
  return math.max(0, math.floor((NOW - from) / interval) + 1), from
end

local function spend(name, interval, count)
  if not interval or count == 0 then return end
  local _, from = tokens(name, interval)
  redis.call('ZADD', BUCKETS, from + count * interval, name)
end

-- Buckets that are full again are as good as none.
local function forget_full(limit)
  local full = redis.call('ZRANGEBYSCORE', BUCKETS, '-inf', NOW - TOLERANCE, 'LIMIT', 0, limit)
  if #full > 0 then redis.call('ZREM', BUCKETS, unpack(full)) end
end

-- Not each token wakes the dispatchers: they come at the next step, when several may be there.
local function step(instant) return math.ceil(instant / STEP) * STEP end

-- When to look again at what no clock ends: once in a while, all at the same instants.
local function look() return math.ceil((NOW + LOOK) / LOOK) * LOOK end

-- How many run under the limit. Those that do not run any more have left their places when a repair, or damage, ended them.
local function running(limit, most)
  local first, last = '[r' .. limit, '(r' .. limit .. string.rep('\255', 17)
  local count = redis.call('ZLEXCOUNT', LIMITS, first, last)
  if count < most then return count end
  local members, ids = redis.call('ZRANGEBYLEX', LIMITS, first, last, 'LIMIT', 0, 1000), {}
  for i, member in ipairs(members) do ids[i] = string.sub(member, 10) end
  for i, deadline in ipairs(redis.call('ZMSCORE', LEASED, unpack(ids))) do
    if not deadline then count = count - redis.call('ZREM', LIMITS, members[i]) end
  end
  return count
end

-- How many more the rule lets start now.
local function room_under(limit, rule)
  local room = rule.interval and tokens(limit, rule.interval) or 1000
  if room > 0 and rule.most then room = math.min(room, rule.most - running(limit, rule.most)) end
  return room
end
