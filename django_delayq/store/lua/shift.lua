-- shift: delayed -> delayed with another due time, for messages that are as they were read. An expiry that counts from the
--   due time moves with it.
-- Guarantee: exactly one of shift and claim wins; attempts and arguments stay. Twice is once: the due time has to be the one
--   that was read, or already the one to be.
-- KEYS: the partition (shared/partition.lua). Shared: expiry, wake, lanes, read.
-- ARGV: id, stamp, due time in ms as it was read, due time in ms to be, for each (500 at most).
-- Returns: one word per id: OK, RUNNING, NOT_FOUND (also when another life has this id), CHANGED, or SAME: it
--   has the due time to be, by an earlier call or by somebody else. Fewer when so many bytes are enough for one call.
local answers, moves, bytes = {}, {}, 0
for at = 1, #ARGV, 4 do
  local id, stamp, due, to = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local record = redis.call('HGET', MESSAGES, id)
  bytes = bytes + #(record or '')
  if bytes > MOST and #answers > 0 then break end
  local score = record and redis.call('ZSCORE', lane_of(record), id)
  local word = 'OK'
  if not record or string.sub(record, 1, 8) ~= stamp then
    word = 'NOT_FOUND'
  elseif not score then
    word = 'RUNNING'
  elseif due_in(score) == due and due ~= to then
    local moved = expiring(record, to - due)
    if moved ~= record then redis.call('HSET', MESSAGES, id, moved) end
    move(moves, lane_of(record), to, id)
  elseif due_in(score) ~= to then
    word = 'CHANGED'
  elseif due ~= to then
    word = 'SAME'
  end
  answers[#answers + 1] = word
end
park(moves)
return answers
