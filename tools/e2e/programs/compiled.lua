-- SPDX-License-Identifier: GPL-2.0 OR MIT
-- Loops that LuaJIT compiles, with exits that it compiles later, and its interpreter's indirect jumps.
local function sum(n, list)
	local s = 0
	for i = 1, n do
		if i % 7 == 3 then s = s + #list else s = (s * 3 + i) % 65521 end
	end
	return s
end
local list = {}
for i = 1, 30 do list[i] = sum(40, list) end
table.sort(list, function(a, b) return a > b end)
local each = coroutine.wrap(function() for _, v in ipairs(list) do coroutine.yield(v) end end)
local text = ""
for v in each do text = text .. string.char(97 + v % 26) end
print(text, pcall(error, "caught"))
