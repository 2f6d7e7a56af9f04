-- cancel: delayed -> cancelled. A running message goes on; a follower of its key is taken back.
-- Guarantee: exactly one of cancel and claim wins. Works on a full Redis: the first write is a ZREM or HDEL.
-- KEYS: the partition (shared/partition.lua). Shared: finish.
-- ARGV: archive (all, dead or none), detail (JSON), then ids (500 at most).
-- Returns: one word per id: OK, RUNNING or NOT_FOUND.
local archive, detail = ARGV[1], ARGV[2]
local answers, cancelled = {}, 0
for at = 3, #ARGV do
  local id = ARGV[at]
  local record = redis.call('HGET', MESSAGES, id)
  if record and redis.call('ZREM', lane_of(record), id) == 1 then
    local entry = redis.call('HGET', ATTEMPTS, id)
    redis.call('HDEL', MESSAGES, id)
    redis.call('HDEL', ATTEMPTS, id)
    finish(archive, id, 'cancelled', record, entry, detail)
    cancelled = cancelled + 1
    answers[#answers + 1] = 'OK'
  elseif record then
    local follower = redis.call('HGET', FOLLOWERS, id)
    if follower then
      redis.call('HDEL', FOLLOWERS, id)
      finish(archive, id, 'cancelled', string.sub(follower, 7), '', detail)
      cancelled = cancelled + 1
      redis.call('HINCRBY', META, 'enqueued', 1)
    end
    answers[#answers + 1] = 'RUNNING'
  else
    answers[#answers + 1] = 'NOT_FOUND'
  end
end
if cancelled > 0 then redis.call('HINCRBY', META, 'cancelled', cancelled) end
return answers
