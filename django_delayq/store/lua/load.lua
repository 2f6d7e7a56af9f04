-- load: nothing -> delayed, for a part of a bulk load behind its fence; an id that is live is left as it is.
-- Guarantee: each message is stored once, however often the call or the whole load is repeated, also when it has ended
--   meanwhile: what the fence has passed is skipped. It never passes a message that Redis had taken and has lost. The
--   first write is one that a full Redis refuses, before anything has changed.
-- KEYS: the partition (shared/partition.lua), then the fence. Shared: times, finish, wake, lanes, lives, accepting, order.
-- The fence is a hash: fingerprint, began (ms); new, same, kept; split:<n> -> highest id passed; kept:<id>.
-- ARGV: split, fingerprint, '1' to note what is kept, highest id that the caller knows to be passed ('': none), number of
--   tasks, then code, name for each; then id, when, expires, record for each, ids ascending by their bytes. record: '' for
--   an id that is live in another partition.
-- Returns: OK, began, new, skipped, same (the very record was there), kept (another was); or CHANGED, fingerprint of the
--   fence, when it is another load's; or LOST, when the fence has not passed what the caller knows to be passed. After
--   CHANGED and LOST nothing has changed.
local split, fingerprint, notes, passed, tasks = 'split:' .. ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])
local found = redis.call('HMGET', FENCE, 'fingerprint', 'began', split)
if found[1] and found[1] ~= fingerprint then return {'CHANGED', found[1]} end
if passed ~= '' and (not found[3] or above(passed, found[3])) then return {'LOST'} end
local began, mark = found[2] or string.format('%.0f', NOW), found[3]
local ids, records, moves, fence = {}, {}, {}, {'fingerprint', fingerprint, 'began', began}
local counts, skipped, first = {NEW = 0, SAME = 0, KEPT = 0}, 0, 6 + 2 * tasks
for at = first, #ARGV, 4 do ids[#ids + 1] = ARGV[at] end

local present = #ids > 0 and redis.call('HMGET', MESSAGES, unpack(ids))
for i, id in ipairs(ids) do
  assert(i == 1 or above(id, ids[i - 1]), 'the ids of a load do not ascend')
  if mark and not above(id, mark) then
    skipped = skipped + 1
  else
    local when, expires, record = unpack(ARGV, first + i * 4 - 3, first + i * 4 - 1)
    local due, word = due_of(when), 'KEPT'
    if record ~= '' then
      record = struct.pack('>I8I6', NOW_US, expires_of(expires, due)) .. record
      word = standing(id, present[i], record, when, 'keep') or 'NEW'
      if word == 'DUPLICATE' then word = 'KEPT' end
    end
    counts[word] = counts[word] + 1
    if word == 'NEW' then put(records, id, record) move(moves, lane_of(record), due, id) end
    if word == 'KEPT' and notes then put(fence, 'kept:' .. id, '') end
  end
end
if skipped < #ids then put(fence, split, ids[#ids]) end

if #records > 0 then redis.call('HSET', MESSAGES, unpack(records)) end
redis.call('HSET', FENCE, unpack(fence))
park(moves)
for word, count in pairs(counts) do
  if count > 0 then redis.call('HINCRBY', FENCE, string.lower(word), count) end
end
for at = 6, 2 * tasks + 5, 2 do redis.call('HSET', META, 'task:' .. ARGV[at], ARGV[at + 1]) end
if #records > 0 then redis.call('HINCRBY', META, 'enqueued', #records / 2) end
return {'OK', began, counts.NEW, skipped, counts.SAME, counts.KEPT}
