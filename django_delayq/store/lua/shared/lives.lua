-- Shared: one life of an id, named by the stamp (8 bytes) of its record.

-- The record that follows the run of this id, or ''.
local function follower_of(id)
  return string.sub(redis.call('HGET', FOLLOWERS, id) or '', 7)
end

-- What is known of the life: LIVE (waits, runs, or follows the run that goes on), DONE (ended, unarchived) or false.
local function known(id, record, stamp)
  if record and string.sub(record, 1, 8) == stamp then return 'LIVE' end
  if string.sub(follower_of(id), 1, 8) == stamp then return 'LIVE' end
  return redis.call('HGET', META, 'done:' .. id) == stamp and 'DONE'
end

-- SQL ends the life with this stamp, which has never been here: nobody asks for the lives before it any more.
local function forget_older(id, stamp)
  local done = redis.call('HGET', META, 'done:' .. id)
  if done and struct.unpack('>I8', done) < struct.unpack('>I8', stamp) then redis.call('HDEL', META, 'done:' .. id) end
end
