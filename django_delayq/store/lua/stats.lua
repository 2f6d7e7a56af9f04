-- stats: changes nothing. O(log n): counts come from the structures themselves.
-- Guarantee: all figures are of one instant.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, due.
-- ARGV: none.
-- Returns: now in us, waiting, ready, leased, finished stream length, next due in ms or '', {paused and the counters},
--   how many of those that are ready a limit holds back, how long ago (ms) the oldest ended that is not archived, or ''.
local waiting, ready, held, earliest = 0, 0, 0, next_due()
for _, lane in ipairs(LANES) do
  waiting = waiting + redis.call('ZCARD', lane)
  ready = ready + redis.call('ZCOUNT', lane, '-inf', NOW)
  local first = redis.call('ZRANGE', lane, -1, -1, 'WITHSCORES')[2]
  if first and due_in(first) < tonumber(first) then
    local count = redis.call('ZCOUNT', lane, HELD, '+inf')
    held = held + count
    first = due_in(redis.call('ZRANGE', lane, -count, -count, 'WITHSCORES')[2])
    if earliest == '' or first < earliest then earliest = first end
  end
end
local oldest = redis.call('XRANGE', FINISHED, '-', '+', 'COUNT', 1)[1]
return {NOW_US, waiting, ready + held, redis.call('ZCARD', LEASED), redis.call('XLEN', FINISHED), earliest,
  redis.call('HMGET', META, 'paused', 'wakeups', 'enqueued', 'acked', 'retried', 'dead', 'cancelled',
    'expired', 'reclaimed'), held, oldest and NOW - tonumber(string.match(oldest[1], '^%d+')) or ''}
