-- thaw: frozen -> undone (the old store serves again), or frozen -> copied (the new store is whole).
-- Guarantee: one step for all. Only the freeze of this move is undone, and never when the move is decided.
-- KEYS: the state of the move; then each key and the name under which its value rests.
-- ARGV: id of the move, state that follows, '1' when it must be late: later than the freeze may last.
-- Returns: THAWED; else the state, and nothing has changed.
local MOVE, id, follows, late = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
local state, whose, until_ms = unpack(redis.call('HMGET', MOVE, 'state', 'id', 'until_ms'))
if state ~= 'frozen' or whose ~= id or (late and NOW <= tonumber(until_ms)) then return state or '' end

redis.call('HSET', MOVE, 'state', follows, 'at_ms', string.format('%.0f', NOW))
for at = 2, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[at + 1]) == 1 then redis.call('RENAME', KEYS[at + 1], KEYS[at])
  else redis.call('DEL', KEYS[at]) end
end
return 'THAWED'
