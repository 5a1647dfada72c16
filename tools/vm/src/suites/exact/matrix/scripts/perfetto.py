# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Prints the slices of files in Perfetto's format, one after the other: a line of time, thread and name for each begin, and of time and
# thread for each end. It reads the wire format of protocol buffers itself, with the numbers of perfetto_trace.proto.

import sys


def fields(data):
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 2:
            size = number()
            if at + size > len(data):
                raise ValueError("a field is cut")
            yield key >> 3, data[at:at + size]
            at += size
        else:
            raise ValueError(f"wire type {key & 7}")


for path in sys.argv[1:]:
    names, threads, open_slices = {}, {}, {}
    with open(path, "rb") as file:
        packets = fields(file.read())
    for kind, packet in packets:
        assert kind == 1, "not a packet"
        packet = dict(fields(packet))
        for kind, entry in fields(packet.get(12, b"")):
            entry = dict(fields(entry))
            if kind == 2:
                names[entry[1]] = entry[2].decode()
        track = dict(fields(packet.get(60, b"")))
        if 4 in track:
            threads[track[1]] = dict(fields(track[4]))[2]
        if 11 not in packet:
            continue
        event = dict(fields(packet[11]))
        track, time = event[11], packet[8]
        depth = open_slices.get(track, 0)
        if event[9] == 1:
            print(time, threads[track], names[event[10]])
            depth += 1
        else:
            assert event[9] == 2 and depth > 0, "an end without a begin"
            print(time, threads[track])
            depth -= 1
        open_slices[track] = depth
    assert not any(open_slices.values()), "a slice is not ended"
