-- Shared: the windows of keys: for some time after a message, also when it has ended, its key takes no other. After times.
-- WINDOWS: id -> the end of its window (ms). The key is an argument where something can have a window; it ends with the
-- last of them.
local WINDOWS = KEYS[11]

-- The ms of a mode with a window, or nothing.
local function window_of(mode) return tonumber(string.match(mode, '/(%d+)$')) end

-- Whether a message that is not live may not be stored yet. What SQL has accepted is never dropped: it was asked before.
local function recent(id, mode, when)
  if not window_of(mode) or string.byte(when) == 64 then return false end
  return tonumber(redis.call('ZSCORE', WINDOWS, id) or 0) > NOW
end

-- Notes the windows {end, id, ...}, and forgets as many that are over: what is left is never much more than what goes on.
local function note(windows)
  if #windows == 0 then return end
  redis.call('ZADD', WINDOWS, 'GT', unpack(windows))
  local over = redis.call('ZRANGEBYSCORE', WINDOWS, '-inf', NOW, 'LIMIT', 0, #windows)
  if #over > 0 then redis.call('ZREM', WINDOWS, unpack(over)) end
  local last = tonumber(redis.call('ZRANGE', WINDOWS, -1, -1, 'WITHSCORES')[2] or NOW)
  redis.call('EXPIRE', WINDOWS, math.max(1, math.ceil((last - NOW) / 1000)))
end
