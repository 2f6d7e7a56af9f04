-- enqueue: nothing -> delayed; for an id that is live, what its on_duplicate says.
-- Guarantee: each message is stored once, however often the call is repeated. The first write is one that a full Redis
--   refuses, before anything has changed. A kept message keeps its due time.
-- KEYS: partition (shared/partition.lua). Shared: times, expiry, finish, wake, lanes, lives, accepting, choosing, windows.
-- ARGV: number of tasks, then code, name for each; then id, mode (raise, keep; replace, extend: at the later due time,
--   earliest: at the earlier one; adopt: only what is live), when, expires, record for each. Ids differ. A mode with ':ms'
--   replaces to no due time later than so long after the first enqueue; then '#call:ms': that call stores it once; '/ms':
--   a window. when: also '@stamp:due' (SQL accepted it). expires: '' never, '+ms' after due, or when. record: no stamp.
-- Returns: now in us, then index, word of what is not simply new: SAME (the very record is there), DUPLICATE (another is);
--   both also of what was there in the window; REPEATED (its call stored it); REPLACED, FOLLOWS (the run that goes on),
--   with ':due' when the mode chose it; of what SQL accepted ADOPTED:stamp (it was there, and is it now), OLDER, DONE, GONE.
local tasks, ids, reply = tonumber(ARGV[1]), {}, {NOW_US}
local first = 2 + 2 * tasks
for at = first, #ARGV, 5 do ids[#ids + 1] = ARGV[at] end
local present = redis.call('HMGET', MESSAGES, unpack(ids))
local records, followers, adopted, replaced, superseded, moves = {}, {}, {}, {}, {}, {}
local seen, ended, waits, windows = {}, {}, {}, {}

for i, id in ipairs(ids) do
  local mode, when, expires, record = unpack(ARGV, first + i * 5 - 4, first + i * 5 - 1)
  local existing, stamp, due = present[i], accepted(when)
  assert(not seen[id], 'an id occurs twice in one enqueue')
  seen[id] = true
  record = struct.pack('>I8I6', stamp, expires_of(expires, due)) .. record
  local word = WINDOWS and is_repeated(mode) and 'REPEATED' or standing(id, existing, record, when, mode)
  if WINDOWS and not word and not existing then word = recent(id, mode, when, record) end
  if not word and existing then word = redis.call('ZSCORE', LEASED, id) and 'FOLLOWS' or 'REPLACED' end
  local old = word == 'REPLACED' and existing or word == 'FOLLOWS' and follower_of(id)
  local chosen, first
  if old and old ~= '' and string.match(mode, '^[%w:]*') ~= 'replace' then
    chosen, first = choice(mode, due, id, old, word)
    record, due = expiring(record, chosen - due), chosen
    if first then put(waits, id, waiting_since(first)) end
  end
  if WINDOWS and (not word or old) then begin(windows, id, mode, stamp, record) end
  if word == 'FOLLOWS' then
    put(followers, id, struct.pack('>I6', due) .. record)
  elseif word and string.sub(word, 1, 7) == 'ADOPTED' then
    put(adopted, id, adopt(existing))
  elseif not word or word == 'REPLACED' then
    if word then put(replaced, lane_of(existing), id) end
    put(records, id, record)
    move(moves, lane_of(record), due, id)
  end
  if old and durable(old) and not durable(record) then put(superseded, i, {id, old, '', planned(id, old, word)}) end
  if word == 'OLDER' or word == 'DUPLICATE' and string.sub(mode, 1, 4) == 'keep' and string.byte(when) == 64 then
    put(ended, id, string.sub(record, 1, 8)) -- SQL ends it: it never comes here
  end
  if word then put(reply, i - 1, chosen and word .. ':' .. string.format('%.0f', chosen) or word) end
end

if #records > 0 then redis.call('HSET', MESSAGES, unpack(records)) end
if #adopted > 0 then redis.call('HSET', MESSAGES, unpack(adopted)) end
if #followers > 0 then redis.call('HSET', FOLLOWERS, unpack(followers)) end
for i = 1, #replaced, 2 do
  redis.call('ZREM', replaced[i], replaced[i + 1])
  redis.call('HDEL', ATTEMPTS, replaced[i + 1])
end
if #waits > 0 then redis.call('HSET', ATTEMPTS, unpack(waits)) end
note(windows)
park(moves)
for i = 1, #ended, 2 do forget_older(ended[i], ended[i + 1]) end
for i = 2, #superseded, 2 do supersede(unpack(superseded[i])) end
for at = 2, 2 * tasks, 2 do redis.call('HSET', META, 'task:' .. ARGV[at], ARGV[at + 1]) end
if #records > 0 then redis.call('HINCRBY', META, 'enqueued', (#records - #replaced) / 2) end
return reply
