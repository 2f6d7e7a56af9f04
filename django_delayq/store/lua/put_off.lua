-- put_off: leased -> delayed after a wait: this worker's code cannot run the message, that of another may.
-- Guarantee: only the holder of the lease puts a message off; it loses no attempt. When a worker met it so first is
--   remembered until it has run, with one line of history: many may meet it so, again and again.
-- KEYS: the partition (shared/partition.lua). Shared: times, finish, wake, lanes, followers, leases, limits, history.
-- ARGV: id, token, delay in ms, detail (JSON, a line of the history) for each.
-- Returns: index, word of every message that was refused: SETTLED, GONE or LEASE_LOST.
local ids, entries, refused = held(1, 4)
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
    local attempt, since = struct.unpack('>I2', entry), struct.unpack('>I6', entry, 33)
    if since == 0 then
      entry = remember(entry, ARGV[i * 4])
      since = NOW
    end
    entry = string.sub(entry, 3, 32) .. struct.pack('>I6', since) .. string.sub(entry, 39)
    redis.call('HSET', ATTEMPTS, id, struct.pack('>I2', math.max(attempt - 1, 0)) .. entry)
    move(moves, lane_of(records[i]), due_of('+' .. ARGV[i * 4 - 1]), id)
  end
end
make_room(ids, entries, records, moves)
park(moves)
return refused
