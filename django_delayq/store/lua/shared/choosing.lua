-- Shared: when a message runs that takes the place of another. After lives.

-- When what an enqueue takes the place of would have run.
local function planned(id, record, word)
  if word == 'FOLLOWS' then return (struct.unpack('>I6', redis.call('HGET', FOLLOWERS, id))) end
  local score = redis.call('ZSCORE', lane_of(record), id)
  return score and due_in(score)
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
  if not other or other % 1 ~= 0 or other >= HELD then return due end -- a damaged one has none
  if how == 'extend' then due = math.max(due, other) end
  if how == 'earliest' then due = math.min(due, other) end
  if most and word == 'REPLACED' then
    local first = first_of(id, old)
    return math.min(due, first + most), first
  end
  return due
end
