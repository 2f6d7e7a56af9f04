-- edit: delayed -> delayed with another body (the arguments). Everything else of the message stays.
-- Guarantee: exactly one of edit and claim wins, and no edit is overwritten unseen: the record has to be the one
--   that was read. Twice is once.
--   What a limit holds back may be under another now: the next claim sees to it.
-- KEYS: the partition (shared/partition.lua). Shared: wake, lanes.
-- ARGV: id, the record as it was read, the record to be, for each (500 at most).
-- Returns: one word per id: OK, RUNNING, NOT_FOUND, or CHANGED when another call was quicker.
local answers, moves = {}, {}
for at = 1, #ARGV, 3 do
  local id, before, after = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local record = redis.call('HGET', MESSAGES, id)
  local score = record and redis.call('ZSCORE', lane_of(record), id)
  local word = 'OK'
  if not record then
    word = 'NOT_FOUND'
  elseif record ~= after and not score then
    word = 'RUNNING'
  elseif record ~= after and record ~= before then
    word = 'CHANGED'
  elseif record ~= after then
    redis.call('HSET', MESSAGES, id, after)
    local due = due_in(score)
    if due < tonumber(score) then move(moves, lane_of(after), due, id) end
  end
  answers[#answers + 1] = word
end
park(moves)
return answers
