-- durable_status: changes nothing. What is known of durable messages.
-- Guarantee: a life that was stored and is MISSING is lost, or archived.
-- KEYS: the partition (shared/partition.lua). Shared: lives.
-- ARGV: id, stamp (8 bytes) for each (500 at most).
-- Returns: LIVE, DONE or MISSING for each.
local ids, words = {}, {}
for at = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[at] end
local records = redis.call('HMGET', MESSAGES, unpack(ids))
for i, id in ipairs(ids) do words[i] = known(id, records[i], ARGV[2 * i]) or 'MISSING' end
return words
