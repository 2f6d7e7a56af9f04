-- ack: leased -> acked; the follower of its key, if any, -> delayed.
-- Guarantee: only the holder of the lease finishes a message, once, and its stream entry is written in the same step.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, lanes, followers, leases, limits.
--   From the eleventh on those of results: of the first messages in ARGV.
-- ARGV: archive (all, dead or none), seconds that results are kept, then id, token, detail (JSON) for each.
-- Returns: index, word of every message that was refused: SETTLED, GONE or LEASE_LOST.
local archive, for_s, RESULTS = ARGV[1], ARGV[2], {unpack(KEYS, 11)}
local ids, entries, refused = held(3, 3)
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
  if entries[i] then finish(archive, id, 'acked', records[i], entries[i], ARGV[i * 3 + 2]) end
end
redis.call('HINCRBY', META, 'acked', #done)
for i = 1, #RESULTS do -- a copy of the entry: it ends by itself, and who waits for it wakes up
  if entries[i] then
    redis.call('XADD', RESULTS[i], 'MAXLEN', 1, '*', 'id', ids[i], 'state', 'acked', 'at', NOW, 'record', records[i] or '',
      'attempts', entries[i], 'detail', ARGV[i * 3 + 2])
    redis.call('EXPIRE', RESULTS[i], for_s)
  end
end
local moves = {}
start_followers(done, moves, {})
make_room(ids, entries, records, moves)
park(moves)
return refused
