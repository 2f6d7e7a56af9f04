-- extend: leased -> leased with a later deadline.
-- Guarantee: only the holder of the lease extends it. Works on a full Redis: the first write is a ZREM.
-- KEYS: the partition (shared/partition.lua). Shared: leases.
-- ARGV: id, token, ttr in ms for each.
-- Returns: index, word of every message that was refused: SETTLED, GONE or LEASE_LOST.
local ids, entries, refused = held(1, 3)
local mine, leases = {}, {}
for i, id in ipairs(ids) do
  if entries[i] then
    mine[#mine + 1] = id
    leases[#leases + 1] = NOW + tonumber(ARGV[i * 3])
    leases[#leases + 1] = id
  end
end
if #mine > 0 then
  redis.call('ZREM', LEASED, unpack(mine))
  redis.call('ZADD', LEASED, unpack(leases))
end
return refused
