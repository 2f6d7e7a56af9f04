-- Shared: moves into the lanes. After wake.

-- moves[lane] = {due, id, due, id, ...}, due times as numbers or text. A head that comes sooner wakes the dispatchers.
local function park(moves)
  for lane, members in pairs(moves) do
    local before = head_of(lane)
    redis.call('ZADD', lane, unpack(members))
    local after = #members == 2 and tonumber(members[1]) or head_of(lane)
    if not before or after < before then wake(string.format('%.0f', after)) end
  end
end

local function move(moves, lane, due, id)
  local members = moves[lane] or {}
  moves[lane] = members
  put(members, text_of(due), id)
end
