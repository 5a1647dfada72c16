# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Prints what perf's export-to-sqlite.py has written to a file: `branches`, or `calls` with their depths."""

import sqlite3
import sys

BRANCHES = "SELECT ip, to_ip FROM samples WHERE ip != 0 AND to_ip != 0 ORDER BY id"
# Where a trace begins or ends there is a call in the table, and no instruction that calls.
CALLS = """SELECT calls.call_path_id, symbols.name FROM calls
    JOIN samples ON samples.id = calls.call_id
    JOIN branch_types ON branch_types.id = samples.branch_type
    JOIN call_paths ON call_paths.id = calls.call_path_id
    JOIN symbols ON symbols.id = call_paths.symbol_id
    WHERE branch_types.name = 'call' ORDER BY calls.call_id"""

what, name = sys.argv[1:]
database = sqlite3.connect(name)
if what == "branches":
    for ip, to in database.execute(BRANCHES):
        print(f"{ip:x} in it => {to:x}")
else:
    parents = dict(database.execute("SELECT id, parent_id FROM call_paths"))
    for path, symbol in database.execute(CALLS):
        depth = 0
        while path := parents[path]:
            depth += 1
        print("\t" + "    " * depth + symbol)
