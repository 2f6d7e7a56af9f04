-- Shared: the windows of keys: for some time after a message, also when it has ended, its key takes no other. After times.
-- WINDOWS: id -> the end of its window (ms). It ends with the last of them.

-- The ms of a mode with a window, or nothing.
local function window_of(mode) return tonumber(string.match(mode, '/(%d+)$')) end

-- The word for a message that is not live and may not be stored yet. What SQL has accepted is never dropped: it was asked
-- before.
local function recent(id, mode, when)
  if not window_of(mode) or string.byte(when) == 64 then return end
  return tonumber(redis.call('ZSCORE', WINDOWS, id) or 0) > NOW and 'DUPLICATE'
end

-- The window of a message that was accepted at `stamp` (us) is to be noted, when it has one.
local function begin(windows, id, mode, stamp)
  local window = window_of(mode)
  if window then put(windows, math.floor(stamp / 1000) + window, id) end
end

-- Notes the windows {end, id, ...}, and forgets as many that are over: what is left is never much more than what goes on.
local function note(windows)
  local limit = #windows
  if limit == 0 then return end
  redis.call('ZADD', WINDOWS, 'GT', unpack(windows))
  local over = redis.call('ZRANGEBYSCORE', WINDOWS, '-inf', NOW, 'LIMIT', 0, limit)
  if #over > 0 then redis.call('ZREM', WINDOWS, unpack(over)) end
  local last = tonumber(redis.call('ZRANGE', WINDOWS, -1, -1, 'WITHSCORES')[2] or NOW)
  redis.call('EXPIRE', WINDOWS, math.ceil((last - NOW) / 1000))
end
