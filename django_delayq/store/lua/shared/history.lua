-- Shared: what is remembered of a run.

-- An attempts entry with one more line of history behind its 32 bytes: the newest 8 KiB of whole lines.
local function remember(entry, line)
  local history = string.sub(entry, 33) .. line .. '\n'
  if #history > 8192 then
    history = string.sub(history, -8193) -- with the end of the line before them
    history = string.sub(history, string.find(history, '\n', 1, true) + 1)
  end
  return string.sub(entry, 1, 32) .. history
end
