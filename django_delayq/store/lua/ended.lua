-- ended: how a message has ended that the archiver has not taken; changes nothing.
-- Guarantee: reads at most so many of the newest entries of the finished stream.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: id, most entries to read.
-- Returns: {entry, {field, value, ...}} of the newest entry of this id, or {}.
local id, most = ARGV[1], tonumber(ARGV[2])
local step, before = 50, '+'
for _ = 1, most, step do
  local entries = redis.call('XREVRANGE', FINISHED, before, '-', 'COUNT', step)
  for _, entry in ipairs(entries) do
    for at = 1, #entry[2], 2 do
      if entry[2][at] == 'id' and entry[2][at + 1] == id then return entry end
    end
  end
  if #entries < step then break end
  before = '(' .. entries[#entries][1]
end
return {}
