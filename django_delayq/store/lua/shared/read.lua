-- Shared: how much is read at once.

local MOST = 524288 -- bytes in one call, as BATCH_BYTES in store/client.py

-- The records and attempts entries of the first of these ids, as many as `limit` bytes hold; of one at least. Reads no more
-- than that by much: 500 bodies of 64 KiB would take Redis 50 ms, to hand out 16 of them.
local function read(ids, limit)
  local records, entries, bytes, step = {}, {}, 0, 1
  while #records < #ids do
    local some = {unpack(ids, #records + 1, math.min(#records + step, #ids))}
    local found, tried = redis.call('HMGET', MESSAGES, unpack(some)), redis.call('HMGET', ATTEMPTS, unpack(some))
    for i = 1, #some do
      bytes = bytes + #(found[i] or '') + #(tried[i] or '')
      if #records > 0 and bytes > limit then return records, entries end
      records[#records + 1], entries[#entries + 1] = found[i], tried[i]
    end
    if bytes >= limit then break end
    step = math.max(1, math.min(step * 8, math.floor((limit - bytes) / math.max(bytes, 1) * #records)))
  end
  return records, entries
end
