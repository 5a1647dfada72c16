// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Firefox Profiler's format, which speedscope can read, too.
//!
//! The Firefox Profiler reads its processed format, which the crate `fxprof-processed-profile` writes. Of Firefox's formats, speedscope
//! reads only that of the old performance panel: a `profile` in a file whose `systemHost` is Firefox. A file here has both, because each
//! viewer ignores the data of the other. speedscope shows one thread: the one with the most spans.
//!
//! Both formats have samples, not spans. There is a sample wherever a span begins or ends. Its weight is the time up to the next one.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame as Label, FrameFlags, FrameHandle, FrameInfo, ProcessHandle,
    Profile, ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp,
};
use serde::ser::{Serialize, Serializer};
use serde_json::json;

use super::files::{Clock, Put, Sink, Thread};
use super::frames::{Frame, FrameId, GAP};

/// A stack in a [`Track`].
type StackId = u32;

/// A thread.
struct Track {
    handle: ThreadHandle,
    frames: HashMap<FrameId, (u32, FrameHandle)>,
    /// Names of the frames.
    locations: Vec<String>,
    stacks: HashMap<(Option<StackId>, u32), (StackId, StackHandle)>,
    /// The caller of each stack, and its innermost frame.
    calls: Vec<(Option<StackId>, u32)>,
    /// The spans that are open.
    open: Vec<(StackId, StackHandle)>,
    /// The places where a span begins or ends: the time, and the stack from there on.
    samples: Vec<(u64, Option<StackId>)>,
}

/// Writes this format when a file is closed.
pub(super) struct Firefox {
    clock: Clock,
    profile: Profile,
    processes: HashMap<u32, ProcessHandle>,
    tracks: HashMap<usize, Track>,
    start: Option<u64>,
    end: u64,
    /// Approximate length of the file, in bytes.
    size: u64,
}

/// Approximate length of a sample in both formats, in bytes.
const SAMPLE: u64 = 60;

impl Firefox {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            profile: Self::profile(clock),
            processes: HashMap::new(),
            tracks: HashMap::new(),
            start: None,
            end: 0,
            size: 0,
        }
    }

    fn profile(clock: Clock) -> Profile {
        let product = match clock {
            Clock::Time => "auxview",
            Clock::Instructions => "auxview (1 ns: 1 instruction)",
        };
        // perf's clock has no date.
        let start = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::ZERO);
        let mut profile = Profile::new(product, start, SamplingInterval::from_nanos(1));
        profile.set_symbolicated(true);
        profile
    }
}

fn at(time: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(time)
}

/// A function as both viewers read it: `NAME (FILE:LINE)`.
fn location(frame: &Frame) -> String {
    let kind = if frame.inlined { " [inlined]" } else { "" };
    match &frame.source {
        Some((file, line)) => format!("{}{kind} ({file}:{line})", frame.name),
        None => format!("{}{kind} (in {})", frame.name, frame.module),
    }
}

impl Track {
    fn frame(
        &mut self,
        id: FrameId,
        frame: &Frame,
        profile: &mut Profile,
        size: &mut u64,
    ) -> (u32, FrameHandle) {
        if let Some(found) = self.frames.get(&id) {
            return *found;
        }
        let text = match id {
            GAP => format!("{} (no function)", frame.name),
            _ => location(frame),
        };
        let label = profile.intern_string(&text);
        let info = FrameInfo {
            frame: Label::Label(label),
            category_pair: CategoryHandle::OTHER.into(),
            flags: FrameFlags::empty(),
        };
        let number = u32::try_from(self.locations.len()).unwrap_or(u32::MAX);
        let handle = profile.intern_frame(self.handle, info);
        *size += 2 * u64::try_from(text.len()).unwrap_or(0) + 100;
        self.locations.push(text);
        self.frames.insert(id, (number, handle));
        (number, handle)
    }

    /// The stack of a frame that the innermost span calls.
    fn call(
        &mut self,
        (number, frame): (u32, FrameHandle),
        profile: &mut Profile,
        size: &mut u64,
    ) -> (StackId, StackHandle) {
        let parent = self.open.last().copied();
        let key = (parent.map(|(id, _)| id), number);
        if let Some(found) = self.stacks.get(&key) {
            return *found;
        }
        let id = StackId::try_from(self.calls.len()).unwrap_or(StackId::MAX);
        let parent = parent.map(|(_, handle)| handle);
        let handle = profile.intern_stack(self.handle, parent, frame);
        self.calls.push(key);
        self.stacks.insert(key, (id, handle));
        *size += 60;
        (id, handle)
    }

    /// Adds the last sample to the profile: its end is known now.
    fn sample(&self, end: u64, profile: &mut Profile) {
        const MAX_WEIGHT: u64 = 2_000_000_000;
        let Some(&(mut from, stack)) = self.samples.last() else {
            return;
        };
        let handle = stack.and(self.open.last()).map(|(_, handle)| *handle);
        loop {
            let weight = end.saturating_sub(from).min(MAX_WEIGHT);
            let count = i32::try_from(weight).unwrap_or(i32::MAX);
            let delta = CpuDelta::from_nanos(weight);
            profile.add_sample(self.handle, at(from), handle, delta, count);
            from += weight;
            if from >= end {
                break;
            }
        }
    }
}

impl Sink for Firefox {
    fn open(&mut self, _: &mut dyn Write) -> io::Result<()> {
        *self = Self::new(self.clock);
        Ok(())
    }

    fn thread(&mut self, number: usize, thread: &Thread, _: &mut dyn Write) -> io::Result<()> {
        let Thread { pid, tid, name } = thread;
        let profile = &mut self.profile;
        let process = *self
            .processes
            .entry(*pid)
            .or_insert_with(|| profile.add_process(name, *pid, at(0)));
        if pid == tid {
            self.profile.set_process_name(process, name);
        }
        if let Some(track) = self.tracks.get(&number) {
            self.profile.set_thread_name(track.handle, name);
            return Ok(());
        }
        let handle = self.profile.add_thread(process, *tid, at(0), pid == tid);
        self.profile.set_thread_name(handle, name);
        let track = Track {
            handle,
            frames: HashMap::new(),
            locations: Vec::new(),
            stacks: HashMap::new(),
            calls: Vec::new(),
            open: Vec::new(),
            samples: Vec::new(),
        };
        self.size += 1000;
        self.tracks.insert(number, track);
        Ok(())
    }

    fn put(
        &mut self,
        put: Put,
        _: &Thread,
        frame: Option<&Frame>,
        _: &mut dyn Write,
    ) -> io::Result<()> {
        let start = *self.start.get_or_insert(put.time);
        let Some(track) = self.tracks.get_mut(&put.track) else {
            return Ok(());
        };
        // Another thread may have begun earlier; the viewers want no time below 0.
        let time = put.time.saturating_sub(start);
        self.end = self.end.max(time);
        track.sample(time, &mut self.profile);
        match (put.begins, frame) {
            (Some(id), Some(frame)) => {
                let frame = track.frame(id, frame, &mut self.profile, &mut self.size);
                let stack = track.call(frame, &mut self.profile, &mut self.size);
                track.open.push(stack);
            }
            _ => drop(track.open.pop()),
        }
        track
            .samples
            .push((time, track.open.last().map(|(id, _)| *id)));
        self.size += SAMPLE;
        Ok(())
    }

    fn waiting(&self) -> u64 {
        self.size
    }

    fn close(&mut self, out: &mut dyn Write) -> io::Result<()> {
        for track in self.tracks.values() {
            track.sample(self.end, &mut self.profile);
        }
        let busiest = self
            .tracks
            .iter()
            .max_by_key(|(number, track)| (track.samples.len(), usize::MAX - **number));
        let file = Both {
            profile: Old {
                threads: busiest.map(|(_, track)| track).into_iter().collect(),
            },
            duration: millis(self.end),
            system_host: Host { name: "Firefox" },
            processed: &self.profile,
        };
        serde_json::to_writer(&mut *out, &file)?;
        *self = Self::new(self.clock);
        Ok(())
    }

    fn end_size(&self) -> u64 {
        SAMPLE
    }
}

/// Milliseconds as a number of JSON, which is a float: it is exact below 2^53 ns, 104 days.
fn millis(time: u64) -> f64 {
    Duration::from_nanos(time).as_secs_f64() * 1000.0
}

/// The whole file.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Both<'a> {
    system_host: Host,
    duration: f64,
    profile: Old<'a>,
    #[serde(flatten)]
    processed: &'a Profile,
}

#[derive(serde::Serialize)]
struct Host {
    name: &'static str,
}

#[derive(serde::Serialize)]
struct Old<'a> {
    threads: Vec<&'a Track>,
}

/// A table: its rows, and the numbers of its columns.
#[derive(serde::Serialize)]
struct Table<D> {
    schema: serde_json::Value,
    data: D,
}

/// The rows of the samples. They are not copied, because there are too many.
struct Samples<'a>(&'a [(u64, Option<StackId>)]);

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(|(time, stack)| (stack, millis(*time))))
    }
}

impl Serialize for Track {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;

        let frames: Vec<_> = (0..self.locations.len()).map(|n| [n]).collect();
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("name", "GeckoMain")?;
        map.serialize_entry(
            "samples",
            &Table {
                schema: json!({"stack": 0, "time": 1}),
                data: Samples(&self.samples),
            },
        )?;
        map.serialize_entry(
            "stackTable",
            &Table {
                schema: json!({"prefix": 0, "frame": 1}),
                data: &self.calls,
            },
        )?;
        map.serialize_entry(
            "frameTable",
            &Table {
                schema: json!({"location": 0}),
                data: &frames,
            },
        )?;
        map.serialize_entry("stringTable", &self.locations)?;
        map.end()
    }
}
