-- claim_limited: as claim, in a topic with limits; due and too late -> expired. What may not start yet keeps its place.
-- Guarantee: that of claim.lua; and no more start than the limits allow, whichever worker claims. What the limit of its key
--   holds back is passed over until there is room. Bounded: 500 messages and 100 limits are looked at, fewer of many bytes.
-- KEYS: also of rates (shared/partition.lua). Shared: finish, wake, lanes, due, read, grant, limits, rates, pace, waiting.
-- ARGV: as claim.lua; then of the topic: interval (ms between starts), most (that run at the same time), interval of what is
--   more than 5 s late, too late (ms); then code, interval, most, too late of each task. '': no limit.
-- Returns: as claim.lua; next due: when the next message may start, as far as a clock decides that.
local limit, token, ageing, archive = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local interval, most, release, patience = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local why, till, wakeups = barred(ARGV[5])
if why ~= '' then return {NOW_US, till, wakeups, {}, {}, why} end
local claimed, over, tried, bytes, border, rules = {}, {}, 0, 0, NOW - 5000, rules_from(10)
redis.call('ZREM', TIMERS, '') -- nobody has this member: the first write has to be one that a full Redis accepts
if not next(rules) then forget_ended('[r', '(s') end
look_around(rules, 100)

-- Claims up to `room` of what is due from `first` to `last`. Returns how many.
local function claim(first, last, room)
  local count = 0
  while count < room and tried < 500 and bytes < MOST do
    local ids, scores, lanes = pick(math.min(room - count, 500 - tried), ageing, first, last)
    if #ids == 0 then break end
    local going, late, again, records, olds = {{}, {}, {}, {}, {}}, {}, {}, read(ids, MOST - bytes)
    for i, record in ipairs(records) do
      local due, rule = tonumber(scores[i]), record and rules[string.sub(record, 20, 23)]
      local is_late, n = NOW - due > (rule and rule.patience or patience or math.huge), #going[1] + 1
      if not rule or leaves(record, rule, ids[i], due, LANES[lanes[i]], is_late, again) then
        for part, list in ipairs({ids, records, olds, scores, lanes}) do going[part][n] = list[i] end
        late[n] = is_late
      end
      bytes = bytes + #(record or '')
    end
    tried = tried + #records
    park(again)
    local leased, closed = grant(going[1], going[2], going[3], going[4], going[5], token, late)
    append(claimed, leased)
    append(over, close(closed, going[1], going[2], going[3], archive, going[4], late))
    count = count + #leased / 3
  end
  return count
end

local count, late_at, room, more_at, full = 0, nil, room_now(limit, interval, most)
if release then
  local few, from = tokens('release', release)
  count = claim('-inf', border, math.min(room, few))
  if count == few then late_at = step(from + few * release) end
  spend('release', release, count)
end
count = count + claim(release and '(' .. border or '-inf', NOW, room - count)
spend('rate', interval, count)
local slowest = math.max(interval or 0, release or 0)
for _, rule in pairs(rules) do slowest = math.max(slowest, rule.interval or 0) end
forget_full(500, slowest)
local at = next_due()
if at ~= '' and at <= NOW and count < limit and tried < 500 then
  if more_at and count == room then at = more_at elseif late_at then at = math.min(late_at, first_after(border, 1)) end
  if full and count == room then redis.call('ZADD', LIMITS, 0, 'full') end
end
return {NOW_US, sooner(at), wakeups, claimed, over, ''}
