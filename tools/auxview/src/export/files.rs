// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes spans into files of a size that viewers accept. When a file is full, the open spans end in it and begin again in the next one.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::frames::{Frame, FrameId, Frames};
use crate::error::{Error, Result};

/// The unit of the times of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Nanoseconds of perf's clock.
    Time,
    /// Number of instructions that were followed.
    Instructions,
}

/// Default length of a file, in bytes: less than viewers accept.
pub const PIECE: u64 = 64 << 20;

/// Minimum length of a file, in bytes. Smaller files would have little but repeated spans.
pub const PIECE_MIN: u64 = 64 << 10;

/// A thread, as viewers show it.
#[derive(Debug, Clone)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) name: String,
}

/// An event of a track.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put {
    pub(super) track: usize,
    pub(super) time: u64,
    /// The function that begins. [`None`] if the innermost one ends.
    pub(super) begins: Option<FrameId>,
}

/// Writes a format.
pub(super) trait Sink {
    /// Begins a file.
    fn open(&mut self, out: &mut dyn Write) -> io::Result<()>;

    /// Adds a thread, or renames one that now runs another program.
    fn thread(&mut self, number: usize, thread: &Thread, out: &mut dyn Write) -> io::Result<()>;

    /// Begins or ends a span. The times of a track do not decrease.
    fn put(
        &mut self,
        put: Put,
        thread: &Thread,
        frame: Option<&Frame>,
        out: &mut dyn Write,
    ) -> io::Result<()>;

    /// Number of bytes that [`close`](Self::close) would write if the file ended here.
    fn waiting(&self) -> u64 {
        0
    }

    /// Ends the file.
    fn close(&mut self, out: &mut dyn Write) -> io::Result<()>;

    /// Maximum length of the end of a span, in bytes.
    fn end_size(&self) -> u64;
}

/// Where spans are written.
pub(super) enum Target {
    Files { path: PathBuf, piece: u64 },
    Stream(Box<dyn Write>),
}

/// A span that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) frame: FrameId,
    /// Whether the span around it ends with it.
    pub(super) joined: bool,
}

#[derive(Debug)]
struct Track {
    thread: Thread,
    open: Vec<Open>,
    last: u64,
}

/// Divides spans into files.
pub(super) struct Files {
    target: Target,
    sink: Box<dyn Sink>,
    out: Option<Counted>,
    names: Vec<PathBuf>,
    tracks: Vec<Track>,
    /// Number of open spans in all tracks.
    open: u64,
    /// Whether the file has more than spans of the one before.
    filled: bool,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("names", &self.names)
            .field("tracks", &self.tracks)
            .finish_non_exhaustive()
    }
}

/// A file, and how much was written.
struct Counted {
    out: Box<dyn Write>,
    count: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.out.write(bytes)?;
        self.count = self.count.saturating_add(u64::try_from(len).unwrap_or(0));
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Files {
    pub(super) fn new(target: Target, sink: Box<dyn Sink>) -> Self {
        Self {
            target,
            sink,
            out: None,
            names: Vec::new(),
            tracks: Vec::new(),
            open: 0,
            filled: false,
        }
    }

    /// The files that were written.
    pub(super) fn names(self) -> Vec<PathBuf> {
        self.names
    }

    /// Number of open spans in a track.
    pub(super) fn depth(&self, track: usize) -> usize {
        self.tracks.get(track).map_or(0, |track| track.open.len())
    }

    /// Adds thread `number`, or renames it if it now runs another program.
    pub(super) fn thread(
        &mut self,
        number: usize,
        (pid, tid): (u32, u32),
        name: &str,
    ) -> Result<()> {
        let thread = Thread {
            pid,
            tid,
            name: if name.is_empty() { "?" } else { name }.to_owned(),
        };
        match self.tracks.get_mut(number) {
            Some(track) => track.thread = thread.clone(),
            None => self.tracks.push(Track {
                thread: thread.clone(),
                open: Vec::new(),
                last: 0,
            }),
        }
        self.write(|sink, out| sink.thread(number, &thread, out))
    }

    /// Begins a span.
    pub(super) fn begin(
        &mut self,
        track: usize,
        time: u64,
        open: Open,
        frames: &Frames,
    ) -> Result<()> {
        self.put(track, time, Some(open.frame), frames)?;
        if let Some(track) = self.tracks.get_mut(track) {
            track.open.push(open);
            self.open += 1;
        }
        self.part(frames)
    }

    /// Ends the innermost span, and those that end with it.
    pub(super) fn end(&mut self, track: usize, time: u64, frames: &Frames) -> Result<()> {
        while let Some(open) = self
            .tracks
            .get_mut(track)
            .and_then(|track| track.open.pop())
        {
            self.open -= 1;
            self.put(track, time, None, frames)?;
            if !open.joined {
                break;
            }
        }
        self.part(frames)
    }

    fn put(
        &mut self,
        number: usize,
        time: u64,
        begins: Option<FrameId>,
        frames: &Frames,
    ) -> Result<()> {
        let Some(track) = self.tracks.get_mut(number) else {
            return Ok(());
        };
        track.last = time;
        self.filled = true;
        let thread = track.thread.clone();
        let put = Put {
            track: number,
            time,
            begins,
        };
        let frame = begins.and_then(|id| frames.get(id));
        self.write(|sink, out| sink.put(put, &thread, frame, out))
    }

    /// Begins the next file if this one is full.
    fn part(&mut self, frames: &Frames) -> Result<()> {
        let Target::Files { piece, .. } = &self.target else {
            return Ok(());
        };
        let written = self.out.as_ref().map_or(0, |out| out.count);
        let ends = self.open.saturating_mul(self.sink.end_size());
        let size = [self.sink.waiting(), ends]
            .iter()
            .fold(written, |sum, more| sum.saturating_add(*more));
        // Each file must have more than the open spans of the one before.
        if size < *piece || !self.filled {
            return Ok(());
        }
        self.end_all(frames)?;
        self.close()?;
        for number in 0..self.tracks.len() {
            let Some(track) = self.tracks.get(number) else {
                continue;
            };
            let (thread, last, open) = (track.thread.clone(), track.last, track.open.clone());
            self.write(|sink, out| sink.thread(number, &thread, out))?;
            for open in open {
                self.put(number, last, Some(open.frame), frames)?;
            }
        }
        self.filled = false;
        Ok(())
    }

    /// Ends all spans in this file. They stay open for the next one.
    fn end_all(&mut self, frames: &Frames) -> Result<()> {
        for number in 0..self.tracks.len() {
            let track = self.tracks.get(number);
            let (open, last) = track.map_or((0, 0), |track| (track.open.len(), track.last));
            for _ in 0..open {
                self.put(number, last, None, frames)?;
            }
        }
        Ok(())
    }

    /// Ends all spans and the last file.
    pub(super) fn finish(&mut self, frames: &Frames) -> Result<()> {
        self.end_all(frames)?;
        self.close()
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Sink, &mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        if self.out.is_none() {
            self.create()?;
        }
        let Some(out) = &mut self.out else {
            return Ok(());
        };
        write(&mut *self.sink, out).map_err(|e| self.failed(&e))
    }

    fn failed(&self, e: &io::Error) -> Error {
        match self.names.last() {
            Some(name) => Error::failed(format!("cannot write {}: {e}", name.display())),
            None => Error::failed(format!("cannot write the spans: {e}")),
        }
    }

    /// Opens the next file. The first one of several gets its number when there is a second.
    fn create(&mut self) -> Result<()> {
        let out: Box<dyn Write> = match &mut self.target {
            Target::Stream(out) => std::mem::replace(out, Box::new(io::sink())),
            Target::Files { path, .. } => {
                if let [first] = &mut self.names[..] {
                    let to = numbered(path, 1);
                    fs::rename(&first, &to).map_err(|e| {
                        let (from, to) = (first.display(), to.display());
                        Error::failed(format!("cannot rename {from} to {to}: {e}"))
                    })?;
                    *first = to;
                }
                let name = match self.names.len() {
                    0 => path.clone(),
                    count => numbered(path, count + 1),
                };
                let file = File::create(&name)
                    .map_err(|e| Error::failed(format!("cannot create {}: {e}", name.display())))?;
                self.names.push(name);
                Box::new(file)
            }
        };
        let mut out = Counted {
            out: Box::new(BufWriter::new(out)),
            count: 0,
        };
        let opened = self.sink.open(&mut out);
        self.out = Some(out);
        opened.map_err(|e| self.failed(&e))
    }

    fn close(&mut self) -> Result<()> {
        let Some(mut out) = self.out.take() else {
            return Ok(());
        };
        let closed = self.sink.close(&mut out).and_then(|()| out.flush());
        closed.map_err(|e| self.failed(&e))
    }
}

/// `path.number`
fn numbered(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}
