-- cancel: delayed -> cancelled. A running message goes on; a follower of its key is taken back.
-- Guarantee: exactly one of cancel and claim wins. Works on a full Redis: the first write is a ZREM or HDEL.
-- KEYS: the partition (shared/partition.lua). Shared: finish, windows, read.
--   The eleventh is that of windows: the key of a cancelled message is free again.
-- ARGV: archive (all, dead or none), detail (JSON), before: '' or an instant in us; what was enqueued later is NOT_FOUND,
--   because a cancel may arrive late; then ids (500 at most).
-- Returns: one word per id: OK, RUNNING or NOT_FOUND; fewer when so many bytes are enough for one call.
local archive, detail, before = ARGV[1], ARGV[2], tonumber(ARGV[3])
local answers, cancelled, free, bytes = {}, 0, {}, 0

local function meant(record)
  return not before or #record < 8 or struct.unpack('>I8', record) <= before
end

for at = 4, #ARGV do
  local id = ARGV[at]
  local record = redis.call('HGET', MESSAGES, id)
  bytes = bytes + #(record or '')
  if bytes > MOST and #answers > 0 then break end
  local due = record and redis.call('ZSCORE', lane_of(record), id)
  if not record or (due and not meant(record)) then
    answers[#answers + 1] = 'NOT_FOUND'
  elseif due then
    redis.call('ZREM', lane_of(record), id)
    local entry = redis.call('HGET', ATTEMPTS, id)
    redis.call('HDEL', MESSAGES, id)
    redis.call('HDEL', ATTEMPTS, id)
    finish(archive, id, 'cancelled', record, entry, detail, due_in(due))
    free[#free + 1] = id
    cancelled = cancelled + 1
    answers[#answers + 1] = 'OK'
  else
    local follower = redis.call('HGET', FOLLOWERS, id)
    if follower and meant(string.sub(follower, 7)) then
      redis.call('HDEL', FOLLOWERS, id)
      finish(archive, id, 'cancelled', string.sub(follower, 7), '', detail, struct.unpack('>I6', follower))
      cancelled = cancelled + 1
      redis.call('HINCRBY', META, 'enqueued', 1)
    end
    answers[#answers + 1] = 'RUNNING'
  end
end
if #free > 0 then redis.call('ZREM', WINDOWS, unpack(free)) end
if cancelled > 0 then redis.call('HINCRBY', META, 'cancelled', cancelled) end
return answers
