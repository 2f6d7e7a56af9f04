-- forecast: changes nothing. O(log n) for each instant that is asked for, however many messages wait.
-- Guarantee: all figures are of one instant.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: instants in ms (100 at most), 6 bytes each in one text. With thousands of partitions an argument for each of them
--   took Redis and its client most of the time.
-- Returns: now in us, then for each instant how many waiting messages are due before it.
local packed, instants, counts = ARGV[1], {}, {NOW_US}
for i = 1, #packed / 6 do
  instants[i], counts[i + 1] = struct.unpack('>I6', packed, i * 6 - 5), 0
end
for _, lane in ipairs(LANES) do
  local all = redis.call('ZCARD', lane)
  if all > 0 then
    -- Between the first and the last due time a count is asked for. With thousands of topics that is most of the cost.
    local first = tonumber(redis.call('ZRANGE', lane, 0, 0, 'WITHSCORES')[2])
    local last = tonumber(redis.call('ZRANGE', lane, -1, -1, 'WITHSCORES')[2])
    local holding = due_in(last) < last
    for i, before in ipairs(instants) do
      local count, limit = 0, string.format('(%.0f', before)
      if holding then
        count = redis.call('ZCOUNT', lane, '-inf', limit)
          + redis.call('ZCOUNT', lane, HELD, string.format('(%.0f', HELD + before))
      elseif last < before then
        count = all
      elseif first < before then
        count = redis.call('ZCOUNT', lane, '-inf', limit)
      end
      counts[i + 1] = counts[i + 1] + count
    end
  end
end
return counts
