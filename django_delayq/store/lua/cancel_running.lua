-- cancel_running: leased -> cancelled. A follower of its key is cancelled too.
-- Guarantee: exactly one of this and what the holder of the lease does wins: the holder is refused from now on, so that the
--   message is neither retried nor dead. Works on a full Redis: the first write is a ZREM.
-- KEYS: the partition (shared/partition.lua). Shared: times, finish, wake, lanes, limits, history, windows.
--   The eleventh is that of windows: the key of a cancelled message is free again.
-- ARGV: archive (all, dead or none), detail (JSON), id.
-- Returns: OK, WAITING or NOT_FOUND.
local archive, detail, id = ARGV[1], ARGV[2], ARGV[3]
local record, entry = redis.call('HGET', MESSAGES, id), redis.call('HGET', ATTEMPTS, id)
if redis.call('ZREM', LEASED, id) == 0 then return record and 'WAITING' or 'NOT_FOUND' end

local follower, cancelled, moves = redis.call('HGET', FOLLOWERS, id), 1, {}
redis.call('HDEL', ATTEMPTS, id)
redis.call('HDEL', MESSAGES, id)
entry = remember(entry or string.rep('\0', 38), string.format('{"ended_ms":%.0f,"outcome":"cancelled"}', NOW))
finish(archive, id, 'cancelled', record, entry, detail)
if follower then
  redis.call('HDEL', FOLLOWERS, id)
  finish(archive, id, 'cancelled', string.sub(follower, 7), '', detail, struct.unpack('>I6', follower))
  cancelled = 2
  redis.call('HINCRBY', META, 'enqueued', 1)
end
redis.call('ZREM', WINDOWS, id)
redis.call('HINCRBY', META, 'cancelled', cancelled)
make_room({id}, {entry}, {record}, moves)
park(moves)
return 'OK'
