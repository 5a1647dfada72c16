# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Prints the slices of a file in Perfetto's format as ../perfetto.py does, but reads it with Perfetto's own classes.

import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

trace = Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())
assert trace.packet, "a file without packets"
names, threads, depth = {}, {}, {}
for packet in trace.packet:
    for entry in packet.interned_data.event_names:
        names[entry.iid] = entry.name
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        if track.HasField("thread"):
            threads[track.uuid] = track.thread.tid
            depth[track.uuid] = 0
    if not packet.HasField("track_event"):
        continue
    event = packet.track_event
    track = event.track_uuid
    if event.type == TrackEvent.TYPE_SLICE_BEGIN:
        print(packet.timestamp, threads[track], names[event.name_iid])
        depth[track] += 1
    else:
        assert event.type == TrackEvent.TYPE_SLICE_END, event
        print(packet.timestamp, threads[track])
        depth[track] -= 1
        assert depth[track] >= 0, "an end without a begin"
assert not any(depth.values()), "a slice is not ended"
