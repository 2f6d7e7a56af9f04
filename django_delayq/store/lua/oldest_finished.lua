-- oldest_finished: changes nothing. O(1).
-- Guarantee: the age is that of the oldest message that has ended and is not archived.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: none.
-- Returns: how long ago it ended in ms, or '' when nothing waits for the archiver.
local oldest = redis.call('XRANGE', FINISHED, '-', '+', 'COUNT', 1)[1]
if not oldest then return '' end
return NOW - tonumber(string.match(oldest[1], '^%d+'))
