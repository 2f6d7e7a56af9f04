-- nack: leased -> delayed (failed with attempts left, Retry, Snooze), or leased -> dead.
-- Guarantee: only the holder of the lease moves the message. A follower of its key takes the place of the retry: the
--   newest event wins, as when it had come a moment later.
-- KEYS: the partition (shared/partition.lua). Shared: times, finish, wake, lanes, followers, leases, limits, history.
-- ARGV: archive (all, dead or none), then id, token, delay in ms ('' = dead), 1 when the attempt counts else 0, detail
--   (JSON; unless dead, a line of the history) for each.
-- Returns: index, word of every message that was refused: SETTLED, GONE or LEASE_LOST.
local archive = ARGV[1]
local ids, entries, refused = held(2, 5)
local records = redis.call('HMGET', MESSAGES, unpack(ids))
local mine, again, moves, dead, retried = {}, {}, {}, 0, 0
for i, id in ipairs(ids) do
  if entries[i] then mine[#mine + 1] = id end
end
if #mine == 0 then return refused end

redis.call('ZREM', LEASED, unpack(mine))
for i, id in ipairs(ids) do
  local delay, counts, detail = ARGV[i * 5 - 1], ARGV[i * 5], ARGV[i * 5 + 1]
  if entries[i] and delay == '' then
    redis.call('HDEL', ATTEMPTS, id)
    redis.call('HDEL', MESSAGES, id)
    finish(archive, id, 'dead', records[i], entries[i], detail)
    dead = dead + 1
  elseif entries[i] then
    again[id] = {due_of('+' .. delay), lane_of(records[i])}
    local attempt = struct.unpack('>I2', entries[i])
    if counts == '0' then attempt = math.max(attempt - 1, 0) end
    redis.call('HSET', ATTEMPTS, id, struct.pack('>I2', attempt) .. string.sub(remember(entries[i], detail), 3))
    retried = retried + 1
  end
end
local followed = start_followers(mine, moves, again)
for id, place in pairs(again) do
  if not followed[id] then move(moves, place[2], place[1], id) end
end
make_room(ids, entries, records, moves)
park(moves)
if dead > 0 then redis.call('HINCRBY', META, 'dead', dead) end
if retried > 0 then redis.call('HINCRBY', META, 'retried', retried) end
return refused
