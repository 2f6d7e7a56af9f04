-- Shared: what waits for the limit of a key, and what may start. After read, limits and rates.
local ANY = {interval = 1} -- for what has no rule any more: 500 at each step

-- What does not run any more, because a repair or damage has ended it, leaves its place.
local function forget_ended(first, last)
  local members, ids = redis.call('ZRANGEBYLEX', LIMITS, first, last, 'LIMIT', 0, 1000), {}
  for i, member in ipairs(members) do ids[i] = string.sub(member, 10) end
  if #ids == 0 then return end
  for i, deadline in ipairs(redis.call('ZMSCORE', LEASED, unpack(ids))) do
    if not deadline then redis.call('ZREM', LIMITS, members[i]) end
  end
end

-- Looks at the limits whose time has come: so many that wait for them may be claimed. Those without a rule (the code has
-- none any more) may all go. The rule is in the record of the first: after many bytes the other limits have to wait.
local function look_around(rules, limit)
  local moves, left, bytes = {}, 500, 0
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', TIMERS, '-inf', NOW, 'LIMIT', 0, limit)) do
    if bytes >= MOST then break end
    local _, first = first_waiting(name)
    local record = first and redis.call('HGET', MESSAGES, first) or ''
    local rule = first and rules[string.sub(record, 20, 23)]
    bytes = bytes + #record
    if rule and rule.most then forget_ended(running(name)) end
    local room, full = left, false
    if rule then room, full = room_under(name, rule) end
    local going = first and math.max(0, math.min(room, left)) or 0
    local admitted = admit(name, going, moves)
    left = left - admitted
    if not waits(name) then
      redis.call('ZREM', TIMERS, name)
    elseif not first or admitted < going then -- there is more to forget
      redis.call('ZADD', TIMERS, NOW, name)
    else
      look_at(name, rule or ANY, full, going)
    end
  end
  park(moves)
end

-- Whether the message leaves its lane now: to run under its limit, which counts it, or because it is over, and the next one
-- goes instead. Else the limit holds it back, also when another has waited for longer: that one goes first.
local function leaves(record, rule, id, due, lane, late, moves)
  local limit, expires_at = limit_of(record), #record >= 23 and struct.unpack('>I6', record, 9) or 0
  if not limit then return true end
  if late or expires_at > 0 and expires_at <= NOW then
    admit(limit, 1, moves)
    return true
  end
  local room, full = room_under(limit, rule)
  local first_due = first_waiting(limit)
  local another = first_due and first_due < due
  if room > 0 and not another then
    spend(limit, rule.interval, 1)
    if rule.most then redis.call('ZADD', LIMITS, 0, 'r' .. limit .. id) end
    return true
  end
  if room > 0 then admit(limit, 1, moves) end
  redis.call('ZADD', lane, HELD + due, id)
  redis.call('ZADD', LIMITS, 0, 'w' .. limit .. struct.pack('>I6', due) .. id)
  look_at(limit, rule, full, 0, true)
end
