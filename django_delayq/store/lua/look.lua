-- look: changes nothing. All that the partition holds under some ids, for the audit.
-- Guarantee: what is said of an id is of one instant.
-- KEYS: the partition (shared/partition.lua). Shared: lives.
-- ARGV: ids (500 at most).
-- Returns: for each id its scores in the lanes and its lease's deadline ('' where it is not), 1 with a record else 0, the
--   record's first 15 bytes (stamp and flags), 1 with attempts else 0, the stamp of what follows its run, that of its end.
local found = {}
for i, id in ipairs(ARGV) do
  local record, seen = redis.call('HGET', MESSAGES, id), {}
  for n, lane in ipairs(LANES) do seen[n] = redis.call('ZSCORE', lane, id) or '' end
  put(seen, redis.call('ZSCORE', LEASED, id) or '', record and 1 or 0)
  put(seen, string.sub(record or '', 1, 15), redis.call('HEXISTS', ATTEMPTS, id))
  put(seen, string.sub(follower_of(id), 1, 8), redis.call('HGET', META, 'done:' .. id) or '')
  found[i] = seen
end
return found
