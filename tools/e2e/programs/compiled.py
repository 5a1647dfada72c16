# SPDX-License-Identifier: GPL-2.0 OR MIT
# A loop that PyPy compiles, with an exit that it compiles later.
def total(count, values):
    result = 0
    for i in range(count):
        if i % 7 == 3:
            result += len(values)
        else:
            result = (result * 3 + i) % 65521
    return result

values = []
for i in range(60):
    values.append(total(60, values))
print(sorted(values)[:4], sum(values))
