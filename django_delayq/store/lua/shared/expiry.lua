-- Shared: the expiry of a message that gets another due time.

-- The record (with its stamp) of a message that is due `by` ms later: an expiry that counts from the due time moves too.
local function expiring(record, by)
  local expires_at = #record >= 23 and struct.unpack('>I6', record, 9) or 0
  if expires_at == 0 or math.floor(string.byte(record, 15) / 8) % 2 == 0 then return record end
  return string.sub(record, 1, 8) .. struct.pack('>I6', math.max(expires_at + by, 1)) .. string.sub(record, 15)
end
