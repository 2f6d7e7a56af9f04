-- Shared: followers take the place of messages whose runs have ended. After finish and lanes.

-- The run of these ids has ended: what was enqueued under their keys meanwhile takes their place; of those in `again`,
-- which would have run once more, as a replacement does. followed[id] is true for those; the caller parks `moves`.
local function start_followers(ids, moves, again)
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
