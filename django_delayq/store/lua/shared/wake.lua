-- Shared: when something new is due first.

local function head_of(lane)
  return tonumber(redis.call('ZRANGE', lane, 0, 0, 'WITHSCORES')[2])
end

-- Something new is due here at `due`: counted (what a sweep reads) and published (a hint).
local function wake(due)
  redis.call('HINCRBY', META, 'wakeups', 1)
  local prefix, partition = string.match(META, '^(.-):{(.*)}')
  redis.call('PUBLISH', prefix .. ':wakeups', partition .. ':' .. due)
end
