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
