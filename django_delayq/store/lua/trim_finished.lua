-- trim_finished: acked, dead, cancelled, expired -> a row of the archive, which is committed: the entry leaves the stream.
-- Guarantee: an entry that is not in SQL is never removed. What waited for room in the stream is claimed again.
-- KEYS: the partition (shared/partition.lua). Shared: wake.
-- ARGV: group, finished_limit, then entry, message id, stamp of a durable message or '' for each (500 at most).
-- Returns: how many entries are left.
local group, limit, entries = ARGV[1], tonumber(ARGV[2]), {}
local before = redis.call('XLEN', FINISHED)
for at = 3, #ARGV, 3 do
  entries[#entries + 1] = ARGV[at]
  local done = 'done:' .. ARGV[at + 1]
  if ARGV[at + 2] ~= '' and redis.call('HGET', META, done) == ARGV[at + 2] then redis.call('HDEL', META, done) end
end
redis.call('XDEL', FINISHED, unpack(entries))
redis.call('XACK', FINISHED, group, unpack(entries))
local left = redis.call('XLEN', FINISHED)
if before >= limit and left < limit then wake('0') end
return left
