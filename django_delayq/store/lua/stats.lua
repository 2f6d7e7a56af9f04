-- stats: changes nothing. O(log n): counts come from the structures themselves.
-- Guarantee: all figures are of one instant.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, due.
-- ARGV: none.
-- Returns: now in us, waiting, ready, leased, finished stream length, next due in ms or '', {paused and the counters}.
local waiting, ready = 0, 0
for _, lane in ipairs(LANES) do
  waiting = waiting + redis.call('ZCARD', lane)
  ready = ready + redis.call('ZCOUNT', lane, '-inf', NOW)
end
return {NOW_US, waiting, ready, redis.call('ZCARD', LEASED), redis.call('XLEN', FINISHED), next_due(),
  redis.call('HMGET', META, 'paused', 'wakeups', 'enqueued', 'acked', 'retried', 'dead', 'cancelled',
    'expired', 'reclaimed')}
