-- Shared: which due messages come first. After finish and wake.

-- Up to `limit` ids that are due from `first` to `last`, with their scores and lane numbers: by due time plus `ageing` ms
-- for each step of priority below the highest. Within one lane that is the due time; across lanes a low message that waits
-- long enough comes first.
local function pick(limit, ageing, first, last)
  local due, cursor = {}, {1, 1, 1}
  for i, lane in ipairs(LANES) do
    due[i] = redis.call('ZRANGEBYSCORE', lane, first, last, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  local ids, scores, lanes = {}, {}, {}
  while #ids < limit do
    local best, best_at
    for i = 1, 3 do
      local score = due[i][cursor[i] + 1]
      if score and (not best or score + (i - 1) * ageing < best_at) then best, best_at = i, score + (i - 1) * ageing end
    end
    if not best then break end
    ids[#ids + 1], scores[#ids + 1], lanes[#ids + 1] = due[best][cursor[best]], due[best][cursor[best] + 1], best
    cursor[best] = cursor[best] + 2
  end
  return ids, scores, lanes
end

-- The earliest due time of the partition, without what a limit holds back, or ''.
local function next_due()
  local earliest = ''
  for _, lane in ipairs(LANES) do
    local head = head_of(lane)
    if head and head < HELD and (earliest == '' or head < earliest) then earliest = head end
  end
  return earliest
end

-- Ends the due messages at `places` that may not run: past their expires_at, too late, or without a record. Returns ids.
local function close(places, ids, records, entries, archive, scores, late)
  local closed = {}
  for n, i in ipairs(places) do
    local state, reason = 'expired', late[i] and '{"reason":"too_late"}' or '{"reason":"expired"}'
    if not records[i] then state, reason = 'dead', '{"reason":"body_missing"}' end
    redis.call('HDEL', MESSAGES, ids[i])
    redis.call('HDEL', ATTEMPTS, ids[i])
    finish(archive, ids[i], state, records[i], entries[i], reason, scores[i])
    redis.call('HINCRBY', META, state, 1)
    closed[n] = ids[i]
  end
  return closed
end
