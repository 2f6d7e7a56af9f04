-- claim: delayed and due -> leased; delayed and past expires_at -> expired; without a record -> dead.
-- Guarantee: a message is in one lease at a time, and never before its due time. Bounded by bytes, too.
--   A pause that has an end is over at that millisecond, and next due is the end while it lasts.
-- KEYS: the partition (shared/partition.lua). Shared: finish, wake, due, read, grant.
-- ARGV: limit (500 at most), token (16 bytes, new for each claim), ageing in ms per lane, archive (all, dead or none),
--   finished_limit: with so many entries in the finished stream nothing is claimed until the archiver has caught up.
-- Returns: now in us, next due in ms or '', wakeups, {id, record, attempts entry, ...}, {id over, ...}, '' or why not.
local limit, token, ageing, archive = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local why, till, wakeups = barred(ARGV[5])
if why ~= '' then return {NOW_US, till, wakeups, {}, {}, why} end
local ids, scores, lanes = pick(limit, ageing, '-inf', NOW)
if #ids == 0 then return {NOW_US, next_due(), wakeups, {}, {}, ''} end

local records, olds = read(ids, MOST)
local claimed, over = grant(ids, records, olds, scores, lanes, token, {})
return {NOW_US, next_due(), wakeups, claimed, close(over, ids, records, olds, archive, scores, {}), ''}
