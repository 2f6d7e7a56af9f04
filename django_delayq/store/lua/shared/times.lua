-- Shared: due times, and when a message expires.

-- '+1500' is a delay, '1763632200123' an instant. Rounded up: never early.
local function due_of(when)
  if string.byte(when) == 43 then return math.ceil(NOW_US / 1000) + tonumber(string.sub(when, 2)) end
  return assert(tonumber(when), 'a due time is not a number')
end

-- '' is never (0), '+1500' counts from the due time, else an instant.
local function expires_of(expires, due)
  if expires == '' then return 0 end
  return string.byte(expires) == 43 and due + tonumber(string.sub(expires, 2)) or tonumber(expires)
end
