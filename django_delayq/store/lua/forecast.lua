-- forecast: changes nothing. O(log n) for each instant that is asked for, however many messages wait.
-- Guarantee: all figures are of one instant.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: instants in ms (100 at most).
-- Returns: now in us, then for each instant how many waiting messages are due before it.
local counts, holding = {NOW_US}, {}
for i, lane in ipairs(LANES) do holding[i] = redis.call('ZCOUNT', lane, HELD, '+inf') > 0 end
for i, instant in ipairs(ARGV) do
  local count = 0
  local held = string.format('(%.0f', HELD + tonumber(instant))
  for n, lane in ipairs(LANES) do
    count = count + redis.call('ZCOUNT', lane, '-inf', '(' .. instant)
    if holding[n] then count = count + redis.call('ZCOUNT', lane, HELD, held) end
  end
  counts[i + 1] = count
end
return counts
