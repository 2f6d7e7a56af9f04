-- Shared: the order of ids.

-- Whether id a comes after id b by their bytes. Lua compares texts in the server's locale; numbers are the same anywhere.
local function above(a, b)
  local a1, a2, a3 = struct.unpack('>I6I6I4', a)
  local b1, b2, b3 = struct.unpack('>I6I6I4', b)
  return a1 > b1 or a1 == b1 and (a2 > b2 or a2 == b2 and a3 > b3)
end
