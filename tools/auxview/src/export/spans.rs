// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Converts changes of call stacks to spans with times.
//!
//! Trace has times only at some packets. Between two of these without a gap, the time of an event is interpolated by the number of
//! instructions. After the last of these before tracing ends, an instruction takes as long as before, but at most a nanosecond: the trace
//! does not show how long the thread did not run.

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};

use super::files::{Clock, Files, Open};
use super::frames::{Frames, GAP};
use crate::error::Result;
use crate::flamegraph::calls::{Change, Event, Tree};
use crate::flamegraph::code::Code;
use crate::flamegraph::{Listener, Moment};

/// A thread: process, thread.
type Who = (u32, u32);

#[derive(Debug)]
struct Track {
    number: usize,
    program: usize,
    /// Changes since the last packet with a time.
    pending: Vec<Change>,
    /// The time of a packet, and the number of instructions before it.
    anchor: Option<(u64, u64)>,
    /// Number of instructions up to the last event or packet.
    executed: u64,
    /// Whether tracing has ended since then.
    off: bool,
    /// Nanoseconds and instructions between the last two packets with a time.
    pace: (u64, u64),
    /// Time of the last event.
    last: u64,
    /// Number of instructions of all threads when this one was last seen.
    until: u64,
    /// Number of open calls that are too deep to be shown.
    deeper: u64,
    /// Whether trace is missing here.
    gap: bool,
}

impl Track {
    fn new(number: usize, program: usize) -> Self {
        Self {
            number,
            program,
            pending: Vec::new(),
            anchor: None,
            executed: 0,
            off: false,
            pace: (1, 1),
            last: 0,
            until: 0,
            deeper: 0,
            gap: false,
        }
    }

    /// The time of an event. `next` is the time of the next packet, and the number of instructions before it.
    fn time(&self, executed: u64, next: Option<(u64, u64)>) -> u64 {
        let (start, before) = self.anchor.unwrap_or((self.last, executed));
        let count = executed.saturating_sub(before);
        let share = |time: u64, of: u64| {
            let time = u128::from(count) * u128::from(time) / u128::from(of.max(1));
            u64::try_from(time).unwrap_or(u64::MAX)
        };
        let paced = share(self.pace.0.min(self.pace.1), self.pace.1);
        let after = match next {
            Some((end, until)) => {
                let linear = share(end.saturating_sub(start), until.saturating_sub(before));
                match self.off {
                    true => paced.min(linear).min(end.saturating_sub(start)),
                    false => linear,
                }
            }
            None => paced,
        };
        start.saturating_add(after)
    }
}

/// The spans of all threads, on their way to files.
#[derive(Debug)]
pub(crate) struct Spans {
    to: To,
    tracks: HashMap<Who, Track>,
    /// Number of instructions of all threads.
    executed: u64,
}

/// Where spans are written.
#[derive(Debug)]
struct To {
    clock: Clock,
    frames: Frames,
    files: Files,
    /// Number of calls that are too deep to be shown.
    hidden: u64,
}

impl Spans {
    /// Maximum number of events of a thread that wait for the time of a packet.
    const PENDING_MAX: usize = 1024;
    /// Maximum depth of calls that are shown. Viewers do not show deeper ones: Perfetto has 512 levels.
    pub(super) const DEPTH_MAX: usize = 500;

    /// Source lines come from the files below `root`, if it is given.
    pub(super) fn new(clock: Clock, files: Files, root: Option<&Path>) -> Self {
        Self {
            to: To {
                clock,
                frames: Frames::new(root),
                files,
                hidden: 0,
            },
            tracks: HashMap::new(),
            executed: 0,
        }
    }

    /// The files that were written, and the number of calls that were too deep.
    pub(super) fn end(self) -> (Vec<PathBuf>, u64) {
        (self.to.files.names(), self.to.hidden)
    }
}

impl Listener for Spans {
    fn take(
        &mut self,
        moment: &Moment,
        name: &str,
        changes: Vec<Change>,
        tree: &Tree,
        code: &Code,
    ) -> Result<()> {
        let tracks = self.tracks.len();
        if !self.tracks.contains_key(&moment.who) {
            self.to.files.thread(tracks, moment.who, name)?;
        }
        let track = self
            .tracks
            .entry(moment.who)
            .or_insert_with(|| Track::new(tracks, moment.program));
        let mut work = Work {
            to: &mut self.to,
            tree,
            code,
        };
        if track.program != moment.program {
            // The calls of the program before end.
            work.end(track)?;
            work.to.files.thread(track.number, moment.who, name)?;
            (track.program, track.executed, track.anchor) = (moment.program, 0, None);
        }
        let before = self.executed;
        let first = track.executed;
        self.executed = before.saturating_add(moment.executed.saturating_sub(first));
        if work.to.clock == Clock::Instructions {
            for (executed, event) in changes {
                let time = before.saturating_add(executed.saturating_sub(first));
                work.event(track, time, &event)?;
            }
            (track.executed, track.until) = (moment.executed, self.executed);
            if track.gap && !moment.ends {
                work.resume(track, self.executed)?;
            }
            return Ok(());
        }
        // Tracing was off, or trace is missing: this is the time at which it begins again.
        let begins = track.off || track.gap;
        if let (Some(time), true) = (moment.time, begins) {
            work.flush(track, Some((time, first)))?;
            work.resume(track, time)?;
            track.anchor = Some((time, first));
            track.off = false;
        }
        for change in changes {
            if change.1 == Event::Lost {
                work.flush(track, None)?;
                work.event(track, track.last, &Event::Lost)?;
                continue;
            }
            if track.pending.len() == Self::PENDING_MAX {
                work.flush(track, None)?;
                track.anchor = Some((track.last, change.0));
            }
            track.pending.push(change);
        }
        track.executed = moment.executed;
        if let (Some(time), false) = (moment.time, begins) {
            if track.anchor.is_none() {
                // Events before the first time get that time.
                track.anchor = Some((time, moment.executed));
            }
            work.flush(track, Some((time, moment.executed)))?;
        }
        track.off = moment.ends;
        Ok(())
    }

    /// Ends all spans.
    fn finish(&mut self, tree: &Tree, code: &Code) -> Result<()> {
        let mut tracks: Vec<_> = self.tracks.values_mut().collect();
        tracks.sort_by_key(|track| track.number);
        for track in tracks {
            let mut work = Work {
                to: &mut self.to,
                tree,
                code,
            };
            work.end(track)?;
        }
        self.to.files.finish(&self.to.frames)
    }
}

/// What is needed to write the events of a track.
struct Work<'a> {
    to: &'a mut To,
    tree: &'a Tree,
    code: &'a Code,
}

impl Work<'_> {
    /// Writes the events that wait for the time of a packet. `next` is that time, and the number of instructions before the packet.
    fn flush(&mut self, track: &mut Track, next: Option<(u64, u64)>) -> Result<()> {
        if self.to.clock == Clock::Instructions {
            return Ok(());
        }
        let mut pending = mem::take(&mut track.pending);
        for (executed, event) in pending.drain(..) {
            let time = track.time(executed, next);
            self.event(track, time, &event)?;
        }
        track.pending = pending;
        if let Some((time, executed)) = next {
            if let (Some((start, before)), false) = (track.anchor, track.off) {
                let count = executed.saturating_sub(before);
                if count != 0 {
                    track.pace = (time.saturating_sub(start), count);
                }
            }
            track.anchor = Some((time, executed));
        }
        Ok(())
    }

    /// Writes an event, at a time not before the last event of the track.
    fn event(&mut self, track: &mut Track, time: u64, event: &Event) -> Result<()> {
        let time = time.max(track.last);
        self.resume(track, time)?;
        match event {
            Event::Begin(function, site) => {
                let inlined = match site {
                    Some(site) if track.deeper == 0 => self.to.frames.inlined(*site, self.code),
                    _ => Vec::new(),
                };
                let depth = self.to.files.depth(track.number) + inlined.len();
                if track.deeper != 0 || depth >= Spans::DEPTH_MAX {
                    track.deeper += 1;
                    self.to.hidden += 1;
                    return Ok(());
                }
                let frame = self.to.frames.function(function, self.tree, self.code);
                for (n, frame) in inlined.into_iter().chain([frame]).enumerate() {
                    let open = Open {
                        frame,
                        joined: n != 0,
                    };
                    self.to
                        .files
                        .begin(track.number, time, open, &self.to.frames)?;
                }
            }
            Event::End if track.deeper != 0 => track.deeper -= 1,
            Event::End => self.to.files.end(track.number, time, &self.to.frames)?,
            Event::Lost => {
                track.last = time;
                self.close(track)?;
                track.gap = true;
                let open = Open {
                    frame: GAP,
                    joined: false,
                };
                self.to
                    .files
                    .begin(track.number, time, open, &self.to.frames)?;
            }
        }
        track.last = time;
        Ok(())
    }

    /// Ends a gap: the trace continues.
    fn resume(&mut self, track: &mut Track, time: u64) -> Result<()> {
        if mem::take(&mut track.gap) {
            track.last = track.last.max(time);
            self.to
                .files
                .end(track.number, track.last, &self.to.frames)?;
        }
        Ok(())
    }

    /// Ends all spans of a track where its instructions end.
    fn end(&mut self, track: &mut Track) -> Result<()> {
        self.flush(track, None)?;
        let last = match self.to.clock {
            Clock::Instructions => track.until,
            Clock::Time => track.time(track.executed, None),
        };
        track.last = last.max(track.last);
        self.close(track)
    }

    /// Ends all spans of a track.
    fn close(&mut self, track: &mut Track) -> Result<()> {
        (track.gap, track.deeper) = (false, 0);
        while self.to.files.depth(track.number) != 0 {
            self.to
                .files
                .end(track.number, track.last, &self.to.frames)?;
        }
        Ok(())
    }
}
