-- Shared: the limits of a whole topic, and when to come again. After due and rates.

-- The rules of tasks, by code: interval (ms between starts), most (that run at the same time), patience (ms; what is later
-- does not run). Each may be nil.
local function rules_from(first)
  local rules = {}
  for at = first, #ARGV, 4 do
    rules[ARGV[at]] = {interval = tonumber(ARGV[at + 1]), most = tonumber(ARGV[at + 2]), patience = tonumber(ARGV[at + 3])}
  end
  return rules
end

-- How many may be claimed; if these are less than the caller wants: when more may, and whether only an end makes room.
local function room_now(limit, interval, most)
  local room, more_at, full = limit, nil, false
  if interval then
    local count, from = tokens('rate', interval)
    if count < room then room, more_at = count, step(from + count * interval) end
  end
  local running = most and redis.call('ZCARD', LEASED) or 0
  if most and most - running < room then room, more_at, full = math.max(0, most - running), look(), true end
  return room, more_at, full
end

-- The first due time after this one.
local function first_after(due, limit)
  local first = HELD
  for _, lane in ipairs(LANES) do
    local found = redis.call('ZRANGEBYSCORE', lane, '(' .. due, '(' .. HELD, 'WITHSCORES', 'LIMIT', 0, limit)
    first = math.min(first, tonumber(found[2] or HELD))
  end
  return first
end

-- This instant ('': none), or the first at which a limit that something waits for has to be looked at.
local function sooner(at)
  local timer = tonumber(redis.call('ZRANGE', TIMERS, 0, 0, 'WITHSCORES')[2])
  return timer and (at == '' or timer < at) and timer or at
end

local function append(list, others)
  for _, other in ipairs(others) do list[#list + 1] = other end
end
