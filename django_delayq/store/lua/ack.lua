-- ack: leased -> acked; the follower of its key, if any, -> delayed.
-- Guarantee: only the holder of the lease finishes a message, once, and its stream entry is written in the same step.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, lanes, followers, leases, limits.
-- ARGV: archive (all, dead or none), then id, token, detail (JSON) for each.
-- Returns: index, word of every message that was refused: SETTLED, GONE or LEASE_LOST.
local archive = ARGV[1]
local ids, entries, refused = held(2, 3)
local records = redis.call('HMGET', MESSAGES, unpack(ids))
local done = {}
for i, id in ipairs(ids) do
  if entries[i] then done[#done + 1] = id end
end
if #done == 0 then return refused end

redis.call('ZREM', LEASED, unpack(done))
redis.call('HDEL', ATTEMPTS, unpack(done))
redis.call('HDEL', MESSAGES, unpack(done))
for i, id in ipairs(ids) do
  if entries[i] then finish(archive, id, 'acked', records[i], entries[i], ARGV[i * 3 + 1]) end
end
redis.call('HINCRBY', META, 'acked', #done)
local moves = {}
start_followers(done, moves, {})
make_room(ids, entries, records, moves)
park(moves)
return refused
