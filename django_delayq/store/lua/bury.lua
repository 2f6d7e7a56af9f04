-- bury: nothing -> cancelled, for a durable message that Redis has lost or not yet received.
-- Guarantee: a message that is live or has ended is not touched; what is sent later under this stamp is DONE.
-- KEYS: the partition (shared/1_partition.lua).
-- ARGV: id, record (with its stamp), detail (JSON).
-- Returns: OK, LIVE or DONE.
local id, record, detail = ARGV[1], ARGV[2], ARGV[3]
local word = known(id, redis.call('HGET', MESSAGES, id), string.sub(record, 1, 8))
if word then return word end
redis.call('HDEL', META, 'done:' .. id) -- first, a write that a full Redis accepts
finish('all', id, 'cancelled', record, '', detail)
redis.call('HINCRBY', META, 'cancelled', 1)
return 'OK'
