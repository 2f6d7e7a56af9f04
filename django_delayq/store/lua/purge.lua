-- purge: delayed -> cancelled, for whatever waits in the partition.
-- Guarantee: each purged message ends in the finished stream; leased ones go on. Bounded: the caller repeats.
-- KEYS: the partition (shared/partition.lua). Shared: finish, windows, read.
--   The eleventh is that of windows, as for cancel.lua.
-- ARGV: limit (500 at most), archive (all, dead or none), detail (JSON).
-- Returns: {id purged, ...}.
local limit, archive, detail = tonumber(ARGV[1]), ARGV[2], ARGV[3]
for _, lane in ipairs(LANES) do
  local found, ids, dues = redis.call('ZRANGEBYSCORE', lane, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, limit), {}, {}
  for at = 1, #found, 2 do ids[#ids + 1], dues[#dues + 1] = found[at], due_in(found[at + 1]) end
  if #ids > 0 then
    local records, entries = read(ids, MOST)
    ids = {unpack(ids, 1, #records)}
    redis.call('ZREM', lane, unpack(ids))
    redis.call('HDEL', MESSAGES, unpack(ids))
    redis.call('HDEL', ATTEMPTS, unpack(ids))
    redis.call('ZREM', WINDOWS, unpack(ids))
    for i, id in ipairs(ids) do finish(archive, id, 'cancelled', records[i], entries[i], detail, dues[i]) end
    redis.call('HINCRBY', META, 'cancelled', #ids)
    return ids
  end
end
return {}
