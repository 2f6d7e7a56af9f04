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

-- When what an enqueue takes the place of would have run.
local function planned(id, record, word)
  if word == 'FOLLOWS' then return (struct.unpack('>I6', redis.call('HGET', FOLLOWERS, id))) end
  return redis.call('ZSCORE', lane_of(record), id)
end

-- Since when the id waits without a run: the attempts entry of a message that was never claimed has it where that has
-- its due time. Without an entry nothing was replaced; after a run the wait begins anew.
local function first_of(id, record)
  local entry = redis.call('HGET', ATTEMPTS, id)
  if not entry then return math.floor(struct.unpack('>I8', record) / 1000) end
  return string.sub(entry, 11, 16) == string.rep('\0', 6) and struct.unpack('>I6', entry, 5) or NOW
end

local function waiting_since(first) return string.rep('\0', 4) .. struct.pack('>I6', first) .. string.rep('\0', 28) end

-- The due time that the mode chooses for what takes the place of `old`; with a limit, also since when its id waits.
local function choice(mode, due, id, old, word)
  local other, how, most = tonumber(planned(id, old, word)), string.match(mode, '^(%a+):?(%d*)')
  most = tonumber(most)
  if not other then return due end -- a damaged one has none
  if how == 'extend' then due = math.max(due, other) end
  if how == 'earliest' then due = math.min(due, other) end
  if most and word == 'REPLACED' then
    local first = first_of(id, old)
    return math.min(due, first + most), first
  end
  return due
end
