# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Prints the spans of a file in the Firefox Profiler's format: a line of time, thread and name for each begin, and of time and thread for
# each end. Times are in nanoseconds since the file's first span. With `old` they are those of the part that speedscope takes.

import json
import sys

with open(sys.argv[1]) as file:
    profile = json.load(file)

is_old = "old" in sys.argv
for thread in (profile["profile"] if is_old else profile)["threads"]:
    if is_old:
        stacks = thread["stackTable"]["data"]
        strings = thread["stringTable"]
        frame = lambda stack: strings[thread["frameTable"]["data"][stacks[stack][1]][0]]
        prefix = lambda stack: stacks[stack][0]
        samples = [(time, stack, None) for stack, time in thread["samples"]["data"]]
        tid = 0
    else:
        stacks, functions = thread["stackTable"], thread["funcTable"]
        strings = thread.get("stringArray") or profile["shared"]["stringArray"]
        frame = lambda stack: strings[functions["name"][thread["frameTable"]["func"][stacks["frame"][stack]]]]
        prefix = lambda stack: stacks["prefix"][stack]
        columns = thread["samples"]
        times = columns.get("time")
        if times is None:
            times, now = [], 0
            for delta in columns["timeDeltas"]:
                now += delta
                times.append(now)
        samples = list(zip(times, columns["stack"], columns["weight"]))
        tid = thread["tid"]
    before = []
    end = None
    for time, stack, weight in samples:
        nanoseconds = round(time * 1e6)
        # A sample lasts up to the next one.
        assert end is None or end == nanoseconds, f"a sample ends at {end}, and the next begins at {nanoseconds}"
        end = None if weight is None else nanoseconds + weight
        now = []
        while stack is not None:
            now.append((stack, frame(stack)))
            stack = prefix(stack)
        now.reverse()
        same = 0
        while same < min(len(now), len(before)) and now[same] == before[same]:
            same += 1
        for _ in before[same:]:
            print(nanoseconds, tid)
        for _, name in now[same:]:
            print(nanoseconds, tid, name.rsplit(" (", 1)[0])
        before = now
    assert not before, "a span is not ended"
