-- Shared: due times.

-- '+1500' is a delay, '1763632200123' an instant. Rounded up: never early.
local function due_of(when)
  if string.byte(when) == 43 then return math.ceil(NOW_US / 1000) + tonumber(string.sub(when, 2)) end
  return assert(tonumber(when), 'a due time is not a number')
end
