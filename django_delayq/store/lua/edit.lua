-- edit: delayed -> delayed with another body (the arguments). Everything else of the message stays.
-- Guarantee: exactly one of edit and claim wins, and no edit is overwritten unseen: the record has to be the one
--   that was read. Twice is once.
--   What a limit holds back may be under another now: the next claim sees to it.
-- KEYS: the partition (shared/partition.lua). Shared: wake, lanes.
-- ARGV: id, the record as it was read, the record to be.
-- Returns: OK, RUNNING, NOT_FOUND, or CHANGED when another call was quicker.
local id, before, after = ARGV[1], ARGV[2], ARGV[3]
local record = redis.call('HGET', MESSAGES, id)
if not record then return 'NOT_FOUND' end
if record == after then return 'OK' end
local score = redis.call('ZSCORE', lane_of(record), id)
if not score then return 'RUNNING' end
if record ~= before then return 'CHANGED' end
redis.call('HSET', MESSAGES, id, after)
local due = due_in(score)
if due < tonumber(score) then park({[lane_of(after)] = {due, id}}) end
return 'OK'
