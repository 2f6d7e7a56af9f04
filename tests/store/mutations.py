"""Breaks the scripts one line at a time and says which breaks no test notices: `make mutations`.

Works on a copy, so the tree stays whole. A survivor is a missing test, or a line that nobody needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
LUA = Path("django_delayq/store/lua")


#: One kind of server; a test that hangs has noticed too.
#: And not the test that compares this list with the scripts: it would notice everything.
SELECTION = (
    "-k",
    "redis7 or every_range_has_a_limit",
    "-o",
    "timeout=60",
    "--ignore=tests/store/test_mutations.py",
)
#: A write that a full Redis refuses when it comes first.
REFUSED = "redis.call('HINCRBY', META, 'x', 1)"


class Mutation(NamedTuple):
    """One text of one script, and what stands there instead."""

    script: str
    old: str
    new: str


MUTATIONS = [
    # The fence
    Mutation("shared/leases", "~= ARGV[first + (i - 1) * step + 1] then", "== nil then"),
    Mutation("shared/leases", "elseif not deadlines[i] or seen[ids[i]] then", "elseif seen[ids[i]] then"),
    Mutation("shared/leases", "elseif not deadlines[i] or seen[ids[i]] then", "elseif not deadlines[i] then"),
    Mutation("shared/leases", "if not entry then word = 'GONE'", "if not entry then word = 'LEASE_LOST'"),
    Mutation("reclaim", ".. string.rep('\\0', 16) ..", ".. string.sub(entry, 17, 32) .."),
    # Time
    Mutation("shared/times", "math.ceil(NOW_US / 1000) +", "NOW +"),
    Mutation("shared/partition", "math.floor(NOW_US / 1000)", "math.ceil(NOW_US / 1000)"),
    Mutation("shared/times", "assert(due and due % 1 == 0 and due < 2 ^ 48 and due, 'a due time is not a whole number')", "due"),
    Mutation("shared/times", "due % 1 == 0 and", ""),
    Mutation("shared/times", "due < 2 ^ 48 and", ""),
    Mutation("shared/times", "due + tonumber(string.sub(expires, 2))", "NOW + tonumber(string.sub(expires, 2))"),
    Mutation("shared/grant", "expires_at <= NOW", "expires_at < 0"),
    Mutation("reclaim", "'-inf', NOW,", "'-inf', '+inf',"),
    Mutation("reclaim", "(crashes - 1) * backoff", "crashes * backoff"),
    Mutation("shared/expiry", "% 2 == 0 then", "% 2 == 1 then"),
    # Limits
    Mutation("shared/due", "'LIMIT', 0, limit)", "'LIMIT', 0, -1)"),
    Mutation("shared/due", "while #ids < limit do", "while true do"),
    Mutation("reclaim", "'LIMIT', 0, limit)", "'LIMIT', 0, -1)"),
    Mutation("purge", "'LIMIT', 0, limit)", "'LIMIT', 0, -1)"),
    Mutation("shared/read", "if #records > 0 and bytes > limit then return records, entries end", ""),
    Mutation("shared/read", "if #records > 0 and bytes", "if bytes"),
    Mutation("shared/read", " + #(tried[i] or '')", ""),
    Mutation("shared/read", "math.min(step * 8,", "math.max(step * 8,"),
    Mutation("shared/read", "if bytes >= limit then break end", ""),
    Mutation("cancel", "if bytes > MOST and #answers > 0 then break end", ""),
    Mutation("shift", "if bytes > MOST and #answers > 0 then break end", ""),
    Mutation("find", "if bytes > MOST and i > 1 then break end", ""),
    Mutation("list", "if #records < #ids then reply[1] = 1 end", ""),
    Mutation("reclaim", " or #records < #ids", ""),
    Mutation("list", "if limit == 0 then return {0} end", ""),
    # Order of writes on a full Redis
    Mutation("extend", "redis.call('ZREM', LEASED, unpack(mine))", ""),
    Mutation("reclaim", "redis.call('ZREM', LEASED,", f"{REFUSED} redis.call('ZREM', LEASED,"),
    Mutation("release", "redis.call('ZREM', LEASED,", f"{REFUSED} redis.call('ZREM', LEASED,"),
    Mutation("nack", "redis.call('ZREM', LEASED,", f"{REFUSED} redis.call('ZREM', LEASED,"),
    Mutation("ack", "redis.call('ZREM', LEASED,", f"{REFUSED} redis.call('ZREM', LEASED,"),
    Mutation("cancel", "local answers,", f"{REFUSED} local answers,"),
    Mutation("tombstone", "redis.call('HDEL', META, 'done:')", ""),
    Mutation("trim_finished", "redis.call('XDEL',", f"{REFUSED} redis.call('XDEL',"),
    Mutation(
        "enqueue",
        "if #records > 0 then redis.call('HSET'",
        "redis.call('HDEL', META, 'x') if #records > 0 then redis.call('HSET'",
    ),
    Mutation("enqueue_one", "redis.call('HSET',", "redis.call('HDEL', META, 'x') redis.call('HSET',"),
    # Something is forgotten
    Mutation("ack", "redis.call('HDEL', ATTEMPTS, unpack(done))\n", ""),
    Mutation("ack", "redis.call('HDEL', MESSAGES, unpack(done))\n", ""),
    Mutation("ack", "redis.call('ZREM', LEASED, unpack(done))\n", ""),
    Mutation("ack", "start_followers(done, moves, {})\n", ""),
    # Results and progress
    Mutation("ack", "  if entries[i] then\n    redis.call('XADD', RESULTS", "  if true then\n    redis.call('XADD', RESULTS"),
    Mutation("ack", "'MAXLEN', 1, ", ""),
    Mutation("ack", "    redis.call('EXPIRE', RESULTS[i], for_s)\n", ""),
    Mutation("progress", "if entries[1] then", "if true then"),
    Mutation("ended", "and entry[2][at + 1] == id", ""),
    Mutation("ended", "before = '(' .. entries[#entries][1]", ""),
    Mutation("ended", "for _ = 1, most, step do", "while true do"),
    Mutation("nack", "redis.call('HDEL', ATTEMPTS, id)\n", ""),
    Mutation("nack", "redis.call('HDEL', MESSAGES, id)\n", ""),
    Mutation("nack", "if not followed[id] then", "if true then"),
    Mutation("nack", "if counts == '0' then", "if counts == '1' then"),
    Mutation("release", "math.max(attempt - 1, 0)", "attempt"),
    Mutation("release", "if entry and not followed[id] then", "if entry then"),
    Mutation("put_off", "math.max(attempt - 1, 0)", "attempt"),
    Mutation("put_off", "if entry and not followed[id] then", "if entry then"),
    Mutation("put_off", "redis.call('ZREM', LEASED,", f"{REFUSED} redis.call('ZREM', LEASED,"),
    Mutation("put_off", "if since == 0 then", "if true then"),
    Mutation("put_off", "      since = NOW\n", ""),
    Mutation("put_off", "      entry = remember(entry, ARGV[i * 4])\n", ""),
    Mutation("put_off", " .. string.sub(entry, 39)", ""),
    Mutation("put_off", "park(moves)\n", ""),
    Mutation("shared/history", ".. string.rep('\\0', 6) ..", ".. string.sub(entry, 33, 38) .."),
    Mutation("reclaim", "crashes >= poison", "crashes > poison"),
    Mutation("reclaim", "if not followed[id] then", "if true then"),
    Mutation("cancel", "    redis.call('HDEL', ATTEMPTS, id)\n", ""),
    Mutation("cancel", "redis.call('ZREM', lane_of(record), id)\n", ""),
    Mutation("cancel", "not record or (due and not meant(record))", "not record"),
    Mutation("cancel", "if follower and meant(string.sub(follower, 7)) then", "if follower then"),
    Mutation("cancel", "<= before", "< before"),
    Mutation("cancel_running", "if redis.call('ZREM', LEASED, id) == 0 then", "if not record then"),
    Mutation("cancel_running", "return record and 'WAITING' or 'NOT_FOUND'", "return 'NOT_FOUND'"),
    Mutation("cancel_running", "local record, entry", f"{REFUSED} local record, entry"),
    Mutation("cancel_running", "redis.call('HDEL', ATTEMPTS, id)\n", ""),
    Mutation("cancel_running", "redis.call('HDEL', MESSAGES, id)\n", ""),
    Mutation("cancel_running", "  redis.call('HDEL', FOLLOWERS, id)\n", ""),
    Mutation("cancel_running", "if follower then", "if false then"),
    Mutation("cancel_running", "  cancelled = 2\n", ""),
    Mutation("cancel_running", "  redis.call('HINCRBY', META, 'enqueued', 1)\n", ""),
    Mutation("cancel_running", "make_room({id}, {entry}, {record}, moves)\n", ""),
    Mutation("cancel_running", "park(moves)\n", ""),
    Mutation("cancel_running", "redis.call('ZREM', WINDOWS, id)\n", ""),
    Mutation("cancel_running", '"outcome":"cancelled"', '"outcome":""'),
    Mutation("reschedule", "if before and #record >= 8 and", "if false and"),
    Mutation("reschedule", "> before then", ">= before then"),
    Mutation("reschedule", "struct.unpack('>I6', follower), string", "redis.call('ZSCORE', LEASED, id), string"),
    Mutation("shift", "~= stamp then", "== 0 then"),
    Mutation("shift", "due_in(score) == due and", "true and"),
    Mutation("shift", "elseif due_in(score) ~= to then", "elseif true then"),
    Mutation("shift", "elseif due ~= to then", "elseif false then"),
    Mutation("shift", "redis.call('HSET', MESSAGES, id, moved)", "moved = record"),
    Mutation("cancel", "      redis.call('HDEL', FOLLOWERS, id)\n", ""),
    Mutation("cancel", "      redis.call('HINCRBY', META, 'enqueued', 1)\n", ""),
    Mutation("purge", "redis.call('HDEL', ATTEMPTS, unpack(ids))\n", ""),
    Mutation("shared/followers", "redis.call('HDEL', FOLLOWERS, id)\n", ""),
    Mutation("shared/followers", "redis.call('HDEL', ATTEMPTS, id)\n", ""),
    Mutation("shared/followers", "if not again[id] then started", "if true then started"),
    Mutation("shared/lanes", "if not before or after < before then", "if true then"),
    Mutation("shared/lanes", "if not before or after < before then", "if not before then"),
    Mutation("shared/due", "redis.call('HDEL', ATTEMPTS, ids[i])\n", ""),
    Mutation("shared/due", "redis.call('HDEL', MESSAGES, ids[i])\n", ""),
    Mutation("shared/due", "score + (i - 1) * ageing < best_at", "score < best_at"),
    Mutation("shared/due", "if not records[i] then state", "if false then state"),
    # claim and enqueue
    Mutation("shared/grant", "redis.call('ZREM', lane, unpack(taken[i]))", "local _ = 0"),
    Mutation("claim", "if why ~= '' then return", "if false then return"),
    Mutation("shared/grant", "math.min(attempt + 1, 65535)", "attempt"),
    Mutation("shared/grant", "(before ~= never and before or first_claim)", "first_claim"),
    Mutation("shared/grant", "before ~= never and before", "before"),
    Mutation("shared/grant", "whole and struct.unpack('>I4', record, 16) or 60000", "struct.unpack('>I4', record, 16)"),
    Mutation("shared/grant", "ends[ttr] = ends[ttr] or text_of(NOW + ttr)", "ends[1] = ends[1] or text_of(NOW + ttr) ends[ttr] = ends[1]"),
    Mutation("enqueue", "redis.call('ZSCORE', LEASED, id) and 'FOLLOWS' or 'REPLACED'", "'REPLACED'"),
    Mutation("enqueue", "assert(not seen[id], 'an id occurs twice in one enqueue')", ""),
    Mutation("enqueue", "redis.call('ZREM', replaced[i], replaced[i + 1])\n", ""),
    Mutation("enqueue", "redis.call('HDEL', ATTEMPTS, replaced[i + 1])\n", ""),
    Mutation("enqueue", "(#records - #replaced) / 2", "#records / 2"),
    Mutation("enqueue_one", "if redis.call('HEXISTS', MESSAGES, id) == 1 then return nil end\n", ""),
    Mutation("enqueue_one", "redis.call('HSET', MESSAGES, id, record)\n", ""),
    Mutation("enqueue_one", "expires_of(expires, due)", "0"),
    Mutation("enqueue_one", "redis.call('ZADD', LANE, string.format('%d', due), id)", ""),
    Mutation("enqueue_one", "if not head or due < head then", "if true then"),
    Mutation("enqueue_one", "if not head or due < head then", "if not head then"),
    Mutation("enqueue_one", "if not head or due < head then", "if head and due < head then"),
    Mutation("enqueue_one", "if not head or due < head then", "if not head or due <= head then"),
    Mutation("enqueue_one", "redis.call('HINCRBY', META, 'enqueued', 1)\n", ""),
    Mutation("enqueue_one", "return NOW_US", "return 1"),
    # A pause that ends
    Mutation("shared/grant", "if till and till <= NOW then", "if till and till < NOW then"),
    Mutation("shared/grant", "if till and till <= NOW then", "if till and till <= NOW + 1 then"),
    Mutation("shared/grant", "if till and till <= NOW then", "if false then"),
    Mutation("shared/grant", "redis.call('HDEL', META, 'paused', 'paused_until')", "redis.call('HDEL', META, 'paused')"),
    Mutation("shared/grant", "redis.call('HDEL', META, 'paused', 'paused_until')", "local _ = 0"),
    Mutation("shared/grant", "redis.call('HDEL', META, 'paused',", f"{REFUSED} redis.call('HDEL', META, 'paused',"),
    Mutation("shared/grant", "held, till = false, nil", "held = false"),
    Mutation("shared/grant", "held, till = false, nil", "till = nil"),
    Mutation("claim", "return {NOW_US, till,", "return {NOW_US, '',"),
    # edit
    Mutation("edit", "if not record then", "if false then"),
    Mutation("edit", "elseif record ~= after and not score then", "elseif not score then"),
    Mutation("edit", "elseif record ~= after and not score then", "elseif false then"),
    Mutation("edit", "elseif record ~= after and record ~= before then", "elseif record ~= before then"),
    Mutation("edit", "lane_of(record)", "NORMAL"),
    Mutation("edit", "elseif record ~= after and record ~= before then", "elseif false then"),
    Mutation("edit", "redis.call('HSET', MESSAGES, id, after)\n", ""),
    Mutation("edit", "redis.call('HSET', MESSAGES, id, after)", "redis.call('HSET', ATTEMPTS, id, after)"),
    Mutation("edit", "redis.call('HSET', MESSAGES, id, after)\n", "redis.call('HSET', MESSAGES, id, after)\n"
        "redis.call('HINCRBY', META, 'wakeups', 1)\n"),
    # What is told of an end, and remembered of a durable one
    Mutation("shared/finish", ">= 128", ">= 256"),
    Mutation("shared/finish", "    redis.call('HSET', META, 'done:' .. id, string.sub(record, 1, 8))\n", ""),
    Mutation(
        "shared/finish",
        "'done:' .. id, string.sub(record, 1, 8)",
        "'done:' .. id, string.sub(record, 1, 7)",
    ),
    Mutation("shared/finish", "if not newest or struct", "if struct"),
    Mutation("shared/finish", "struct.unpack('>I8', newest) < struct.unpack('>I8', record)", "true"),
    Mutation("tombstone", "if detail == '' then", "if false then"),
    Mutation("shared/finish", "elseif archive == 'none' or", "elseif"),
    Mutation("shared/finish", "or archive == 'dead' and state ~= 'dead' then", "then"),
    Mutation("shared/finish", "archive == 'dead' and state ~= 'dead' then", "archive == 'dead' then"),
    Mutation("shared/grant", ">= tonumber(finished_limit) then", "> tonumber(finished_limit) then"),
    Mutation("shared/grant", "held = held or 'UNARCHIVED'", "held = 'UNARCHIVED'"),
    Mutation("shared/grant", "held = held or 'UNARCHIVED'", "held = held"),
    Mutation("shared/grant", "(old and string.sub(old, 33) or never)", "never"),
    Mutation("shared/grant", "(old and string.sub(old, 33) or never)", "(old and string.sub(old, 33) or '')"),
    Mutation("reclaim", "rep('\\0', 16) .. string.sub(entry, 33)", "rep('\\0', 16)"),
    Mutation(
        "reclaim",
        "  entry = remember(entry, string.format('{\"ended_ms\":%.0f,\"outcome\":\"crashed\"}', "
        "NOW))\n",
        "",
    ),
    Mutation("nack", "string.sub(remember(entries[i], detail), 3)", "string.sub(entries[i], 3)"),
    Mutation("shared/history", "if #history > 8192 then", "if false then"),
    Mutation("shared/history", "if #history > 8192 then", "if #history >= 8192 then"),
    Mutation("shared/history", "history = string.sub(history, -8193)", "history = string.sub(history, -8192)"),
    Mutation("shared/history", "history = string.sub(history, string.find(history, '\\n', 1, true) + 1)", ""),
    # Lives
    Mutation("shared/lives", "if record and string.sub(record, 1, 8) == stamp then return 'LIVE' end", ""),
    Mutation("shared/lives", "string.sub(record, 1, 8) == stamp then", "true then"),
    Mutation("shared/lives", "if string.sub(follower_of(id), 1, 8) == stamp then return 'LIVE' end", ""),
    Mutation("shared/lives", "'done:' .. id) == stamp and 'DONE'", "'done:' .. id) and 'DONE'"),
    Mutation("shared/lives", "return redis.call('HGET', META, 'done:' .. id) == stamp and 'DONE'", "return false"),
    Mutation("shared/finish", "finish('none', id, 'cancelled', record,", "finish('none', id, 'cancelled', '',"),
    Mutation("shared/accepting", "if word then return word == 'LIVE' and 'SAME' or word end", ""),
    Mutation("shared/accepting", "word == 'LIVE' and 'SAME' or word", "word"),
    Mutation("shared/accepting", "word == 'LIVE' and 'SAME' or word", "'SAME'"),
    Mutation("shared/accepting", "if how == 'replace' or", "if how ~= 'raise' or"),
    Mutation("shared/accepting", "if from_sql and follower_of(id) ~= '' then existing", "if false then existing"),
    Mutation("shared/accepting", "return from_sql and #existing >= 8 and", "return #existing >= 8 and"),
    Mutation("shared/accepting", "return from_sql and #existing >= 8 and", "return from_sql and"),
    Mutation(
        "shared/accepting",
        "struct.unpack('>I8', existing) > struct",
        "struct.unpack('>I8', existing) < struct",
    ),
    Mutation("shared/accepting", "string.sub(existing, 16) ~= string.sub(record, 16) or", ""),
    Mutation("shared/accepting", "or flags % 128 ~= others % 128 then", "then"),
    Mutation("shared/accepting", "or flags % 128 ~= others % 128 then", "or flags ~= others then"),
    Mutation("shared/accepting", "return from_sql and 'ADOPTED:'", "return false and 'ADOPTED:'"),
    Mutation("shared/followers", "if durable(old) and not durable(record) then", "if false then"),
    Mutation("shared/accepting", "flags % 128 + 128", "flags"),
    Mutation("shared/accepting", "assert(tonumber(stamp), 'not a stamp')", "tonumber(stamp)"),
    Mutation("enqueue", "if #adopted > 0 then redis.call('HSET', MESSAGES, unpack(adopted)) end", ""),
    Mutation("enqueue", "if old and durable(old) and not durable(record) then", "if false then"),
    Mutation("enqueue", "if old and durable(old) and not durable(record) then", "if old and durable(old) then"),
    Mutation("enqueue", "word == 'REPLACED' and existing or word == 'FOLLOWS'", "word == 'FOLLOWS'"),
    Mutation("enqueue", "or word == 'FOLLOWS' and follower_of(id)", ""),
    Mutation("shared/accepting", "or how == 'extend' or", "or"),
    Mutation("shared/accepting", "or how == 'earliest' then", "then"),
    Mutation("shared/choosing", "if not other or other % 1 ~= 0 or other >= HELD then return due end", ""),
    Mutation("shared/choosing", "or other % 1 ~= 0", ""),
    Mutation("shared/choosing", "or other >= HELD", ""),
    Mutation("shared/choosing", "if how == 'extend' then due = math.max", "if how == 'earliest' then due = math.max"),
    Mutation("shared/choosing", "if how == 'earliest' then due = math.min", "if how == 'extend' then due = math.min"),
    Mutation("shared/choosing", "if most and word == 'REPLACED' then", "if most then"),
    Mutation("shared/choosing", "math.min(due, first + most), first", "due, first"),
    Mutation("shared/choosing", "string.sub(entry, 11, 16) == string.rep('\\0', 6)", "true"),
    Mutation("shared/choosing", "if not entry then return math.floor", "if true then return math.floor"),
    Mutation("enqueue", "if first then put(waits, id, waiting_since(first)) end", ""),
    Mutation("enqueue", "if old and old ~= '' and", "if old and"),
    Mutation("enqueue", "and string.match(mode, '^[%w:]*') ~= 'replace' then", "then"),
    Mutation("enqueue", "string.match(mode, '^[%w:]*') ~= 'replace'", "mode ~= 'replace'"),
    Mutation("enqueue", "WINDOWS and is_repeated(mode) and 'REPEATED' or standing", "standing"),
    Mutation("enqueue", "record, due = expiring(record, chosen - due), chosen\n", "due = chosen\n"),
    Mutation("enqueue", "record, due = expiring(record, chosen - due), chosen\n", "record = expiring(record, chosen - due)\n"),
    Mutation("enqueue", "chosen and word .. ':' .. string.format('%.0f', chosen) or word", "word"),
    Mutation("tombstone", "if word then return word end", ""),
    Mutation("enqueue", "if word == 'OLDER' or word == 'DUPLICATE'", "if word == 'DUPLICATE'"),
    Mutation("enqueue", "string.sub(mode, 1, 4) == 'keep' and string.byte(when) == 64 then", "string.byte(when) == 64 then"),
    Mutation("enqueue", "mode, 1, 4) == 'keep' and string.byte(when) == 64 then", "mode, 1, 4) == 'keep' then"),
    Mutation("shared/rates", "redis.call('ZADD', TIMERS, sooner and 'LT' or 'CH', at", "redis.call('ZADD', TIMERS, at"),
    Mutation("shared/waiting", "look_at(limit, rule, full, 0, true)", "look_at(limit, rule, full, 0)"),
    Mutation("claim_limited", "if not next(rules) then forget_ended('[r', '(s') end\n", ""),
    # Windows
    Mutation("enqueue", "if WINDOWS and not word and not existing then", "if false then"),
    Mutation("enqueue", "if WINDOWS and not word and not existing then", "if WINDOWS and not word then"),
    Mutation("enqueue", "if WINDOWS and (not word or old) then", "if WINDOWS and not word then"),
    Mutation("enqueue", "if WINDOWS and (not word or old) then", "if WINDOWS then"),
    Mutation("shared/windows", "math.floor(stamp / 1000) + window", "NOW + window"),
    Mutation("enqueue", "note(windows)\n", ""),
    Mutation("shared/windows", "if not window_of(mode) or string", "if string"),
    Mutation("shared/windows", "or string.byte(when) == 64 or not", "or not"),
    Mutation("shared/windows", "or not goes_on(id) then", "then"),
    Mutation("shared/windows", "and 'SAME' or 'DUPLICATE'", "and 'DUPLICATE' or 'DUPLICATE'"),
    Mutation("shared/windows", "string.sub(record, 16)", "record"),
    Mutation("shared/windows", "or 0) > NOW", "or 0) > 0"),
    Mutation("shared/windows", "if call then put(windows, NOW + known, call) end\n", ""),
    Mutation("shared/windows", "return call and goes_on(call)", "return call"),
    Mutation("shared/windows", "'GT', ", ""),
    Mutation("shared/windows", "if #over > 0 then redis.call('ZREM', WINDOWS, unpack(over)) end\n", ""),
    Mutation("shared/windows", "'LIMIT', 0, limit)", "'LIMIT', 0, -1)"),
    Mutation("shared/windows", "'ZRANGE', WINDOWS, -1, -1,", "'ZRANGE', WINDOWS, 0, 0,"),
    Mutation("shared/windows", "redis.call('EXPIRE', WINDOWS,", "local _ = ("),
    Mutation("cancel", "if #free > 0 then redis.call('ZREM', WINDOWS, unpack(free)) end\n", ""),
    Mutation("purge", "    redis.call('ZREM', WINDOWS, unpack(ids))\n", ""),
    Mutation("shared/lives", "if done and struct.unpack('>I8', done) < struct", "if done and 0 < struct"),
    Mutation("tombstone", "redis.call('HINCRBY', META, 'cancelled', 1)\n", ""),
    Mutation("durable_status", "or 'MISSING'", "or 'DONE'"),
    # The archiver
    Mutation("trim_finished", "redis.call('HGET', META, done) == ARGV[at + 1] then", "true then"),
    Mutation("trim_finished", "for at = durable, #ARGV, 2 do", "for at = 1, 0 do"),
    Mutation("trim_finished", "redis.call('XDEL', FINISHED, unpack(entries))", ""),
    Mutation("trim_finished", "redis.call('XACK', FINISHED, group, unpack(entries))", ""),
    Mutation("trim_finished", "then wake('0') end", "then local _ = 0 end"),
    Mutation("trim_finished", "if before >= limit and left < limit then", "if left < limit then"),
    Mutation("trim_finished", "if before >= limit and left < limit then", "if before > limit and left < limit then"),
    Mutation("trim_finished", "if before >= limit and left < limit then", "if before >= limit then"),
    # load
    Mutation("load", "if found[1] and found[1] ~= fingerprint then return {'CHANGED', found[1]} end\n", ""),
    Mutation("load", "found[2] or string.format('%.0f', NOW)", "string.format('%.0f', NOW)"),
    Mutation("load", "if mark and not above(id, mark) then", "if false then"),
    Mutation("load", "if mark and not above(id, mark) then", "if mark and above(mark, id) then"),
    Mutation("load", "assert(i == 1 or above(id, ids[i - 1]), 'the ids of a load do not ascend')", ""),
    Mutation("load", "if record ~= '' then", "if true then"),
    Mutation("load", "'keep') or 'NEW'", "'replace') or 'NEW'"),
    Mutation("load", "if word == 'DUPLICATE' then word = 'KEPT' end", "if word == 'DUPLICATE' then word = 'NEW' end"),
    Mutation("load", "word == 'KEPT' and notes then", "word == 'KEPT' then"),
    Mutation("load", "word == 'KEPT' and notes then", "notes then"),
    Mutation("load", "if skipped < #ids then put(fence, split, ids[#ids]) end\n", ""),
    Mutation("load", "if skipped < #ids then put(fence, split, ids[#ids]) end", "put(fence, split, ids[#ids] or '')"),
    Mutation("load", "redis.call('HSET', FENCE, unpack(fence))\n", f"{REFUSED}\n"),
    Mutation("load", "if #records > 0 then redis.call('HSET', MESS", "redis.call('HDEL', META, 'x') "
        "if #records > 0 then redis.call('HSET', MESS"),
    Mutation("load", "park(moves)\n", ""),
    Mutation("load", "redis.call('HINCRBY', FENCE, string.lower(word), count)", "local _ = 0"),
    Mutation("load", "'task:' .. ARGV[at], ARGV[at + 1])", "'x', '')"),
    Mutation("load", "'enqueued', #records / 2)", "'enqueued', #records)"),
    Mutation("shared/order", "a1 > b1 or a1 == b1 and", "a1 > b1 or"),
    Mutation("shared/order", "(a2 > b2 or a2 == b2 and a3 > b3)", "(a2 > b2)"),
    Mutation("shared/order", "(a2 > b2 or a2 == b2 and a3 > b3)", "(a2 > b2 or a3 > b3)"),
    Mutation("shared/order", "return a1 > b1 or", "return"),
    # What an audit sees and mends
    Mutation("mend", "redis.call('HDEL', META, 'done:')", ""),
    Mutation("mend", "'no such damage')", "'?')"),
    Mutation("mend", "mode == 'mend' and 1 or 32", "32"),
    Mutation("mend", "if damaged and mode == 'mend' then", "if damaged then"),
    Mutation("mend", "if damaged and mode == 'mend' then", "if mode == 'mend' then"),
    Mutation("mend", "answer[1] = answer[1] + 1", "answer[1] = #ARGV - 3"),
    Mutation("mend", "'wrong_lane', 'lane_and_lease'", "'lane_and_lease'"),
    Mutation("shared/states", "leased = leases[i], ", ""),
    Mutation("shared/states", "follower = followers[i], ", ""),
    Mutation("shared/states", "state.lanes = state.lanes + 1", "state.lanes = 1"),
    Mutation("shared/states", "lane == lane_of(state.record) then", "true then"),
    Mutation("shared/states", "state.right or math.min(state.due or due, due)", "math.min(state.due or due, due)"),
    Mutation("shared/states", "state.right or math.min(state.due or due, due)", "state.right or due"),
    Mutation("shared/states", "{[state.id] = again and true or nil}", "{}"),
    Mutation("shared/states", "  redis.call('ZREM', LEASED, state.id)\n", ""),
    Mutation("shared/states", "  redis.call('HDEL', ATTEMPTS, state.id)\n", ""),
    Mutation("shared/states", "  redis.call('HINCRBY', META, 'dead', 1)\n", ""),
    Mutation("shared/damages", "return not s.record and placed(s) end", "return placed(s) end"),
    Mutation("shared/damages", "return not s.record and placed(s) end", "return not s.record end"),
    Mutation("shared/damages", "return holds(s, stamp) and not placed(s) end", "return holds(s, stamp) end"),
    Mutation("shared/damages", "return holds(s, stamp) and not placed(s) end", "return s.record and not placed(s) end"),
    Mutation("shared/damages", "struct.unpack('>I6', entry, 5) or 0", "0 or 0"),
    Mutation("shared/damages", "if at == 0 then", "if false then"),
    Mutation("shared/damages", "not s.leased and s.lanes > 1 end", "s.lanes > 1 end"),
    Mutation("shared/damages", "s.lanes == 1 and not s.right end", "s.lanes == 1 end"),
    Mutation("shared/damages", "not s.leased and s.lanes == 1 and not s.right", "s.lanes == 1 and not s.right"),
    Mutation("shared/damages", "MEND.two_lanes(s) leave_lanes(s) park", "MEND.two_lanes(s) park"),
    Mutation("shared/damages", "return s.record and s.leased and s.lanes > 0 end", "return s.leased end"),
    Mutation("shared/damages", "not s.record and not placed(s) and has_attempts(s)", "has_attempts(s)"),
    Mutation("shared/damages", "not s.record and not placed(s) and has_attempts(s)", "not s.record and has_attempts(s)"),
    Mutation("shared/damages", "return s.follower and not s.leased end", "return s.follower end"),
    Mutation("shared/damages", "start_follower(s, s.record)", "start_follower(s)"),
    Mutation("shared/damages", "return redis.call('HGET', META, 'done:' .. s.id) == stamp end", "return true end"),
    Mutation("shared/damages", "and not newer(s.record or '', stamp) and", "and"),
    Mutation("shared/damages", "and not newer(string.sub(s.follower or '', 7), stamp)", ""),
    Mutation("shared/damages", "return holds(s, stamp) and not s.leased end", "return holds(s, stamp) end"),
    Mutation("shared/damages", "return holds(s, stamp) and not s.leased end", "return s.record and not s.leased end"),
    Mutation("shared/damages", "redis.call('HDEL', MESSAGES, s.id) redis.call('HDEL', ATTEMPTS, s.id)", "redis.call('HDEL', MESSAGES, s.id)"),
    Mutation("shared/damages", "return s.record and not has_attempts(s) end", "return s.record end"),
    Mutation("shared/damages", "return s.record and not has_attempts(s) end", "return not has_attempts(s) end"),
    # Limits
    Mutation("claim_limited", "redis.call('ZREM', TIMERS, '')", ""),
    Mutation("claim_limited", "NOW - due > (rule", "NOW - due < (rule"),
    Mutation("claim_limited", "look_around(rules, 100)", ""),
    Mutation("claim_limited", "tried < 500 and bytes", "bytes"),
    Mutation("claim_limited", "    park(again)\n", ""),
    Mutation("claim_limited", "if count == few then late_at", "if false then late_at"),
    Mutation("claim_limited", "spend('release', release, count)", ""),
    Mutation("claim_limited", "spend('rate', interval, count)", ""),
    Mutation("claim_limited", "release and '(' .. border or '-inf'", "'-inf'"),
    Mutation("claim_limited", "if full and count == room then", "if full then"),
    Mutation("claim_limited", "redis.call('ZADD', LIMITS, 0, 'full')", "local _ = 0"),
    Mutation("claim_limited", "sooner(at)", "at"),
    Mutation("claim_limited", "then at = more_at elseif", "then at = at elseif"),
    Mutation("claim_limited", "math.min(late_at, first_after(border, 1))", "late_at"),
    Mutation("shared/pace", "room, more_at = count, step(from + count * interval)", "room, more_at = count, NOW"),
    Mutation("shared/pace", "most - running), look(), true", "most - running), NOW, true"),
    Mutation("shared/pace", "redis.call('ZCARD', LEASED) or 0", "0 or 0"),
    Mutation("shared/rates", "or 0, NOW - kept)", "or 0)"),
    Mutation("shared/rates", "math.max(100, math.floor(UNUSED / interval) * interval)", "UNUSED"),
    Mutation("shared/rates", "math.max(100, math.floor(UNUSED / interval) * interval)", "0"),
    Mutation("shared/rates", "(count - 1) * interval, name", "count * interval, name"),
    Mutation("shared/rates", "UNUSED - slowest", "UNUSED"),
    Mutation("shared/rates", "math.ceil(instant / STEP) * STEP", "NOW"),
    Mutation("shared/rates", "rule.most - redis.call('ZLEXCOUNT', LIMITS, running(limit))", "rule.most"),
    Mutation("shared/rates", "free), free < 1", "free), false"),
    Mutation("shared/rates", "'(r' .. limit .. string.rep('\\255', 17)", "'(s'"),
    Mutation("shared/waiting", "if not deadline then", "if false then"),
    Mutation("shared/waiting", "local another = first_due and first_due < due", "local another = false"),
    Mutation("shared/waiting", "if room > 0 then admit(limit, 1, moves) end", ""),
    Mutation("shared/waiting", "spend(limit, rule.interval, 1)", ""),
    Mutation("shared/waiting", "redis.call('ZADD', LIMITS, 0, 'r' .. limit .. id)", "local _ = 0"),
    Mutation("shared/waiting", "redis.call('ZADD', lane, HELD + due, id)", "local _ = 0"),
    Mutation("shared/waiting", "if late or expires_at", "if expires_at"),
    Mutation("shared/waiting", "    admit(limit, 1, moves)\n    return true", "    return true"),
    Mutation("shared/waiting", "not first or admitted < going", "false"),
    Mutation("shared/waiting", "or expires_at > 0 and expires_at <= NOW then", "then"),
    Mutation("shared/rates", "rule.interval and not full then", "false then"),
    Mutation("shared/rates", "from + ahead * rule.interval", "from"),
    Mutation("shared/waiting", "left = left - admitted", "left = 500"),
    Mutation("shared/waiting", "  park(moves)\n", ""),
    Mutation("shared/limits", "== HELD + due then", "~= 0 then"),
    Mutation("shared/limits", "    redis.call('ZREM', LIMITS, member)\n    move", "    move"),
    Mutation("shared/limits", "for _ = 1, 100 do", "for _ = 1, 1 do"),
    Mutation("edit", "if due < tonumber(score) then", "if false then"),
    Mutation("shared/limits", "local limit = mine[i] and limit_of", "local limit = limit_of"),
    Mutation("shared/limits", "== 1 then admit(limit, 1, moves) end", "== 1 then local _ = 0 end"),
    Mutation("shared/limits", "if redis.call('ZREM', LIMITS, 'full') == 1 then wake(0) end", ""),
    Mutation("shared/partition", "score >= HELD and score < 2 * HELD and score - HELD or score", "score"),
    Mutation("shared/due", "head < HELD and (", "("),
    Mutation("ack", "make_room(ids, entries, records, moves)\n", ""),
    Mutation("nack", "make_room(ids, entries, records, moves)\n", ""),
    Mutation("release", "make_room(ids, entries, records, moves)\n", ""),
    Mutation("put_off", "make_room(ids, entries, records, moves)\n", ""),
    Mutation("reclaim", "make_room(ids, ids, records, moves)\n", ""),
    Mutation("list", "base + tonumber(after_due)", "base"),
    Mutation("stats", "ready + held", "ready"),
    Mutation("stats", "NOW - tonumber(string.match(oldest", "tonumber(string.match(oldest"),
    Mutation("forecast", "if holding then", "if false then"),
    # Looking
    Mutation("list", "<= hex(after_id)", "< hex(after_id)"),
    Mutation("list", "'(' .. score)", "score)"),
    Mutation("find", "due <= NOW and 'ready' or 'delayed'", "'ready'"),
    Mutation("leased_under", "string.sub(entry, 17, 32) == token", "true"),
    Mutation("forecast", "for _, lane in ipairs(LANES) do", "for _, lane in ipairs({NORMAL}) do"),
    Mutation("forecast", "'-inf', limit)", "NOW, limit)"),
    Mutation("forecast", "0, string.format('(%.0f', before)", "0, string.format('%.0f', before)"),
    Mutation("forecast", "= counts[i + 1] + count", "= count"),
    Mutation("forecast", "counts[i + 1] = counts", "counts[i] = counts"),
    Mutation("stats", "redis.call('ZCOUNT', lane, '-inf', NOW)", "redis.call('ZCARD', lane)"),
]  # fmt: skip


def stale(mutation: Mutation) -> bool:
    """Whether its text does not stand in its script (any more)."""
    script = ROOT / LUA / f"{mutation.script}.lua"
    return mutation.old not in (script.read_text(encoding="utf-8") if script.exists() else "")


def survives(mutation: Mutation) -> bool:
    """Whether the tests of the store pass in spite of it."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("django_delayq", "tests", "example_project", "pyproject.toml"):
            source = ROOT / part
            ignore = shutil.ignore_patterns("__pycache__", "*.sqlite3")
            (
                shutil.copytree(source, Path(folder, part), ignore=ignore)
                if source.is_dir()
                else shutil.copy(source, folder)
            )
        script = Path(folder, LUA, f"{mutation.script}.lua")
        text = script.read_text(encoding="utf-8")
        script.write_text(text.replace(mutation.old, mutation.new, 1), encoding="utf-8")
        # Those of the script itself come first: most mutations are noticed there. The state machine
        # takes as long as all others, and longer when it fails.
        own, machine = f"tests/store/test_{mutation.script}.py", "tests/store/test_state_machine.py"
        steps = ((own,), ("tests/store", f"--ignore={machine}"), (machine,))
        return all(_passes(step, folder) for step in steps if Path(folder, step[0]).exists())


def _passes(tests: tuple[str, ...], folder: str) -> bool:
    command = [sys.executable, "-m", "pytest", *tests, "-qx", "-p", "no:cacheprovider", *SELECTION]
    env = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    code = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False).returncode
    if code not in (0, 1, 5):
        raise RuntimeError(f"pytest ended with code {code}: {' '.join(command)}")
    return code != 1


def main() -> int:
    """Says which mutations survive; 0 when none does."""
    old = [mutation for mutation in MUTATIONS if stale(mutation)]
    for mutation in old:
        sys.stdout.write(f"stale: {mutation}\n")
    if old:
        return 2
    survivors, width = 0, len(MUTATIONS)
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        for done, (mutation, alive) in enumerate(
            zip(MUTATIONS, pool.map(survives, MUTATIONS), strict=True), 1
        ):
            survivors += alive
            if alive:
                sys.stdout.write(f"nobody noticed: {mutation}\n")
            elif done % 20 == 0:
                sys.stdout.write(f"{done} of {width}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{width - survivors} of {width} mutations were noticed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
