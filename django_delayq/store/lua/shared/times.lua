-- Shared: due times, and when a message expires.

-- '+1500' is a delay, '1763632200123' an instant. Rounded up: never early. Whole, and not one that seems to be held back:
-- as text any other would be cut, and be early.
local function due_of(when)
  local due = tonumber(when)
  if string.byte(when) == 43 then due = math.ceil(NOW_US / 1000) + tonumber(string.sub(when, 2)) end
  return assert(due and due % 1 == 0 and due < 2 ^ 48 and due, 'a due time is not a whole number')
end

-- '' is never (0), '+1500' counts from the due time, else an instant.
local function expires_of(expires, due)
  if expires == '' then return 0 end
  return string.byte(expires) == 43 and due + tonumber(string.sub(expires, 2)) or tonumber(expires)
end
