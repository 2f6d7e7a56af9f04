-- claim: delayed and due -> leased; delayed and past expires_at -> expired; without a record -> dead.
-- Guarantee: a message is in one lease at a time, and never before its due time. At most 1 MiB leaves at once.
--   A pause that has an end is over at that millisecond, and next due is the end while it lasts.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, due, read.
-- ARGV: limit (500 at most), token (16 bytes, new for each claim), ageing in ms per lane, archive (all, dead or none),
--   finished_limit: with so many entries in the finished stream nothing is claimed until the archiver has caught up.
-- Returns: now in us, next due in ms or '', wakeups, {id, record, attempts entry, ...}, {id over, ...}, '' or why not.
local limit, token, ageing, archive = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local meta = redis.call('HMGET', META, 'wakeups', 'paused', 'paused_until')
local held, till = meta[2], tonumber(meta[3])
if till and till <= NOW then
  redis.call('HDEL', META, 'paused', 'paused_until')
  held, till = false, nil
end
if redis.call('XLEN', FINISHED) >= tonumber(ARGV[5]) then held = held or 'UNARCHIVED' end
if held then return {NOW_US, till or '', tonumber(meta[1] or 0), {}, {}, held} end
local ids, scores, lanes = pick(limit, ageing)
if #ids == 0 then return {NOW_US, next_due(), tonumber(meta[1] or 0), {}, {}, ''} end

local records, olds = read(ids, 1048576)
local claimed, leases, entries, taken, over = {}, {}, {}, {{}, {}, {}}, {}
local first_claim, never = struct.pack('>I6', NOW), string.rep('\0', 6)
for i, record in ipairs(records) do
  local id, old = ids[i], olds[i]
  local members = taken[lanes[i]]
  members[#members + 1] = id
  local whole = record and #record >= 23
  local expires_at = whole and struct.unpack('>I6', record, 9) or 0
  if not record or (expires_at > 0 and expires_at <= NOW) then
    over[#over + 1] = i
  else
    local attempt, crashes = struct.unpack('>I2I2', old or '\0\0\0\0')
    local begun = old and string.sub(old, 11, 16)
    local entry = struct.pack('>I2I2I6', math.min(attempt + 1, 65535), crashes, scores[i])
      .. (begun and begun ~= never and begun or first_claim) .. token .. (old and string.sub(old, 33) or never)
    local n = #leases
    leases[n + 1], leases[n + 2] = NOW + (whole and struct.unpack('>I4', record, 16) or 60000), id
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
return {NOW_US, next_due(), tonumber(meta[1] or 0), claimed, close(over, ids, records, olds, archive, scores), ''}
