-- Shared: what waits for the limit of a key, and what may start. After limits and rates.
local ANY = {interval = 1} -- for what has no rule any more: 500 at each step

-- What does not run any more, because a repair or damage has ended it, leaves its place.
local function forget_ended(limit)
  local first, last = running(limit)
  local members, ids = redis.call('ZRANGEBYLEX', LIMITS, first, last, 'LIMIT', 0, 1000), {}
  for i, member in ipairs(members) do ids[i] = string.sub(member, 10) end
  if #ids == 0 then return end
  for i, deadline in ipairs(redis.call('ZMSCORE', LEASED, unpack(ids))) do
    if not deadline then redis.call('ZREM', LIMITS, members[i]) end
  end
end

-- Looks at the limits whose time has come: so many that wait for them may be claimed. Those without a rule (the code has
-- none any more) may all go.
local function look_around(rules, limit)
  local moves, left = {}, 500
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', TIMERS, '-inf', NOW, 'LIMIT', 0, limit)) do
    local first = waiting_for(name, 1)[1]
    local rule = first and rules[string.sub(redis.call('HGET', MESSAGES, string.sub(first, 16)) or '', 20, 23)]
    if rule and rule.most then forget_ended(name) end
    local room, full = left, false
    if rule then room, full = room_under(name, rule) end
    local going = math.max(0, math.min(room, left))
    left = left - going
    if going > 0 then admit(name, going, moves) end
    if waiting_for(name, 1)[1] then look_at(name, rule or ANY, full, going) else redis.call('ZREM', TIMERS, name) end
  end
  park(moves)
end

-- Whether the message leaves its lane now: to run under its limit, which counts it, or because it is over. Else the limit
-- holds it back, also when another has waited for longer: that one goes first.
local function leaves(record, rule, id, due, lane, late, moves)
  local limit, expires_at = limit_of(record), #record >= 23 and struct.unpack('>I6', record, 9) or 0
  if late or not limit or expires_at > 0 and expires_at <= NOW then return true end
  local room, full = room_under(limit, rule)
  local first = waiting_for(limit, 1)[1]
  local another = first and struct.unpack('>I6', first, 10) < due
  if room > 0 and not another then
    spend(limit, rule.interval, 1)
    if rule.most then redis.call('ZADD', LIMITS, 0, 'r' .. limit .. id) end
    return true
  end
  if room > 0 then admit(limit, 1, moves) end
  redis.call('ZADD', lane, HELD + due, id)
  redis.call('ZADD', LIMITS, 0, 'w' .. limit .. struct.pack('>I6', due) .. id)
  look_at(limit, rule, full, 0)
end
