-- enqueue_one: nothing -> delayed, for one message whose id is probably new: enqueue.lua in as few steps as can be.
-- Guarantee: that of enqueue.lua. An id that is live is left as it is, also in a full Redis.
-- KEYS: the lane of its priority, messages, meta (shared/lone.lua). Shared: times, wake.
-- ARGV: id, when, expires, record, as for enqueue.lua; when: not '@stamp:due'.
-- Returns: now in us; nil when the id is live and nothing has changed: enqueue.lua has the word for it.
local id, when, expires, record = unpack(ARGV)
local due = due_of(when)
record = struct.pack('>I8I6', NOW_US, expires_of(expires, due)) .. record
if redis.call('HEXISTS', MESSAGES, id) == 1 then return nil end

redis.call('HSET', MESSAGES, id, record)
local head = head_of(LANE)
redis.call('ZADD', LANE, string.format('%d', due), id) -- as text: see shared/partition.lua
if not head or due < head then wake(string.format('%.0f', due)) end
redis.call('HINCRBY', META, 'enqueued', 1)
return NOW_US
