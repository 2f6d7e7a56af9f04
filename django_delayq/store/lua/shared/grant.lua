-- Shared: how due messages become leased. After finish, wake and due.

-- Why nothing may be claimed ('' when it may), the end of the pause, and the wakeups. A pause that has an end is over at
-- that millisecond.
local function barred(finished_limit)
  local meta = redis.call('HMGET', META, 'wakeups', 'paused', 'paused_until')
  local held, till = meta[2], tonumber(meta[3])
  if till and till <= NOW then
    redis.call('HDEL', META, 'paused', 'paused_until')
    held, till = false, nil
  end
  if redis.call('XLEN', FINISHED) >= tonumber(finished_limit) then held = held or 'UNARCHIVED' end
  return held or '', till or '', tonumber(meta[1] or 0)
end

-- Takes these due messages out of their lanes: a lease for each that may run. `late`: those that may not, by their places.
-- Returns id, record, attempts entry of each that is leased, and the places of those that are over.
local function grant(ids, records, olds, scores, lanes, token, late)
  local claimed, leases, entries, taken, over = {}, {}, {}, {{}, {}, {}}, {}
  local first_claim, never = struct.pack('>I6', NOW), string.rep('\0', 6)
  local ends = {} -- lease time -> when such a lease ends: the messages of a task have the same
  for i, record in ipairs(records) do
    local id, old = ids[i], olds[i]
    local members = taken[lanes[i]]
    members[#members + 1] = id
    local whole = record and #record >= 23
    local expires_at = whole and struct.unpack('>I6', record, 9) or 0
    if not record or (expires_at > 0 and expires_at <= NOW) or late[i] then
      over[#over + 1] = i
    else
      local attempt, crashes = struct.unpack('>I2I2', old or '\0\0\0\0')
      local before = old and string.sub(old, 11, 16)
      local entry = struct.pack('>I2I2I6', math.min(attempt + 1, 65535), crashes, scores[i])
        .. (before ~= never and before or first_claim) .. token .. (old and string.sub(old, 33) or never)
      local ttr = whole and struct.unpack('>I4', record, 16) or 60000
      ends[ttr] = ends[ttr] or text_of(NOW + ttr)
      local n = #leases
      leases[n + 1], leases[n + 2] = ends[ttr], id
      entries[n + 1], entries[n + 2] = id, entry
      n = #claimed
      claimed[n + 1], claimed[n + 2], claimed[n + 3] = id, record, entry
    end
  end

  for i, lane in ipairs(LANES) do if #taken[i] > 0 then redis.call('ZREM', lane, unpack(taken[i])) end end
  if #leases > 0 then
    redis.call('ZADD', LEASED, unpack(leases))
    redis.call('HSET', ATTEMPTS, unpack(entries))
  end
  return claimed, over
end
