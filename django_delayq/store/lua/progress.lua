-- progress: leased -> leased, with how far its task has come.
-- Guarantee: only the holder of the lease reports, and the report ends by itself.
-- KEYS: the partition (shared/partition.lua). Shared: leases.
--   The eleventh is that of the report.
-- ARGV: id, token, progress (JSON), ms that it is kept.
-- Returns: index, word of the message if it was refused: SETTLED, GONE or LEASE_LOST.
local PROGRESS, progress, for_ms = KEYS[11], ARGV[3], ARGV[4]
local _, entries, refused = held(1, 4)
if entries[1] then redis.call('SET', PROGRESS, progress, 'PX', for_ms) end
return refused
