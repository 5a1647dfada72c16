// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records buffers into files, with one thread per CPU.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::dat::{self, Data, Head};
use crate::error::{Error, Result};
use crate::events::Named;
use crate::header::PageHeader;
use crate::stream::Stream;
use crate::subbuf::SubBuffer;
use crate::sys::Bytes;
use crate::tracefs::{Stats, Tracefs};

/// Maximum time that a thread waits for its buffer before it checks whether the recording has ended.
const WAIT: Duration = Duration::from_millis(100);

/// Time that a thread waits for a sub-buffer to fill, if the buffer is ready without a full sub-buffer.
const FILL: Duration = Duration::from_millis(10);

/// Bytes by which the head may grow during the recording: names of tasks and symbols of modules are added.
const MORE_HEAD: u64 = 256 << 10;

/// Numbers of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events that were written to the file.
    pub events: u64,
    /// Events that the kernel overwrote or dropped during the recording.
    pub lost: u64,
}

/// Reads buffers of an instance into files.
#[derive(Debug)]
pub struct Recorder {
    tracefs: Tracefs,
    header: PageHeader,
    cpus: Vec<Cpu>,
    /// Files of the instance that [`Recorder::reserve`] has saved.
    own: Option<Head>,
}

#[derive(Debug)]
struct Cpu {
    cpu: u32,
    stream: Stream,
    part: Part,
    /// The counters at the start of the recording.
    before: Stats,
}

/// A temporary file for the sub-buffers of a CPU, in the directory of the output file. Its name is unique, and it is removed when the value
/// is dropped. Only its owner can read it, since a trace may have secrets of all users.
#[derive(Debug)]
struct Part {
    file: NamedTempFile,
    /// Offset of the first sub-buffer, in bytes.
    at: u64,
    len: u64,
}

impl Part {
    fn new(beside: &Path, cpu: u32) -> Result<Self> {
        let name = beside.file_name().unwrap_or_default();
        let mut prefix = name.to_owned();
        prefix.push(format!(".cpu{cpu}."));
        let dir = match beside.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new().prefix(&prefix).tempfile_in(dir);
        let file = file
            .map_err(|e| Error::failed(format!("cannot write beside {}: {e}", beside.display())))?;
        Ok(Self {
            file,
            at: 0,
            len: 0,
        })
    }

    /// The file, positioned at the first sub-buffer.
    fn start(&self) -> Result<&File> {
        let mut file = self.file.as_file();
        let sought = file.seek(SeekFrom::Start(self.at));
        sought.map_err(|e| self.failed(&e))?;
        Ok(file)
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::failed(format!("{}: {error}", self.file.path().display()))
    }
}

/// Creates the output file. Only its owner can read it, like a [`Part`].
fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.mode(0o600).open(path);
    file.map_err(|e| Error::failed(format!("cannot write {}: {e}", path.display())))
}

impl Recorder {
    /// Opens the buffers of these CPUs. Their events are recorded into temporary files in the directory of `path`.
    ///
    /// # Errors
    /// If a buffer cannot be opened, or a file cannot be created.
    pub fn new(tracefs: &Tracefs, cpus: &[u32], path: &Path) -> Result<Self> {
        let header = tracefs.page_header()?;
        let cpus = cpus.iter().map(|&cpu| {
            let part = Part::new(path, cpu)?;
            let raw = tracefs.cpu_file(cpu, "trace_pipe_raw");
            let stream = Stream::open(raw, header, true)?;
            stream.enlarge();
            Ok(Cpu {
                cpu,
                stream,
                part,
                before: tracefs.stats(cpu)?,
            })
        });
        Ok(Self {
            tracefs: tracefs.clone(),
            header,
            cpus: cpus.collect::<Result<_>>()?,
            own: None,
        })
    }

    /// Reserves space for the head of a `trace.dat` in front of the first CPU's events, so that [`Recorded::write_dat`] need not copy them.
    /// `head` is the current head, which may still grow.
    ///
    /// # Errors
    /// If a part of the head is too large for the format.
    pub fn reserve(&mut self, head: &Head) -> Result<()> {
        let page = u64::try_from(self.header.subbuf_size()).unwrap_or(u64::MAX);
        let last = self.cpus.iter().map(|cpu| cpu.cpu).max().unwrap_or(0);
        let count = usize::try_from(last)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let len = dat::head_len(head, count)?;
        // Save these: the kernel may remove the instance before the end.
        self.own = Some(Head {
            header_page: head.header_page.clone(),
            header_event: head.header_event.clone(),
            clock: head.clock.clone(),
            ..Head::default()
        });
        if let Some(Cpu { part, .. }) = self.cpus.first_mut() {
            if part.len == 0 {
                part.at = (len + MORE_HEAD).next_multiple_of(page);
                part.start()?;
            }
        }
        Ok(())
    }

    /// Records until `end` is set, and then the events that the buffers have at that time. With `drain`, it ends when the buffers are
    /// empty.
    ///
    /// # Errors
    /// If a buffer cannot be read, or a file cannot be written.
    pub fn run(&mut self, end: &AtomicBool, drain: bool) -> Result<()> {
        let tracefs = &self.tracefs;
        let done = thread::scope(|scope| {
            let run = |cpu| scope.spawn(move || Cpu::run(cpu, tracefs, end, drain));
            let threads: Vec<_> = self.cpus.iter_mut().map(run).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
                let panicked = |_| Err(Error::failed("a thread that reads a buffer panicked"));
                thread.join().unwrap_or_else(panicked)
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        done.into_iter().collect()
    }

    /// Ends the recording, and reads the counters of the buffers.
    ///
    /// # Errors
    /// If a file cannot be written, or the counters cannot be read.
    pub fn stop(self) -> Result<Recorded> {
        let Self {
            tracefs,
            header,
            cpus,
            own,
        } = self;
        let mut gone = false;
        let cpus = cpus.into_iter().map(|cpu| {
            let stats = match tracefs.stats(cpu.cpu) {
                // The kernel has removed the instance: all events are read, and nothing writes new ones.
                Err(Error::Gone(_)) => {
                    gone = true;
                    cpu.before.drained()
                }
                stats => stats?,
            };
            let since = |of: fn(&Stats) -> u64| of(&stats).saturating_sub(of(&cpu.before));
            let (events, lost) = (since(|stats| stats.read_events), since(lost));
            Ok(Taken {
                cpu: cpu.cpu,
                header,
                part: cpu.part,
                events,
                lost,
            })
        });
        let cpus = cpus.collect::<Result<_>>()?;
        Ok(Recorded {
            cpus,
            tracefs,
            header,
            gone: own.filter(|_| gone),
        })
    }
}

/// The recorded events of all CPUs. Their temporary files are removed when the value is dropped.
#[derive(Debug)]
pub struct Recorded {
    tracefs: Tracefs,
    header: PageHeader,
    cpus: Vec<Taken>,
    /// Saved files of the instance, if the kernel has removed it.
    gone: Option<Head>,
}

/// The recorded events of a CPU.
#[derive(Debug)]
pub struct Taken {
    cpu: u32,
    header: PageHeader,
    part: Part,
    events: u64,
    lost: u64,
}

impl Recorded {
    /// The recorded events of each CPU.
    #[must_use]
    pub fn cpus(&self) -> &[Taken] {
        &self.cpus
    }

    /// The sum over all CPUs.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let add = |sum: Summary, cpu: &Taken| Summary {
            events: sum.events.saturating_add(cpu.events),
            lost: sum.lost.saturating_add(cpu.lost),
        };
        self.cpus.iter().fold(Summary::default(), add)
    }

    /// Writes a `trace.dat` with the formats of these events.
    ///
    /// # Errors
    /// If tracefs lacks a file that belongs into the head, or the output cannot be written.
    pub fn write_dat<'a>(
        &self,
        top: &Tracefs,
        events: impl IntoIterator<Item = &'a Named>,
        path: &Path,
    ) -> Result<()> {
        let head = match &self.gone {
            None => Head::new(top, &self.tracefs, events, self.header)?,
            Some(own) => Head {
                header_page: own.header_page.clone(),
                header_event: own.header_event.clone(),
                clock: own.clock.clone(),
                // The counters of the top buffer are those of other events.
                stats: Vec::new(),
                ..Head::new(top, top, events, self.header)?
            },
        };
        let last = self.cpus.iter().map(|cpu| cpu.cpu).max().unwrap_or(0);
        let count = usize::try_from(last)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let len = dat::head_len(&head, count)?;
        // If the head fits in front of a CPU's events, that CPU's file becomes the output.
        let mut parts = self.cpus.iter().map(|cpu| &cpu.part);
        let whole = parts.find(|part| len <= part.at && replaceable(path));
        let mut cpus = Vec::new();
        for cpu in 0..=last {
            let part = self.cpus.iter().find(|other| other.cpu == cpu);
            cpus.push(match part.map(|cpu| &cpu.part) {
                None => Data::None,
                Some(part) if whole.is_some_and(|whole| std::ptr::eq(whole, part)) => Data::There {
                    at: part.at,
                    len: part.len,
                },
                Some(part) => Data::Copied(part.start()?, part.len),
            });
        }
        let Some(part) = whole else {
            return dat::write(&mut BufWriter::new(create(path)?), &head, &mut cpus);
        };
        let mut file = part.file.as_file();
        file.rewind().map_err(|e| part.failed(&e))?;
        dat::write(&mut BufWriter::new(file), &head, &mut cpus)?;
        fs::rename(part.file.path(), path)
            .map_err(|e| Error::failed(format!("cannot write {}: {e}", path.display())))
    }
}

/// Whether a rename may replace this path: it is a regular file or does not exist, and is no device or link.
fn replaceable(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.is_file(),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

impl Taken {
    /// Number of the CPU.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Number of recorded events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Number of events that the kernel overwrote or dropped during the recording.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Calls `each` with each sub-buffer, in order.
    ///
    /// # Errors
    /// If a sub-buffer cannot be read, or `each` fails.
    pub fn each<E: From<Error>>(
        &self,
        mut each: impl FnMut(SubBuffer<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut file = BufReader::new(self.part.start()?);
        let mut page = vec![0; self.header.subbuf_size()];
        let size = u64::try_from(page.len()).unwrap_or(u64::MAX);
        for _ in 0..self.part.len / size {
            file.read_exact(&mut page)
                .map_err(|e| self.part.failed(&e))?;
            each(SubBuffer::parse(&self.header, Bytes::from(&*page))?)?;
        }
        Ok(())
    }
}

impl Cpu {
    fn run(&mut self, tracefs: &Tracefs, end: &AtomicBool, drain: bool) -> Result<()> {
        let (mut ready, mut parts) = (false, drain);
        loop {
            // The thread that sets `end` has turned the events off, or wants no events from after that time.
            let last = end.load(Ordering::Acquire);
            let until = if last {
                let stats = tracefs.stats(self.cpu)?;
                Some(gone(&stats).saturating_add(stats.entries))
            } else {
                None
            };
            let moved = self.take(tracefs, until, end, parts || last)?;
            if last || drain {
                return Ok(());
            }
            // A buffer can be ready without a whole sub-buffer: if buffer_percent is low, or if it is mapped on a kernel that then counts
            // no whole sub-buffers.
            parts = ready && !moved;
            ready = if parts {
                thread::sleep(FILL);
                false
            } else {
                self.stream.wait(Some(WAIT))?
            };
        }
    }

    /// Moves all available sub-buffers to the file; with `parts`, the writer's current sub-buffer too. Returns whether there were any.
    ///
    /// `until` is a number of events, counted from the first event of the buffer. Moving stops after the sub-buffer that has that event.
    fn take(
        &mut self,
        tracefs: &Tracefs,
        until: Option<u64>,
        end: &AtomicBool,
        parts: bool,
    ) -> Result<bool> {
        let mut any = false;
        let failed = |e| Error::failed(format!("cannot move the events of a CPU: {e}"));
        while until.is_some() || !end.load(Ordering::Acquire) {
            let mut moved = self
                .stream
                .move_to(self.part.file.as_file_mut())
                .map_err(failed)?;
            if moved == 0 && parts {
                moved = self
                    .stream
                    .read_to(self.part.file.as_file_mut())
                    .map_err(failed)?;
            }
            if moved == 0 {
                break;
            }
            any = true;
            self.part.len += u64::try_from(moved).unwrap_or(u64::MAX);
            if let Some(until) = until {
                if gone(&tracefs.stats(self.cpu)?) >= until {
                    break;
                }
            }
        }
        Ok(any)
    }
}

/// Number of events that are no longer in a CPU's buffer.
fn gone(stats: &Stats) -> u64 {
    stats.read_events.saturating_add(stats.overrun)
}

/// Number of events that a CPU's buffer has lost.
fn lost(stats: &Stats) -> u64 {
    let dropped = stats.dropped_events.saturating_add(stats.commit_overrun);
    stats.overrun.saturating_add(dropped)
}
