-- Put before every script: the keys of one partition and the clock.
-- KEYS: all nine of the partition, in the order of store/keys.py, so that every key a script may touch is declared.
local HIGH, NORMAL, LOW, LEASED, MESSAGES, ATTEMPTS, FINISHED, FOLLOWERS, META = unpack(KEYS)
local LANES = {HIGH, NORMAL, LOW}
local TIME = redis.call('TIME')
local NOW_US = TIME[1] * 1000000 + TIME[2]
local NOW = math.floor(NOW_US / 1000)
local NO_TOKEN = string.rep('\0', 16)

-- A record's lane is in its flags (byte 15); a damaged record still has one, so that it can be claimed and buried.
local function lane_of(record)
  return LANES[(string.byte(record or '', 15) or 1) % 4 + 1] or NORMAL
end

-- '+1500' is a delay, '1763632200123' an instant. Rounded up: never early.
local function due_of(when)
  if string.byte(when) == 43 then return math.ceil(NOW_US / 1000) + tonumber(string.sub(when, 2)) end
  return assert(tonumber(when), 'a due time is not a number')
end

local function put(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end

-- Whether the outbox holds a row of this message (flag bit 7).
local function durable(record)
  return (string.byte(record or '', 15) or 0) >= 128
end

-- One entry of the finished stream is one row of the archive to come. `archive`: of all, dead or none of the messages.
-- The end of a durable one is always told, and remembered until it is archived, so that nobody sends it again: of two
-- lives of an id the newer, which is the one that SQL holds.
local function finish(archive, id, state, record, attempts, detail)
  if durable(record) then
    local newest = redis.call('HGET', META, 'done:' .. id)
    if not newest or struct.unpack('>I8', newest) < struct.unpack('>I8', record) then
      redis.call('HSET', META, 'done:' .. id, string.sub(record, 1, 8))
    end
  elseif archive == 'none' or archive == 'dead' and state ~= 'dead' then
    return
  end
  redis.call('XADD', FINISHED, '*', 'id', id, 'state', state, 'at', NOW, 'record', record or '',
    'attempts', attempts or '', 'detail', detail)
end

-- Ends a durable message that one which is not durable replaces: its row in the outbox has to be closed.
local function supersede(id, record, attempts)
  finish('none', id, 'cancelled', record, attempts, '{"reason":"replaced"}')
end
