-- leased_under: changes nothing. Finds what is leased under a token, for a claim whose answer was lost.
-- Guarantee: everything that stays leased under the token while the cursor goes round is found.
-- KEYS: the partition (shared/partition.lua).
-- ARGV: cursor ('0' at first), token.
-- Returns: next cursor ('0' at the end), {id, ...}.
local cursor, token = ARGV[1], ARGV[2]
local page = redis.call('ZSCAN', LEASED, cursor, 'COUNT', 500)
local ids = {}
for i = 1, #page[2], 2 do
  local entry = redis.call('HGET', ATTEMPTS, page[2][i])
  if entry and string.sub(entry, 17, 32) == token then ids[#ids + 1] = page[2][i] end
end
return {page[1], ids}
