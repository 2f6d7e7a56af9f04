-- reschedule: delayed -> delayed with another due time. An expiry that counts from the due time moves with it. Of a
--   key that runs, what follows the run is moved.
-- Guarantee: exactly one of reschedule and claim wins; attempts and arguments stay.
-- KEYS: the partition (shared/partition.lua). Shared: times, wake, lanes.
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

local expires_at = #record >= 23 and struct.unpack('>I6', record, 9) or 0
if expires_at > 0 and math.floor(string.byte(record, 15) / 8) % 2 == 1 then
  expires_at = math.max(expires_at + due - due_in(old), 1)
  record = string.sub(record, 1, 8) .. struct.pack('>I6', expires_at) .. string.sub(record, 15)
  if not follower then redis.call('HSET', MESSAGES, id, record) end
end
if follower then
  redis.call('HSET', FOLLOWERS, id, struct.pack('>I6', due) .. record)
else
  park({[lane_of(record)] = {due, id}})
end
return {'OK', due}
