-- forecast: changes nothing. O(log n) for each instant that is asked for, however many messages wait.
-- Guarantee: all figures are of one instant.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: instants in ms from now (100 at most).
-- Returns: now in us, then for each instant how many waiting messages are due by then.
local counts = {NOW_US}
for i, offset in ipairs(ARGV) do
  local count, by = 0, NOW + offset
  for _, lane in ipairs(LANES) do count = count + redis.call('ZCOUNT', lane, '-inf', by) end
  counts[i + 1] = count
end
return counts
