-- decide: a state of the move -> the next one: frozen -> moved in the old store, copied -> arrived in the new one.
-- Guarantee: the first who calls it decides. What was undone before is never decided.
-- KEYS: the state of the move.
-- ARGV: id of the move, state, next state.
-- Returns: the state after the call.
local MOVE, id, from, to = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local state, whose = unpack(redis.call('HMGET', MOVE, 'state', 'id'))
if whose ~= id or state ~= from then return whose == id and state or '' end
redis.call('HSET', MOVE, 'state', to)
return to
