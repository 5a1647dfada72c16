// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Perfetto's format: the messages of `perfetto_trace.proto` that spans need, with their field numbers. Fields that are missing here have
//! their defaults.

use std::collections::HashSet;
use std::io::{self, Write};

use prost::Message;

use super::files::{Clock, Put, Sink, Thread};
use super::frames::{Frame, FrameId};

/// A file is a series of packets: a message with this one repeated field.
#[derive(Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
    #[prost(bool, optional, tag = "87")]
    first_packet_on_sequence: Option<bool>,
}

#[derive(Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Message)]
struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    tid: Option<i64>,
    #[prost(string, optional, tag = "5")]
    thread_name: Option<String>,
}

#[derive(Message)]
struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    category_iids: Vec<u64>,
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(uint64, optional, tag = "34")]
    source_location_iid: Option<u64>,
}

#[derive(Message)]
struct InternedData {
    #[prost(message, repeated, tag = "1")]
    event_categories: Vec<EventCategory>,
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<EventName>,
    #[prost(message, repeated, tag = "4")]
    source_locations: Vec<SourceLocation>,
}

#[derive(Message)]
struct EventCategory {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Message)]
struct EventName {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Message)]
struct SourceLocation {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    file_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    function_name: Option<String>,
    #[prost(uint32, optional, tag = "4")]
    line_number: Option<u32>,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INCREMENTAL_STATE_CLEARED: u32 = 1;
const NEEDS_INCREMENTAL_STATE: u32 = 2;
/// All packets are of one writer.
const SEQUENCE: u32 = 1;

/// Categories of functions. The number of a category is its index in this list plus 1.
const CATEGORIES: [&str; 3] = ["function", "inlined", "lost"];

/// Writes Perfetto's format.
pub(super) struct Perfetto {
    clock: Clock,
    /// Functions whose names are in the file.
    named: HashSet<FrameId>,
    processes: HashSet<u32>,
}

impl Perfetto {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            named: HashSet::new(),
            processes: HashSet::new(),
        }
    }

    fn packet(packet: TracePacket, out: &mut dyn Write) -> io::Result<()> {
        let trace = Trace {
            packet: vec![TracePacket {
                trusted_packet_sequence_id: Some(SEQUENCE),
                ..packet
            }],
        };
        out.write_all(&trace.encode_to_vec())
    }
}

/// The track of a thread. Bits 32 and 33 distinguish it from the tracks of processes.
fn thread_track(number: usize) -> u64 {
    1 << 32 | u64::try_from(number).unwrap_or(u64::MAX)
}

fn process_track(pid: u32) -> u64 {
    2 << 32 | u64::from(pid)
}

/// Converts the number of a process or thread, which is positive.
fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Sink for Perfetto {
    fn open(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.named.clear();
        self.processes.clear();
        let categories = (1..).zip(CATEGORIES).map(|(iid, name)| EventCategory {
            iid: Some(iid),
            name: Some(name.to_owned()),
        });
        let packet = TracePacket {
            sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
            first_packet_on_sequence: Some(true),
            interned_data: Some(InternedData {
                event_categories: categories.collect(),
                ..InternedData::default()
            }),
            ..TracePacket::default()
        };
        Self::packet(packet, out)
    }

    fn thread(&mut self, number: usize, thread: &Thread, out: &mut dyn Write) -> io::Result<()> {
        let name = match self.clock {
            Clock::Time => thread.name.clone(),
            Clock::Instructions => format!("{} (1 ns: 1 instruction)", thread.name),
        };
        if thread.pid == thread.tid || self.processes.insert(thread.pid) {
            self.processes.insert(thread.pid);
            let process = TrackDescriptor {
                uuid: Some(process_track(thread.pid)),
                process: Some(ProcessDescriptor {
                    pid: Some(signed(thread.pid)),
                    process_name: Some(name.clone()),
                }),
                ..TrackDescriptor::default()
            };
            let packet = TracePacket {
                track_descriptor: Some(process),
                ..TracePacket::default()
            };
            Self::packet(packet, out)?;
        }
        let descriptor = TrackDescriptor {
            uuid: Some(thread_track(number)),
            parent_uuid: Some(process_track(thread.pid)),
            thread: Some(ThreadDescriptor {
                pid: Some(signed(thread.pid)),
                tid: Some(thread.tid.into()),
                thread_name: Some(name),
            }),
            ..TrackDescriptor::default()
        };
        let packet = TracePacket {
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        };
        Self::packet(packet, out)
    }

    fn put(
        &mut self,
        put: Put,
        _: &Thread,
        frame: Option<&Frame>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut event = TrackEvent {
            kind: Some(SLICE_END),
            track_uuid: Some(thread_track(put.track)),
            ..TrackEvent::default()
        };
        let mut interned = None;
        if let (Some(id), Some(frame)) = (put.begins, frame) {
            // The number 0 means none.
            let iid = u64::from(id) + 1;
            event.kind = Some(SLICE_BEGIN);
            event.name_iid = Some(iid);
            event.source_location_iid = frame.source.as_ref().map(|_| iid);
            event.category_iids = vec![match (id, frame.inlined) {
                (super::frames::GAP, _) => 3,
                (_, true) => 2,
                _ => 1,
            }];
            if self.named.insert(id) {
                let source = frame.source.iter().map(|(file, line)| SourceLocation {
                    iid: Some(iid),
                    file_name: Some(file.clone()),
                    function_name: Some(frame.name.clone()),
                    line_number: Some(*line),
                });
                interned = Some(InternedData {
                    event_names: vec![EventName {
                        iid: Some(iid),
                        name: Some(frame.name.clone()),
                    }],
                    source_locations: source.collect(),
                    ..InternedData::default()
                });
            }
        }
        let packet = TracePacket {
            timestamp: Some(put.time),
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            track_event: Some(event),
            interned_data: interned,
            ..TracePacket::default()
        };
        Self::packet(packet, out)
    }

    fn close(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn end_size(&self) -> u64 {
        40
    }
}
