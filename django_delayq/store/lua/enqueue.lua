-- enqueue: nothing -> delayed; for an id that is live, what its on_duplicate says.
-- Guarantee: each message is stored once, however often the call is repeated. The first write is one that a full Redis
--   refuses, before anything has changed. A kept message keeps its due time.
-- KEYS: the partition (shared/1_partition.lua).
-- ARGV: number of tasks, then code, name for each; then id, mode (raise, keep, replace), when, expires, record for each.
--   expires: '' never, '+ms' after the due time, or an instant. record: without its stamp.
-- Returns: now in us, then index, word of every message that is not simply new:
--   SAME (the very record is there), DUPLICATE (another is), REPLACED, FOLLOWS (runs after the run that goes on).
local tasks = tonumber(ARGV[1])
local first = 2 + 2 * tasks
local ids, reply = {}, {NOW_US}
for at = first, #ARGV, 5 do ids[#ids + 1] = ARGV[at] end
local present = redis.call('HMGET', MESSAGES, unpack(ids))
local records, followers, stale, replaced, moves = {}, {}, {}, {}, {}

for i, id in ipairs(ids) do
  local at = first + (i - 1) * 5
  local mode, when, expires, record = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local existing, word = present[i], nil
  if existing and mode ~= 'replace' then
    word = string.sub(existing, 15) == record and 'SAME' or 'DUPLICATE'
  else
    local due, expires_at = due_of(when), 0
    if expires ~= '' then
      expires_at = string.byte(expires) == 43 and due + tonumber(string.sub(expires, 2)) or tonumber(expires)
    end
    record = struct.pack('>I8I6', NOW_US, expires_at) .. record
    if existing and redis.call('ZSCORE', LEASED, id) then
      word = 'FOLLOWS'
      followers[#followers + 1] = id
      followers[#followers + 1] = struct.pack('>I6', due) .. record
    else
      if existing then
        word = 'REPLACED'
        replaced[#replaced + 1] = {lane_of(existing), id}
      end
      records[#records + 1] = id
      records[#records + 1] = record
      move(moves, lane_of(record), due, id)
    end
  end
  if word then
    reply[#reply + 1] = i - 1
    reply[#reply + 1] = word
  end
end

if #records > 0 then redis.call('HSET', MESSAGES, unpack(records)) end
if #followers > 0 then redis.call('HSET', FOLLOWERS, unpack(followers)) end
for _, old in ipairs(replaced) do
  redis.call('ZREM', old[1], old[2])
  redis.call('HDEL', ATTEMPTS, old[2])
end
park(moves)
for at = 2, 2 * tasks, 2 do redis.call('HSET', META, 'task:' .. ARGV[at], ARGV[at + 1]) end
if #records > 0 then redis.call('HINCRBY', META, 'enqueued', #records / 2 - #replaced) end
return reply
