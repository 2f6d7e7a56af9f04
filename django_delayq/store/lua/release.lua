-- release: leased -> delayed at its old due time or after a delay, the attempt given back.
-- Guarantee: only the holder of the lease gives a message back; it loses no attempt, and without a delay no turn.
-- KEYS: the partition (shared/partition.lua). Shared: times, finish, wake, lanes, followers, leases, limits.
-- ARGV: id, token, delay in ms ('' = at its old due time) for each.
-- Returns: index, word of every message that was refused: SETTLED, GONE or LEASE_LOST.
local ids, entries, refused = held(1, 3)
local records = redis.call('HMGET', MESSAGES, unpack(ids))
local mine, again, moves = {}, {}, {}
for i, id in ipairs(ids) do
  if entries[i] then mine[#mine + 1], again[id] = id, true end
end
if #mine == 0 then return refused end

redis.call('ZREM', LEASED, unpack(mine))
local followed = start_followers(mine, moves, again)
for i, id in ipairs(ids) do
  local entry = entries[i]
  if entry and not followed[id] then
    local attempt, _, due = struct.unpack('>I2I2I6', entry)
    local delay = ARGV[i * 3]
    redis.call('HSET', ATTEMPTS, id, struct.pack('>I2', math.max(attempt - 1, 0)) .. string.sub(entry, 3))
    move(moves, lane_of(records[i]), delay == '' and due or due_of('+' .. delay), id)
  end
end
make_room(ids, entries, records, moves)
park(moves)
return refused
