-- Put before every script: moves into the lanes.
local function head_of(lane)
  return tonumber(redis.call('ZRANGE', lane, 0, 0, 'WITHSCORES')[2])
end

-- Something new is due here at `due`: counted (what a sweep reads) and published (a hint).
local function wake(due)
  redis.call('HINCRBY', META, 'wakeups', 1)
  local prefix, partition = string.match(META, '^(.-):{(.*)}')
  redis.call('PUBLISH', prefix .. ':wakeups', partition .. ':' .. due)
end

-- moves[lane] = {due, id, due, id, ...}. A head that comes sooner wakes the dispatchers.
local function park(moves)
  for lane, members in pairs(moves) do
    local before = head_of(lane)
    redis.call('ZADD', lane, unpack(members))
    local after = #members == 2 and members[1] or head_of(lane)
    if not before or after < before then wake(string.format('%.0f', after)) end
  end
end

local function move(moves, lane, due, id)
  local members = moves[lane] or {}
  moves[lane] = members
  put(members, due, id)
end

-- The run of these ids has ended: what was enqueued under their keys meanwhile takes their place; of those in `again`,
-- which would have run once more, as a replacement does. followed[id] is true for those; the caller parks `moves`.
local function follow(ids, moves, again)
  local followed, started = {}, 0
  if #ids == 0 or redis.call('EXISTS', FOLLOWERS) == 0 then return followed end
  local found = redis.call('HMGET', FOLLOWERS, unpack(ids))
  for i, id in ipairs(ids) do
    local follower = found[i]
    if follower then
      local record, old = string.sub(follower, 7), again[id] and redis.call('HGET', MESSAGES, id) or ''
      redis.call('HDEL', FOLLOWERS, id)
      if durable(old) and not durable(record) then supersede(id, old, redis.call('HGET', ATTEMPTS, id)) end
      redis.call('HDEL', ATTEMPTS, id)
      redis.call('HSET', MESSAGES, id, record)
      move(moves, lane_of(record), struct.unpack('>I6', follower), id)
      followed[id] = true
      if not again[id] then started = started + 1 end
    end
  end
  if started > 0 then redis.call('HINCRBY', META, 'enqueued', started) end
  return followed
end
