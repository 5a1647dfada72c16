// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From buffers into files: a thread for each CPU.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::dat::{self, Head};
use crate::error::{Error, Result};
use crate::events::Named;
use crate::header::PageHeader;
use crate::pages::Pages;
use crate::ring::Ring;
use crate::subbuf::SubBuffer;
use crate::sys::Bytes;
use crate::tracefs::{Stats, Tracefs};

/// How long a thread waits for a buffer, until it looks whether the recording is over.
const WAIT: Duration = Duration::from_millis(100);

/// What was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events that were written to the file.
    pub events: u64,
    /// Events that the kernel overwrote, or did not take, meanwhile.
    pub lost: u64,
}

/// Buffers of an instance, and the files into which they are read.
#[derive(Debug)]
pub struct Recorder {
    tracefs: Tracefs,
    header: PageHeader,
    cpus: Vec<Cpu>,
}

#[derive(Debug)]
struct Cpu {
    cpu: u32,
    ring: Ring,
    /// [`None`] once they are complete.
    pages: Option<Pages<File>>,
    part: Part,
    /// Events that were read since the recording should end.
    last: u64,
    /// The counters when it began.
    before: Stats,
}

/// A file beside another, removed when it is dropped.
#[derive(Debug)]
struct Part {
    path: PathBuf,
}

impl Part {
    fn new(beside: &Path, cpu: u32) -> Result<(Self, File)> {
        let mut path = beside.as_os_str().to_owned();
        path.push(format!(".cpu{cpu}"));
        let path = PathBuf::from(path);
        let file = create(&path)?;
        Ok((Self { path }, file))
    }

    fn open(&self) -> Result<File> {
        File::open(&self.path).map_err(|e| self.failed(&e))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::failed(format!("{}: {error}", self.path.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // A file that cannot be removed does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a file that only its owner reads: a trace may have secrets of all users.
fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.mode(0o600).open(path);
    file.map_err(|e| Error::failed(format!("cannot write {}: {e}", path.display())))
}

impl Recorder {
    /// Opens the buffers of these CPUs. What is read goes into files beside `path` until [`Recorder::stop`].
    ///
    /// # Errors
    /// If a buffer can neither be mapped nor read, or a file cannot be made.
    pub fn new(tracefs: &Tracefs, cpus: &[u32], path: &Path) -> Result<Self> {
        let header = tracefs.page_header()?;
        let cpus = cpus.iter().map(|&cpu| {
            let (part, file) = Part::new(path, cpu)?;
            Ok(Cpu {
                cpu,
                ring: Ring::open(tracefs.cpu_file(cpu, "trace_pipe_raw"), header)?,
                pages: Some(Pages::new(file, header)),
                part,
                last: 0,
                before: tracefs.stats(cpu)?,
            })
        });
        Ok(Self {
            tracefs: tracefs.clone(),
            header,
            cpus: cpus.collect::<Result<_>>()?,
        })
    }

    /// Why the buffers are not mapped, if they are not.
    #[must_use]
    pub fn not_mapped(&self) -> Option<&Error> {
        match &self.cpus.first()?.ring {
            Ring::Mapped(_) => None,
            Ring::Read(_, why) => Some(why),
        }
    }

    /// Reads until `end`, and then what the buffers have at that time. With `drain`, it ends when they are empty.
    ///
    /// # Errors
    /// If a buffer makes no sense, or a file cannot be written.
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

    /// Closes the buffers.
    ///
    /// # Errors
    /// If a file cannot be written, or the counters cannot be read.
    pub fn stop(self) -> Result<Recorded> {
        let Self {
            tracefs,
            header,
            cpus,
        } = self;
        let cpus = cpus.into_iter().map(|mut cpu| {
            let stats = tracefs.stats(cpu.cpu)?;
            let since = |of: fn(&Stats) -> u64| of(&stats).saturating_sub(of(&cpu.before));
            let (events, lost) = (since(|stats| stats.read_events), since(lost));
            let len = cpu.finish()?;
            Ok(Taken {
                cpu: cpu.cpu,
                header,
                part: cpu.part,
                len,
                events,
                lost,
            })
        });
        Ok(Recorded {
            cpus: cpus.collect::<Result<_>>()?,
            tracefs,
            header,
        })
    }
}

/// What was recorded of all CPUs. The files are removed when it is dropped.
#[derive(Debug)]
pub struct Recorded {
    tracefs: Tracefs,
    header: PageHeader,
    cpus: Vec<Taken>,
}

/// What was recorded of a CPU.
#[derive(Debug)]
pub struct Taken {
    cpu: u32,
    header: PageHeader,
    part: Part,
    len: u64,
    events: u64,
    lost: u64,
}

impl Recorded {
    /// Each CPU.
    #[must_use]
    pub fn cpus(&self) -> &[Taken] {
        &self.cpus
    }

    /// All together.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let add = |sum: Summary, cpu: &Taken| Summary {
            events: sum.events.saturating_add(cpu.events),
            lost: sum.lost.saturating_add(cpu.lost),
        };
        self.cpus.iter().fold(Summary::default(), add)
    }

    /// Writes a `trace.dat`, which knows these events.
    ///
    /// # Errors
    /// If tracefs does not say what belongs into it, or it cannot be written.
    pub fn write_dat<'a>(
        &self,
        top: &Tracefs,
        events: impl IntoIterator<Item = &'a Named>,
        path: &Path,
    ) -> Result<()> {
        let head = Head::new(top, &self.tracefs, events, self.header)?;
        let last = self.cpus.iter().map(|cpu| cpu.cpu).max().unwrap_or(0);
        let mut cpus: Vec<(Option<File>, u64)> = Vec::new();
        for cpu in 0..=last {
            match self.cpus.iter().find(|other| other.cpu == cpu) {
                Some(cpu) => cpus.push((Some(cpu.part.open()?), cpu.len)),
                None => cpus.push((None, 0)),
            }
        }
        let mut out = BufWriter::new(create(path)?);
        dat::write(&mut out, &head, &mut cpus)
    }
}

impl Taken {
    /// Its number.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// How many events were recorded.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How many the kernel overwrote, or did not take, meanwhile.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Calls `each` with each sub-buffer, in their order.
    ///
    /// # Errors
    /// If one cannot be read, or the error of `each`.
    pub fn each<E: From<Error>>(
        &self,
        mut each: impl FnMut(SubBuffer<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut file = BufReader::new(self.part.open()?);
        let mut page = vec![0; self.header.subbuf_size()];
        let size = u64::try_from(page.len()).unwrap_or(u64::MAX);
        for _ in 0..self.len / size {
            file.read_exact(&mut page)
                .map_err(|e| self.part.failed(&e))?;
            each(SubBuffer::parse(&self.header, Bytes::from(&*page))?)?;
        }
        Ok(())
    }
}

impl Cpu {
    fn run(&mut self, tracefs: &Tracefs, end: &AtomicBool, drain: bool) -> Result<()> {
        loop {
            // Who sets it has turned the events off, or wants no later ones.
            let last = end.load(Ordering::Acquire);
            let most = if last {
                tracefs.stats(self.cpu)?.entries
            } else {
                u64::MAX
            };
            self.take(most, end, last)?;
            if last || drain {
                return Ok(());
            }
            self.ring.wait(Some(WAIT))?;
        }
    }

    /// Reads what there is; of the `last`, no more than `most` events and the rest of their sub-buffer.
    fn take(&mut self, most: u64, end: &AtomicBool, last: bool) -> Result<()> {
        let Some(pages) = &mut self.pages else {
            return Ok(());
        };
        while self.last < most && (last || !end.load(Ordering::Acquire)) {
            let Some(mut reader) = self.ring.reader()? else {
                break;
            };
            let failed = |e| Error::failed(format!("cannot write the events of a CPU: {e}"));
            pages.push(&reader.raw()).map_err(failed)?;
            // Only what must end is counted: the kernel counts all.
            if last {
                for event in reader.by_ref() {
                    event?;
                    self.last += 1;
                }
            }
            reader.verify()?;
        }
        Ok(())
    }

    /// Ends the file; its length.
    fn finish(&mut self) -> Result<u64> {
        let Some(pages) = self.pages.take() else {
            return Ok(0);
        };
        let (_, len) = pages.finish().map_err(|e| self.part.failed(&e))?;
        Ok(len)
    }
}

/// How many events a CPU's buffer has lost.
fn lost(stats: &Stats) -> u64 {
    stats.overrun + stats.dropped_events + stats.commit_overrun
}
