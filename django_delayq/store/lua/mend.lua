-- mend: a message that is damaged -> as it has to be. Modes: diagnose and check only read, mend changes what is damaged.
-- Guarantee: the step that mends sees that it is damaged; what is not stays as it is. A full Redis takes it.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, lanes, followers, limits, states, damages.
-- ARGV: mode, damage ('' to diagnose), archive (all, dead or none); to diagnose: ids; else id, stamp, argument of each
--   (shared/damages.lua).
-- Returns: to diagnose: how many ids it has read, then {id, stamp, damages} of each that is damaged; else 1 (damaged, or
--   mended) or 0 for each that it has read. After 1 MiB of records it stops: call it again for the rest.
local mode, damage, archive = unpack(ARGV, 1, 3)
-- What Redis alone can tell.
local ALL = {'no_record', 'no_place', 'two_lanes', 'wrong_lane', 'lane_and_lease', 'stray_attempts', 'stray_follower'}
-- What is mended is read one by one: a write changes what the next would see. Elsewhere several at once are quicker.
local fields, width = mode == 'diagnose' and 1 or 3, mode == 'mend' and 1 or 32
local answer, at, bytes = {mode == 'diagnose' and 0 or nil}, 4, 0

local function diagnose(s)
  local found
  for _, name in ipairs(ALL) do
    if DAMAGED[name](s, '') then
      found = found or {s.id, string.sub(s.record or '', 1, 8)}
      found[#found + 1] = name
    end
  end
  answer[1] = answer[1] + 1
  answer[#answer + 1] = found
end

local function check(s)
  local stamp, argument = unpack(ARGV, at + 1, at + 2)
  local damaged = DAMAGED[damage](s, stamp)
  if damaged and mode == 'mend' then MEND[damage](s, archive, argument) end
  answer[#answer + 1] = damaged and 1 or 0
end

assert(mode == 'diagnose' or DAMAGED[damage], 'no such damage')
-- Nobody has this field: the first write has to be one that a full Redis accepts.
if mode == 'mend' then redis.call('HDEL', META, 'done:') end
while at <= #ARGV and bytes < 1048576 do
  local ids = {}
  for i = at, math.min(at + fields * width - 1, #ARGV), fields do ids[#ids + 1] = ARGV[i] end
  local states, size = states_of(ids)
  for _, s in ipairs(states) do
    if mode == 'diagnose' then diagnose(s) else check(s) end
    at = at + fields
  end
  bytes = bytes + size
end
return answer
