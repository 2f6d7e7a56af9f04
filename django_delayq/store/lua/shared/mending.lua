-- Shared: how each damage is mended. After finish, lanes and followers. Each returns whether the damage was there.
local MEND = {}
-- In how many lanes the id is, and its due time: that of the lane where its record belongs, else the earliest.
local function lanes_with(id, record)
  local count, due, right = 0, nil, nil
  for _, lane in ipairs(LANES) do
    local score = tonumber(redis.call('ZSCORE', lane, id) or nil)
    if score then count = count + 1 end
    if score and (not due or score < due) then due = score end
    if score and lane == lane_of(record) then right = score end
  end
  return count, right or due, right
end

local function leave_lanes(id)
  for _, lane in ipairs(LANES) do redis.call('ZREM', lane, id) end
end

-- The follower of an id takes its place; with a record it replaces what would have run once more.
local function start_follower(id, record)
  local moves = {}
  leave_lanes(id)
  start_followers({id}, moves, {[id] = record and true or nil})
  park(moves)
end

local function die(archive, id, record, reason)
  local entry = redis.call('HGET', ATTEMPTS, id)
  redis.call('ZREM', LEASED, id)
  redis.call('HDEL', MESSAGES, id)
  redis.call('HDEL', ATTEMPTS, id)
  finish(archive, id, 'dead', record, entry, '{"reason":"' .. reason .. '"}')
  redis.call('HINCRBY', META, 'dead', 1)
  start_follower(id)
  return true
end

-- In a lane or leased, but without a record.
function MEND.record(id, _, archive)
  local placed = lanes_with(id) > 0 or redis.call('ZSCORE', LEASED, id)
  if not placed or redis.call('HEXISTS', MESSAGES, id) == 1 then return false end
  return die(archive, id, false, 'body_missing')
end

-- A follower whose run does not go on.
function MEND.follower(id)
  if redis.call('HEXISTS', FOLLOWERS, id) == 0 or redis.call('ZSCORE', LEASED, id) then return false end
  start_follower(id, redis.call('HGET', MESSAGES, id))
  return true
end
