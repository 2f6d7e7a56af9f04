-- resume: a paused partition goes on, and its dispatchers get a hint.
-- Guarantee: a full Redis takes it, the counter that a sweep reads too: the first write is one that it accepts.
-- KEYS: the partition (shared/partition.lua). Shared: wake.
-- ARGV: none.
-- Returns: how many of the note and its end were there.
local held = redis.call('HDEL', META, 'paused', 'paused_until')
wake(0)
return held
