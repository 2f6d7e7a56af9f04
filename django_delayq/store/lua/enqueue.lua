-- enqueue: nothing -> delayed; for an id that is live, what its on_duplicate says.
-- Guarantee: each message is stored once, however often the call is repeated. The first write is one that a full Redis
--   refuses, before anything has changed. A kept message keeps its due time.
-- KEYS: the partition (shared/1_partition.lua).
-- ARGV: number of tasks, then code, name for each; then id, mode (raise, keep, replace), when, expires, record for each.
--   Ids differ. expires: '' never, '+ms' after the due time, or an instant. record: without its stamp.
-- Returns: now in us, then index, word of every message that is not simply new:
--   SAME (the very record is there), DUPLICATE (another is), REPLACED, FOLLOWS (runs after the run that goes on).
local tasks, ids, reply = tonumber(ARGV[1]), {}, {NOW_US}
local first = 2 + 2 * tasks
for at = first, #ARGV, 5 do ids[#ids + 1] = ARGV[at] end
local present = redis.call('HMGET', MESSAGES, unpack(ids))
local records, followers, replaced, moves, seen = {}, {}, {}, {}, {}

for i, id in ipairs(ids) do
  local mode, when, expires, record = unpack(ARGV, first + i * 5 - 4, first + i * 5 - 1)
  local existing, word = present[i], nil
  assert(not seen[id], 'an id occurs twice in one enqueue')
  seen[id] = true
  if existing and mode ~= 'replace' then
    word = string.sub(existing, 15) == record and 'SAME' or 'DUPLICATE'
  else
    local due = due_of(when)
    record = struct.pack('>I8I6', NOW_US, expires_of(expires, due)) .. record
    if existing and redis.call('ZSCORE', LEASED, id) then
      word = 'FOLLOWS'
      put(followers, id, struct.pack('>I6', due) .. record)
    else
      if existing then
        word = 'REPLACED'
        put(replaced, lane_of(existing), id)
      end
      put(records, id, record)
      move(moves, lane_of(record), due, id)
    end
  end
  if word then put(reply, i - 1, word) end
end

if #records > 0 then redis.call('HSET', MESSAGES, unpack(records)) end
if #followers > 0 then redis.call('HSET', FOLLOWERS, unpack(followers)) end
for i = 1, #replaced, 2 do
  redis.call('ZREM', replaced[i], replaced[i + 1])
  redis.call('HDEL', ATTEMPTS, replaced[i + 1])
end
park(moves)
for at = 2, 2 * tasks, 2 do redis.call('HSET', META, 'task:' .. ARGV[at], ARGV[at + 1]) end
if #records > 0 then redis.call('HINCRBY', META, 'enqueued', (#records - #replaced) / 2) end
return reply
