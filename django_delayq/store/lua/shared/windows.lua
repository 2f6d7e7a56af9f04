-- Shared: the windows of keys: for some time after a message, also when it has ended, its key takes no other. After times.
-- WINDOWS: id, and mark of the message that began it -> the end of the window (ms). It ends with the last of them.
--   Also the calls that may be repeated: call -> until when it is known.

-- The ms of a mode with a window, or nothing.
local function window_of(mode) return tonumber(string.match(mode, '/(%d+)$')) end

-- Names a message in all its enqueues: the id and what its record says. As window_mark() in core/message.py.
local function mark_of(id, record) return id .. string.sub(redis.sha1hex(string.sub(record, 16)), 1, 16) end

local function goes_on(member) return tonumber(redis.call('ZSCORE', WINDOWS, member) or 0) > NOW end

-- The call that stores a message once, in hex, and for how many ms it is known; or nothing.
local function call_of(mode) return string.match(mode, '#(%x+):(%d+)') end

-- Whether the call has stored its message before.
local function is_repeated(mode)
  local call = call_of(mode)
  return call and goes_on(call)
end

-- The word for a message that is not live and may not be stored yet. The one that began the window has ended: its enqueue
-- is repeated. What SQL has accepted is never dropped: it was asked before.
local function recent(id, mode, when, record)
  if not window_of(mode) or string.byte(when) == 64 or not goes_on(id) then return end
  return goes_on(mark_of(id, record)) and 'SAME' or 'DUPLICATE'
end

-- The window of a message that was accepted at `stamp` (us), and its call, are to be noted, when it has them.
local function begin(windows, id, mode, stamp, record)
  local window, call, known = window_of(mode), call_of(mode)
  if call then put(windows, NOW + known, call) end
  if not window then return end
  for _, member in ipairs({id, mark_of(id, record)}) do put(windows, math.floor(stamp / 1000) + window, member) end
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
