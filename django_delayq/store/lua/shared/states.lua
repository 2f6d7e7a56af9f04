-- Shared: what the partition holds under some ids, and how a message is taken out of it. After finish, lanes, followers,
-- limits.

-- A state for each id, and the bytes read. record, leased (the deadline) and follower (its entry) are false or nil if there
-- are none. lanes: in how many it is; right: its due time in the lane of its record; due: this one, else the earliest.
local function states_of(ids)
  local states, bytes = {}, 0
  local records, leases = redis.call('HMGET', MESSAGES, unpack(ids)), redis.call('ZMSCORE', LEASED, unpack(ids))
  local followers = redis.call('EXISTS', FOLLOWERS) == 1 and redis.call('HMGET', FOLLOWERS, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local record = records[i]
    states[i] = {id = id, record = record, leased = leases[i], follower = followers[i], lanes = 0}
    bytes = bytes + #(record or '')
  end
  for _, lane in ipairs(LANES) do
    for i, score in ipairs(redis.call('EXISTS', lane) == 1 and redis.call('ZMSCORE', lane, unpack(ids)) or {}) do
      if score then
        local state, due = states[i], due_in(score)
        state.lanes = state.lanes + 1
        if lane == lane_of(state.record) then state.right = due end
        state.due = state.right or math.min(state.due or due, due)
      end
    end
  end
  return states, bytes
end

local function leave_lanes(state)
  for _, lane in ipairs(LANES) do redis.call('ZREM', lane, state.id) end
end

-- The follower takes the place of the message; with `again` of one that would have run once more.
local function start_follower(state, again)
  local moves = {}
  leave_lanes(state)
  start_followers({state.id}, moves, {[state.id] = again and true or nil})
  park(moves)
end

local function die(state, archive, reason)
  local entry = redis.call('HGET', ATTEMPTS, state.id)
  redis.call('ZREM', LEASED, state.id)
  redis.call('HDEL', MESSAGES, state.id)
  redis.call('HDEL', ATTEMPTS, state.id)
  finish(archive, state.id, 'dead', state.record, entry, '{"reason":"' .. reason .. '"}')
  redis.call('HINCRBY', META, 'dead', 1)
  local moves = {}
  make_room({state.id}, {true}, {state.record}, moves)
  park(moves)
  start_follower(state)
end
