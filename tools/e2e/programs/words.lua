-- SPDX-License-Identifier: GPL-2.0 OR MIT
-- Closures, coroutines and tables: an interpreter's indirect jumps.
local function numbers(n)
	return coroutine.wrap(function()
		for i = 1, n do coroutine.yield(i) end
	end)
end
local sum, list = 0, {}
for i in numbers(60) do
	list[#list + 1] = i * 37 % 101
	sum = sum + #tostring(i)
end
table.sort(list, function(a, b) return a > b end)
local ok = pcall(function() error("caught") end)
print(sum, list[1], list[60], ok)
