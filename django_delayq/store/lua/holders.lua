-- holders: changes nothing.
-- Guarantee: lease and token are of one instant. Bounded by the limit.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: offset, limit (500 at most), in the order in which the leases end.
-- Returns: id, deadline in ms, token of the lease for each.
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('ZRANGE', LEASED, offset, offset + limit - 1, 'WITHSCORES')
if #found == 0 then return found end
local ids, answer = {}, {}
for at = 1, #found, 2 do ids[#ids + 1] = found[at] end
for i, entry in ipairs(redis.call('HMGET', ATTEMPTS, unpack(ids))) do
  answer[#answer + 1] = ids[i]
  answer[#answer + 1] = found[i * 2]
  answer[#answer + 1] = string.sub(entry or '', 17, 32)
end
return answer
