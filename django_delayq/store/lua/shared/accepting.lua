-- Shared: what an enqueue does with one message. After times and lives.

-- '@stamp:due' is a message that SQL accepted at `stamp` (us), due at `due`; anything else is accepted now.
local function accepted(when)
  if string.byte(when) ~= 64 then return NOW_US, due_of(when) end
  local stamp, due = string.match(when, '^@(%d+):(%d+)$')
  return assert(tonumber(stamp), 'not a stamp'), tonumber(due)
end

-- The word with which an enqueue of `record` ends before it has changed anything; nil or false: it may be stored.
local function standing(id, existing, record, when, mode)
  local from_sql = string.byte(when) == 64
  local word = from_sql and known(id, existing, string.sub(record, 1, 8))
  if word then return word == 'LIVE' and 'SAME' or word end
  if not existing then return mode == 'adopt' and 'GONE' end
  local how = string.match(mode, '^%a+')
  if how == 'replace' or how == 'extend' or how == 'earliest' then
    if from_sql and follower_of(id) ~= '' then existing = follower_of(id) end -- this is what would be replaced
    return from_sql and #existing >= 8 and struct.unpack('>I8', existing) > struct.unpack('>I8', record) and 'OLDER'
  end
  -- But for durable: that flag differs when the outcome of one of the two was not known.
  local flags, others = string.byte(existing, 15) or 0, string.byte(record, 15) or 0
  if string.sub(existing, 16) ~= string.sub(record, 16) or flags % 128 ~= others % 128 then return 'DUPLICATE' end
  return from_sql and 'ADOPTED:' .. string.format('%.0f', struct.unpack('>I8', existing)) or 'SAME'
end

-- The live record with the flag of a durable one. It keeps its stamp, under which it may have run; SQL takes that over.
-- So what was spilled on an unknown outcome, and had been stored all the same, is one message.
local function adopt(existing)
  local flags = string.byte(existing, 15)
  return string.sub(existing, 1, 14) .. string.char(flags % 128 + 128) .. string.sub(existing, 16)
end
