-- freeze: a store that serves -> frozen: its values rest under other names, and a word stands in place of each.
-- Guarantee: one step for all. From then on Redis itself refuses every script and command of ours (WRONGTYPE) before it has
--   changed anything, so the other scripts need not look whether the store moves. No value is copied.
-- KEYS: the state of the move, the set of topics; then each key and the name under which its value rests.
-- ARGV: id of the move, ms until anybody may undo it, partitions (words), then the members of the set of topics.
-- Returns: FROZEN; CHANGED when there are other topics; or the state of another move that goes on or is over.
local MOVE, TOPICS = KEYS[1], KEYS[2]
local id, for_ms, partitions = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
local state = redis.call('HGET', MOVE, 'state')
if state == 'frozen' or state == 'moved' then return state end
local known = {}
for at = 4, #ARGV do known[ARGV[at]] = true end
for _, member in ipairs(redis.call('SMEMBERS', TOPICS)) do
  if not known[member] then return 'CHANGED' end
end

redis.call('HSET', MOVE, 'state', 'frozen', 'id', id, 'until_ms', string.format('%.0f', NOW + for_ms), 'partitions', partitions)
for at = 3, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[at]) == 1 then redis.call('RENAME', KEYS[at], KEYS[at + 1]) end
  redis.call('SET', KEYS[at], 'this store moves: see ' .. MOVE)
end
return 'FROZEN'
