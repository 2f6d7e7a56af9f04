-- mend: what an audit has found, one kind of damage in some messages -> as it has to be.
-- Guarantee: it is looked at again in the same step; what is not so any more is left alone. A full Redis takes it.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, lanes, followers, mending.
-- ARGV: damage, archive (all, dead or none), then id, argument or '' for each (500 at most; store/mending.py).
-- Returns: 1 for each that was mended, 0 for each that was not so.
function MEND.place(id, due, archive) -- a record in no lane and not leased: back, never before a due time that is known
  local record, entry = redis.call('HGET', MESSAGES, id), redis.call('HGET', ATTEMPTS, id)
  if not record or redis.call('ZSCORE', LEASED, id) or lanes_with(id, record) > 0 then return false end
  local at = math.max(tonumber(due) or 0, entry and struct.unpack('>I6', entry, 5) or 0)
  if at == 0 then return die(archive, id, record, 'due_lost') end
  park({[lane_of(record)] = {at, id}})
  return true
end
function MEND.places(id) -- several lanes, another than its own, or a lease too: the lease stays, else the right lane
  local record, leased = redis.call('HGET', MESSAGES, id), redis.call('ZSCORE', LEASED, id)
  local count, due, right = lanes_with(id, record)
  if not record or count == 0 or (count == 1 and right and not leased) then return false end
  leave_lanes(id)
  if not leased then park({[lane_of(record)] = {due, id}}) end
  return true
end
function MEND.attempts(id) -- of a message that is gone
  if redis.call('HEXISTS', MESSAGES, id) == 1 or redis.call('ZSCORE', LEASED, id) or lanes_with(id) > 0 then return false end
  return redis.call('HDEL', ATTEMPTS, id) == 1
end
function MEND.stale(id, stamp) -- an end that is archived is not to be remembered
  return redis.call('HGET', META, 'done:' .. id) == stamp and redis.call('HDEL', META, 'done:' .. id) == 1
end
function MEND.untold(id, record) -- an end that nobody was told of is told, as far as it is known
  if redis.call('HGET', META, 'done:' .. id) ~= string.sub(record, 1, 8) then return false end
  finish('all', id, 'dead', record, '', '{"reason":"end_lost"}')
  return true
end
function MEND.out(id, stamp) -- a life that is archived, or lies where nobody looks for it, and does not run
  local record = redis.call('HGET', MESSAGES, id)
  if not record or string.sub(record, 1, 8) ~= stamp or redis.call('ZSCORE', LEASED, id) then return false end
  leave_lanes(id)
  return redis.call('HDEL', MESSAGES, id) + redis.call('HDEL', ATTEMPTS, id) > 0
end
function MEND.tried(id, entry) -- what has been tried, where the message is now
  if redis.call('HEXISTS', MESSAGES, id) == 0 or redis.call('HEXISTS', ATTEMPTS, id) == 1 then return false end
  return redis.call('HSET', ATTEMPTS, id, entry) == 1
end
local damage, words = assert(MEND[ARGV[1]], 'no such damage'), {}
redis.call('HDEL', META, 'done:') -- nobody has this field: the first write has to be one that a full Redis accepts
for at = 3, #ARGV, 2 do words[#words + 1] = damage(ARGV[at], ARGV[at + 1], ARGV[2]) and 1 or 0 end
return words
