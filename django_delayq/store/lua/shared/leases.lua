-- Shared: the fence of a lease.

-- Who still holds what: ids, their attempts entries (false when the lease is not the caller's), {index, word} of those.
-- SETTLED: this token settled it before (a repeated call). GONE: finished. LEASE_LOST: another's now.
local function held(first, step)
  local ids, refused, seen = {}, {}, {}
  for at = first, #ARGV, step do ids[#ids + 1] = ARGV[at] end
  local entries = redis.call('HMGET', ATTEMPTS, unpack(ids))
  local deadlines = redis.call('ZMSCORE', LEASED, unpack(ids))
  for i = 1, #ids do
    local entry, word = entries[i], nil
    if not entry then word = 'GONE'
    elseif string.sub(entry, 17, 32) ~= ARGV[first + (i - 1) * step + 1] then word = 'LEASE_LOST'
    elseif not deadlines[i] or seen[ids[i]] then word = 'SETTLED' end
    seen[ids[i]] = true
    if word then
      entries[i] = false
      put(refused, i - 1, word)
    end
  end
  return ids, entries, refused
end
