-- Shared: the limits of single keys. After wake and lanes.
-- What a limit holds back stays in its lane with HELD added to its due time. LIMITS: 'r' limit id is a message that runs
-- under a limit; 'w' limit due id one that waits for it, the first due first; 'full': the topic's own is used up.

-- The limit that the message is under (8 bytes), nil: none.
local function limit_of(record)
  local flags = string.byte(record or '', 15) or 0
  if math.floor(flags / 64) % 2 == 1 and #record >= 31 then return string.sub(record, 24, 31) end
end

-- Whether anything is noted to wait for the limit.
local function waits(limit)
  return redis.call('ZRANGEBYLEX', LIMITS, '[w' .. limit, '(w' .. limit .. '\255', 'LIMIT', 0, 1)[1]
end

-- The lane that holds the message back with this due time. Its record says too which it is: that may be a MiB.
local function lane_with(id, due)
  for _, lane in ipairs({NORMAL, HIGH, LOW}) do
    if tonumber(redis.call('ZSCORE', lane, id)) == HELD + due then return lane end
  end
end

-- What waits for the limit and is due first: its due time, id, lane and member. What is not held back any more (it was moved
-- or cancelled) is forgotten, 100 at most: then it returns nothing.
local function first_waiting(limit)
  for _ = 1, 100 do
    local member = waits(limit)
    if not member then return end
    local due, id = struct.unpack('>I6', member, 10), string.sub(member, 16)
    local lane = lane_with(id, due)
    if lane then return due, id, lane, member end
    redis.call('ZREM', LIMITS, member)
  end
end

-- Lets up to `count` of them be claimed; the caller parks `moves`. Returns how many.
local function admit(limit, count, moves)
  for admitted = 1, count do
    local due, id, lane, member = first_waiting(limit)
    if not due then return admitted - 1 end
    redis.call('ZREM', LIMITS, member)
    move(moves, lane, due, id)
  end
  return count
end

-- The runs of these messages have ended (`mine`: false for those whose have not): what waits for their limits may go.
local function make_room(ids, mine, records, moves)
  if redis.call('EXISTS', LIMITS) == 0 then return end
  for i, id in ipairs(ids) do
    local limit = mine[i] and limit_of(records[i])
    if limit and redis.call('ZREM', LIMITS, 'r' .. limit .. id) == 1 then admit(limit, 1, moves) end
  end
  if redis.call('ZREM', LIMITS, 'full') == 1 then wake(0) end
end
