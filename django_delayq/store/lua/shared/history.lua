-- Shared: what is remembered of a run.

-- The attempts entry of a message that has run, which puts an end to having been put off (the last 6 of its 38 bytes),
-- with one more line of history behind them: the newest 8 KiB of whole lines.
local function remember(entry, line)
  local history = string.sub(entry, 39) .. line .. '\n'
  if #history > 8192 then
    history = string.sub(history, -8193) -- with the end of the line before them
    history = string.sub(history, string.find(history, '\n', 1, true) + 1)
  end
  return string.sub(entry, 1, 32) .. string.rep('\0', 6) .. history
end
