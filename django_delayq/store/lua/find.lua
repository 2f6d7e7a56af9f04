-- find: changes nothing.
-- Guarantee: state, due time and record are of one instant.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: ids (500 at most).
-- Returns: for each id nothing when it is not live, else state, due in ms, record, attempts entry or ''.
local found = {}
for i, id in ipairs(ARGV) do
  found[i] = {}
  local record = redis.call('HGET', MESSAGES, id)
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
