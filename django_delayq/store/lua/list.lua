-- list: changes nothing. One page of a lane, after a cursor.
-- Guarantee: the cursor is a place in the order (due, id), not a count, so nothing that stays is skipped or seen twice.
--   Cost is O(log^2 n + page): the place is found by bisection over ranks. What a limit holds back is in its order too.
-- KEYS: the partition (shared/partition.lua). Shared: read.
-- ARGV: lane (1 to 3), due in ms and id of the last one seen ('' = from the start), limit (500 at most).
-- Returns: 1 when the page is cut short because so many bytes are enough for one call, else 0; then id, ready or delayed,
--   due in ms, record, attempts entry or '' for each.
local lane, after_due, after_id, limit = LANES[tonumber(ARGV[1])], ARGV[2], ARGV[3], tonumber(ARGV[4])
-- Compared as hexadecimal digits: Lua compares strings in the server's locale, Redis sorts ids by their bytes.
local function hex(id) return (string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end)) end

-- Adds those after the cursor whose scores are `base` and their due time.
local function add(page, base)
  local low = base > 0 and redis.call('ZCOUNT', lane, '-inf', string.format('(%.0f', base)) or 0
  if after_due ~= '' then
    local score = base > 0 and string.format('%.0f', base + tonumber(after_due)) or after_due
    low = redis.call('ZCOUNT', lane, '-inf', '(' .. score)
    local high = redis.call('ZCOUNT', lane, '-inf', score)
    while low < high do
      local middle = math.floor((low + high) / 2)
      if hex(redis.call('ZRANGE', lane, middle, middle)[1]) <= hex(after_id) then low = middle + 1 else high = middle end
    end
  end
  local found = redis.call('ZRANGE', lane, low, low + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    if base > 0 or due_in(score) == score then page[#page + 1] = {id = found[i], due = due_in(score)} end
  end
end

if limit == 0 then return {0} end
local page, reply, ids = {}, {0}, {}
add(page, 0)
if redis.call('ZCOUNT', lane, HELD, 2 * HELD) > 0 then
  add(page, HELD)
  table.sort(page, function(a, b) return a.due < b.due or a.due == b.due and hex(a.id) < hex(b.id) end)
end
for i = 1, math.min(limit, #page) do ids[i] = page[i].id end
if #ids == 0 then return reply end
local records, entries = read(ids, MOST)
if #records < #ids then reply[1] = 1 end
for i = 1, #records do
  local due = page[i].due
  put(reply, ids[i], due <= NOW and 'ready' or 'delayed')
  put(reply, due, records[i] or '')
  reply[#reply + 1] = entries[i] or ''
end
return reply
