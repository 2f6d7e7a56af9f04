-- reclaim: leased and past its deadline -> delayed; after too many crashes -> dead with reason poison.
-- Guarantee: a message whose holder vanished runs again; one that kills its holders stops. The token is wiped, so a
--   holder that wakes up again is refused. A first crash costs no wait, each further one `backoff` more.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, lanes, followers, history, limits, read.
-- ARGV: limit (500 at most), poison limit, backoff in ms, archive (all, dead or none).
-- Returns: {id sent back, ...}, {id dead, ...}, 1 when there may be more, else 0.
local limit, poison, backoff, archive = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local ids = redis.call('ZRANGEBYSCORE', LEASED, '-inf', NOW, 'LIMIT', 0, limit)
local back, dead, moves = {}, {}, {}
if #ids == 0 then return {back, dead, 0} end
local records, entries = read(ids, MOST)
local more = (#ids == limit or #records < #ids) and 1 or 0
ids = {unpack(ids, 1, #records)}
redis.call('ZREM', LEASED, unpack(ids))

local again = {}
for i, id in ipairs(ids) do
  local entry, record = entries[i] or string.rep('\0', 38), records[i]
  local attempt, crashes = struct.unpack('>I2I2', entry)
  crashes = crashes + 1
  entry = struct.pack('>I2I2', attempt, crashes) .. string.sub(entry, 5, 16) .. string.rep('\0', 16) .. string.sub(entry, 33)
  entry = remember(entry, string.format('{"ended_ms":%.0f,"outcome":"crashed"}', NOW))
  if not record or crashes >= poison then
    redis.call('HDEL', MESSAGES, id)
    redis.call('HDEL', ATTEMPTS, id)
    finish(archive, id, 'dead', record, entry, record and '{"reason":"poison"}' or '{"reason":"body_missing"}')
    dead[#dead + 1] = id
  else
    redis.call('HSET', ATTEMPTS, id, entry)
    again[id] = {NOW + (crashes - 1) * backoff, lane_of(record)}
    back[#back + 1] = id
  end
end
local followed = start_followers(ids, moves, again)
for id, place in pairs(again) do
  if not followed[id] then move(moves, place[2], place[1], id) end
end
make_room(ids, ids, records, moves)
park(moves)
if #dead > 0 then redis.call('HINCRBY', META, 'dead', #dead) end
redis.call('HINCRBY', META, 'reclaimed', #back)
return {back, dead, more}
