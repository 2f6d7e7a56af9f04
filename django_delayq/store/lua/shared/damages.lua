-- Shared: each damage that a message can have, and what mends it. After states. s: the state of the message; stamp: names
-- the life that is meant ('': any); the last argument of a mend: what only the caller knows (store/repair.py).
local DAMAGED, MEND = {}, {}

local function placed(s) return s.lanes > 0 or s.leased end
local function holds(s, stamp) return s.record and (stamp == '' or string.sub(s.record, 1, 8) == stamp) end
local function has_attempts(s) return redis.call('HEXISTS', ATTEMPTS, s.id) == 1 end
local function remembers(s, stamp) return redis.call('HGET', META, 'done:' .. s.id) == stamp end
local function newer(record, stamp) return #record >= 8 and struct.unpack('>I8', record) > struct.unpack('>I8', stamp) end

function DAMAGED.no_record(s) return not s.record and placed(s) end
function MEND.no_record(s, archive) die(s, archive, 'body_missing') end

function DAMAGED.no_place(s, stamp) return holds(s, stamp) and not placed(s) end
function MEND.no_place(s, archive, due) -- not before any due time that is known
  local entry = redis.call('HGET', ATTEMPTS, s.id)
  local at = math.max(tonumber(due) or 0, entry and struct.unpack('>I6', entry, 5) or 0)
  if at == 0 then return die(s, archive, 'due_lost') end
  park({[lane_of(s.record)] = {at, s.id}})
end

function DAMAGED.two_lanes(s) return s.record and not s.leased and s.lanes > 1 end
function DAMAGED.wrong_lane(s) return s.record and not s.leased and s.lanes == 1 and not s.right end
function MEND.two_lanes(s) leave_lanes(s) park({[lane_of(s.record)] = {s.due, s.id}}) end
MEND.wrong_lane = MEND.two_lanes

function DAMAGED.lane_and_lease(s) return s.record and s.leased and s.lanes > 0 end
MEND.lane_and_lease = leave_lanes

function DAMAGED.stray_attempts(s) return not s.record and not placed(s) and has_attempts(s) end
function MEND.stray_attempts(s) redis.call('HDEL', ATTEMPTS, s.id) end

function DAMAGED.stray_follower(s) return s.follower and not s.leased end
function MEND.stray_follower(s) start_follower(s, s.record) end

DAMAGED.stale_end = remembers
function MEND.stale_end(s) redis.call('HDEL', META, 'done:' .. s.id) end

function DAMAGED.lost_end(s, stamp) -- with a newer life it was moved in SQL: no end is lost
  return remembers(s, stamp) and not newer(s.record or '', stamp) and not newer(string.sub(s.follower or '', 7), stamp)
end
function MEND.lost_end(s, _, record) finish('all', s.id, 'dead', record, '', '{"reason":"end_lost"}') end

function DAMAGED.surplus(s, stamp) return holds(s, stamp) and not s.leased end
function MEND.surplus(s) leave_lanes(s) redis.call('HDEL', MESSAGES, s.id) redis.call('HDEL', ATTEMPTS, s.id) end

function DAMAGED.no_attempts(s) return s.record and not has_attempts(s) end
function MEND.no_attempts(s, _, entry) redis.call('HSET', ATTEMPTS, s.id, entry) end
