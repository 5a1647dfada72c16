// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From buffers into files: a thread for each CPU.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom};
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
use crate::tracefs::Tracefs;

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
    events: u64,
    /// What was lost before.
    lost: u64,
}

/// A file beside another, removed when it is dropped.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    fn new(beside: &Path, cpu: u32) -> Result<Self> {
        let mut path = beside.as_os_str().to_owned();
        path.push(format!(".cpu{cpu}"));
        let path = PathBuf::from(path);
        let file = create(&path)?;
        Ok(Self { path, file })
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
    /// Opens the buffers of these CPUs. What is read goes into files beside `path` until [`Recorder::finish`].
    ///
    /// # Errors
    /// If a buffer can neither be mapped nor read, or a file cannot be made.
    pub fn new(tracefs: &Tracefs, cpus: &[u32], path: &Path) -> Result<Self> {
        let header = tracefs.page_header()?;
        let cpus = cpus.iter().map(|&cpu| {
            let part = Part::new(path, cpu)?;
            let file = part.file.try_clone();
            let file = file.map_err(|e| Error::failed(format!("{}: {e}", part.path.display())))?;
            Ok(Cpu {
                cpu,
                ring: Ring::open(tracefs.cpu_file(cpu, "trace_pipe_raw"), header)?,
                pages: Some(Pages::new(file, header)),
                part,
                events: 0,
                lost: lost(tracefs, cpu)?,
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

    /// Writes the file, which knows these events.
    ///
    /// # Errors
    /// If tracefs does not say what belongs into it, or it cannot be written.
    pub fn finish<'a>(
        mut self,
        top: &Tracefs,
        events: impl IntoIterator<Item = &'a Named>,
        path: &Path,
    ) -> Result<Summary> {
        let mut sum = Summary::default();
        let last = self.cpus.iter().map(|cpu| cpu.cpu).max().unwrap_or(0);
        let mut parts = Vec::new();
        for cpu in 0..=last {
            let Some(cpu) = self.cpus.iter_mut().find(|other| other.cpu == cpu) else {
                parts.push((None, 0));
                continue;
            };
            sum.events += cpu.events;
            sum.lost += lost(&self.tracefs, cpu.cpu)?.saturating_sub(cpu.lost);
            parts.push(cpu.finish()?);
        }
        let head = Head::new(top, &self.tracefs, events, self.header)?;
        let mut cpus = Vec::new();
        for (file, len) in parts {
            let data: Box<dyn io::Read> = match file {
                Some(file) => Box::new(file),
                None => Box::new(io::empty()),
            };
            cpus.push((data, len));
        }
        let mut out = BufWriter::new(create(path)?);
        dat::write(&mut out, &head, &mut cpus)?;
        Ok(sum)
    }
}

impl Cpu {
    fn run(&mut self, tracefs: &Tracefs, end: &AtomicBool, drain: bool) -> Result<()> {
        loop {
            // Who sets it has turned the events off, or wants no later ones.
            let last = end.load(Ordering::Acquire);
            let most = if last {
                let left = tracefs.stats(self.cpu)?.entries;
                self.events.saturating_add(left)
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

    /// Reads what there is, or until there are `most` events in all.
    fn take(&mut self, most: u64, end: &AtomicBool, last: bool) -> Result<()> {
        let Some(pages) = &mut self.pages else {
            return Ok(());
        };
        while self.events < most && (last || !end.load(Ordering::Acquire)) {
            let Some(mut reader) = self.ring.reader()? else {
                break;
            };
            let raw = reader.raw();
            let failed = |e| Error::failed(format!("cannot write the events of a CPU: {e}"));
            pages.push(&raw).map_err(failed)?;
            for event in reader.by_ref() {
                event?;
                self.events += 1;
            }
            reader.verify()?;
        }
        Ok(())
    }

    /// The file, from its beginning, and its length.
    fn finish(&mut self) -> Result<(Option<File>, u64)> {
        let failed = |e: io::Error| Error::failed(format!("{}: {e}", self.part.path.display()));
        let Some(pages) = self.pages.take() else {
            return Ok((None, 0));
        };
        let (mut file, len) = pages.finish().map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok((Some(file), len))
    }
}

/// How many events a CPU's buffer has lost.
fn lost(tracefs: &Tracefs, cpu: u32) -> Result<u64> {
    let stats = tracefs.stats(cpu)?;
    Ok(stats.overrun + stats.dropped_events + stats.commit_overrun)
}
