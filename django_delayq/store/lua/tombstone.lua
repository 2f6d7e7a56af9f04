-- tombstone: nothing -> cancelled, for a durable message that Redis has lost or not yet received.
-- Guarantee: a message that is live or has ended is not touched; what is sent later under this stamp is DONE. With ''
--   for the detail there is no entry in the finished stream: its row in the outbox lives on under a newer stamp.
-- KEYS: the partition (shared/partition.lua). Shared: finish, lives.
-- ARGV: id, record (with its stamp), detail (JSON or ''), when it would have run (ms).
-- Returns: OK, LIVE or DONE.
local id, record, detail, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local word = known(id, redis.call('HGET', MESSAGES, id), string.sub(record, 1, 8))
if word then return word end
redis.call('HDEL', META, 'done:') -- no such field exists: the first write has to be one that a full Redis accepts
if detail == '' then
  redis.call('HSET', META, 'done:' .. id, string.sub(record, 1, 8))
  return 'OK'
end
finish('all', id, 'cancelled', record, '', detail, due)
redis.call('HINCRBY', META, 'enqueued', 1) -- it never was: ended and live make what was enqueued
redis.call('HINCRBY', META, 'cancelled', 1)
return 'OK'
