-- Shared: how a message ends.

local NOW_TEXT -- made once, for the first entry

-- Whether the outbox holds a row of this message (flag bit 7).
local function durable(record)
  return (string.byte(record or '', 15) or 0) >= 128
end

-- One entry of the finished stream is one row of the archive to come. `archive`: of all, dead or none of the messages.
-- A durable one always gets an entry, and its end is remembered until it is archived, so that it is not sent again: of two
-- lives of an id the newer, which is the one that SQL holds. `due`, of a message that never ran: when it was due.
local function finish(archive, id, state, record, attempts, detail, due)
  if durable(record) then
    local newest = redis.call('HGET', META, 'done:' .. id)
    if not newest or struct.unpack('>I8', newest) < struct.unpack('>I8', record) then
      redis.call('HSET', META, 'done:' .. id, string.sub(record, 1, 8))
    end
  elseif archive == 'none' or archive == 'dead' and state ~= 'dead' then
    return
  end
  NOW_TEXT = NOW_TEXT or text_of(NOW)
  if due then
    redis.call('XADD', FINISHED, '*', 'id', id, 'state', state, 'at', NOW_TEXT, 'record', record or '',
      'attempts', attempts or '', 'detail', detail, 'due', due)
  else
    redis.call('XADD', FINISHED, '*', 'id', id, 'state', state, 'at', NOW_TEXT, 'record', record or '',
      'attempts', attempts or '', 'detail', detail)
  end
end

-- Ends a durable message that one which is not durable replaces: its row in the outbox has to be closed.
local function supersede(id, record, attempts, due)
  finish('none', id, 'cancelled', record, attempts, '{"reason":"replaced"}', due)
end
