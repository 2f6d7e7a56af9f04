-- find: changes nothing.
-- Guarantee: state, due time and record are of one instant.
-- KEYS: the partition (shared/partition.lua). Shared: read.
-- ARGV: ids (500 at most).
-- Returns: for each id nothing when it is not live, else state, due in ms, record, attempts entry or ''; for fewer ids when
--   so many bytes are enough for one call.
local found, bytes = {}, 0
for i, id in ipairs(ARGV) do
  local record = redis.call('HGET', MESSAGES, id)
  bytes = bytes + #(record or '')
  if bytes > MOST and i > 1 then break end
  found[i] = {}
  if record then
    local entry = redis.call('HGET', ATTEMPTS, id) or ''
    local due = redis.call('ZSCORE', lane_of(record), id)
    if due then
      due = due_in(due)
      found[i] = {due <= NOW and 'ready' or 'delayed', due, record, entry}
    else
      found[i] = {'leased', entry ~= '' and struct.unpack('>I6', entry, 5) or 0, record, entry}
    end
  end
end
return found
