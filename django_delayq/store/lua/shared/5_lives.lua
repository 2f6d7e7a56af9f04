-- Put before every script: one life of an id, named by the stamp (8 bytes) of its record.

-- What is known of the life: LIVE (waits, runs, or follows the run that goes on), DONE (ended, unarchived) or false.
local function known(id, record, stamp)
  if record and string.sub(record, 1, 8) == stamp then return 'LIVE' end
  local follower = redis.call('HGET', FOLLOWERS, id)
  if follower and string.sub(follower, 7, 14) == stamp then return 'LIVE' end
  return redis.call('HGET', META, 'done:' .. id) == stamp and 'DONE'
end

-- The word with which an enqueue of `record` ends before it has changed anything; nil or false: it may be stored.
local function standing(id, existing, record, when, mode)
  local from_sql = string.byte(when) == 64
  local word = from_sql and known(id, existing, string.sub(record, 1, 8))
  if word then return word == 'LIVE' and 'SAME' or word end
  if not existing then return nil end
  if mode == 'replace' then
    return from_sql and #existing >= 8 and struct.unpack('>I8', existing) > struct.unpack('>I8', record) and 'OLDER'
  end
  -- Byte 15 holds the flags: what was spilled on an unknown outcome is durable, and its twin is not.
  if string.sub(existing, 16) ~= string.sub(record, 16) then return 'DUPLICATE' end
  return from_sql and 'TWIN' or 'SAME'
end
