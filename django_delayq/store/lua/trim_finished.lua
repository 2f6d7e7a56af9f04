-- trim_finished: acked, dead, cancelled, expired -> a row of the archive, which is committed: the entry leaves the stream.
-- Guarantee: an entry that is not in SQL is never removed. What waited for room in the stream is claimed again.
-- KEYS: the partition (shared/partition.lua). Shared: wake.
-- ARGV: group, finished_limit, number of entries (500 at most), the entries, then message id and stamp of each durable
--   message among them.
-- Returns: how many entries are left.
local group, limit, durable = ARGV[1], tonumber(ARGV[2]), 4 + tonumber(ARGV[3])
local entries = { unpack(ARGV, 4, durable - 1) }
local before = redis.call('XLEN', FINISHED)
for at = durable, #ARGV, 2 do
  local done = 'done:' .. ARGV[at]
  if redis.call('HGET', META, done) == ARGV[at + 1] then redis.call('HDEL', META, done) end
end
redis.call('XDEL', FINISHED, unpack(entries))
redis.call('XACK', FINISHED, group, unpack(entries))
local left = redis.call('XLEN', FINISHED)
if before >= limit and left < limit then wake('0') end
return left
