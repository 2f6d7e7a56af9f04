-- reschedule: delayed -> delayed with another due time. An expiry that counts from the due time moves with it.
-- Guarantee: exactly one of reschedule and claim wins; attempts and arguments stay.
-- KEYS: the partition (shared/partition.lua). Shared: times, wake, lanes.
-- ARGV: id, when ('+ms' or an instant in ms).
-- Returns: OK and the new due time in ms, or RUNNING or NOT_FOUND.
local id, when = ARGV[1], ARGV[2]
local record = redis.call('HGET', MESSAGES, id)
if not record then return {'NOT_FOUND'} end
local old = redis.call('ZSCORE', lane_of(record), id)
if not old then return {'RUNNING'} end

local due = due_of(when)
local expires_at = #record >= 23 and struct.unpack('>I6', record, 9) or 0
if expires_at > 0 and math.floor(string.byte(record, 15) / 8) % 2 == 1 then
  expires_at = math.max(expires_at + due - old, 1)
  redis.call('HSET', MESSAGES, id, string.sub(record, 1, 8) .. struct.pack('>I6', expires_at) .. string.sub(record, 15))
end
park({[lane_of(record)] = {due, id}})
return {'OK', due}
