-- reschedule: delayed -> delayed with another due time. An expiry that counts from the due time moves with it. Of a
--   key that runs, what follows the run is moved.
-- Guarantee: exactly one of reschedule and claim wins; attempts and arguments stay.
-- KEYS: the partition (shared/partition.lua). Shared: times, expiry, wake, lanes.
-- ARGV: id, when ('+ms' or an instant in ms), before: '' or an instant in us; what was enqueued later is NOT_FOUND, because
--   a move may arrive late.
-- Returns: OK and the new due time in ms, or RUNNING or NOT_FOUND.
local id, when, before = ARGV[1], ARGV[2], tonumber(ARGV[3])
local record = redis.call('HGET', MESSAGES, id)
if not record then return {'NOT_FOUND'} end
local old, due = redis.call('ZSCORE', lane_of(record), id), due_of(when)
local follower = not old and redis.call('HGET', FOLLOWERS, id)
if follower then old, record = struct.unpack('>I6', follower), string.sub(follower, 7) end
if not old then return {'RUNNING'} end
if before and #record >= 8 and struct.unpack('>I8', record) > before then return {'NOT_FOUND'} end

local moved = expiring(record, due - due_in(old))
if follower then
  redis.call('HSET', FOLLOWERS, id, struct.pack('>I6', due) .. moved)
else
  if moved ~= record then redis.call('HSET', MESSAGES, id, moved) end
  park({[lane_of(record)] = {due, id}})
end
return {'OK', due}
