// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The readers of the rows, the threads that are traced, and a process that reads an AUX area until it is killed.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::ring::{AuxArea, Reader as Ring};
use auxrec::sys::{Count, Event};
use perfdata::Attr;
use rustix::io::Errno;
use rustix::thread::gettid;

use super::row::{Mode, Paused, Reader, Refused, Row, PAUSE, RESUME};
use crate::attack::{software, CPU_CLOCK};
use crate::events::probe::{bytes, map, Probe};
use crate::model::{Fault, Setup};
use crate::module::{self, counter};
use crate::recording::TraceFile;
use crate::stream;
use crate::wait::{wait_for, PATIENCE};
use crate::workload::{pin, spin};

/// How many bytes the refused rings of a row would leak together.
const LEAK: u64 = 64 << 20;
/// How long a silent event is enabled each time, in ns: 200 ticks.
const QUIET: u64 = 20_000_000;

/// How many times a slow reader reads.
const ROUNDS: usize = 3;

/// How many bytes a slow reader reads at a time. They are no whole number of packets.
pub(super) fn part(setup: &Setup) -> u64 {
    setup.ring / 2 + 40
}

/// Bytes of free memory.
fn free() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo has no MemFree")? * 1024)
}

/// A thread to trace.
pub struct Target {
    /// Its thread id.
    pub tid: i32,
    done: std::sync::Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Target {
    /// Starts a thread that computes alternately on the two CPUs. With `children`, it starts threads that do so.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(children: bool) -> Result<Self> {
        let done = std::sync::Arc::new(AtomicBool::new(false));
        let tid = std::sync::Arc::new(AtomicI32::new(0));
        let (theirs, reported) = (done.clone(), tid.clone());
        let thread = thread::spawn(move || {
            reported.store(gettid().as_raw_nonzero().get(), Ordering::Release);
            for cpu in [0, 1].into_iter().cycle() {
                if theirs.load(Ordering::Acquire) {
                    break;
                }
                let work = move || {
                    // If it cannot be moved, it computes on its current CPU.
                    let _ = pin(cpu);
                    spin(Duration::from_millis(3));
                };
                if children {
                    let _ = thread::spawn(work).join();
                } else {
                    work();
                }
            }
        });
        wait_for("the start of a thread", || {
            Ok(tid.load(Ordering::Acquire) != 0)
        })?;
        Ok(Self {
            tid: tid.load(Ordering::Acquire),
            done,
            thread: Some(thread),
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A process that reads a ring until it is killed. Its standard input is the event.
struct Recorder(Child);

impl Recorder {
    fn start(probe: &Probe, pages: usize, file: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(program)
            .args(["read", &pages.to_string()])
            .arg(file)
            .stdin(Stdio::from(probe.descriptor()?))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a reader")?;
        let child = Self(child);
        // It creates its file after it has mapped the ring.
        wait_for("mapping", || Ok(file.exists()))?;
        Ok(child)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It is still running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the reader reads and where it writes that.
#[derive(clap::Args, Debug)]
pub struct Reading {
    pages: usize,
    file: std::path::PathBuf,
}

/// Reads the trace of the event that is the standard input, until it is killed.
///
/// # Errors
/// When the file cannot be written.
pub fn read(args: &Reading) -> Result<ExitCode> {
    let (base, aux) = map(std::io::stdin(), args.pages, false)?;
    let area = AuxArea {
        base: &base,
        aux: Some(&aux),
    };
    let mut ring = Ring::new(aux.len())?;
    let mut file = std::fs::File::create(&args.file).context("cannot make the file")?;
    loop {
        let range = ring.pending(&area)?;
        let mut got = vec![0; usize::try_from(range.end - range.start)?];
        if !got.is_empty() {
            // The trace is written to the file before its space is released. So nothing is lost, whenever this process is killed.
            ring.copy(&area, range.start, &mut got);
            file.write_all(&got).context("cannot write the file")?;
            ring.release(&area, range.end);
        }
        thread::sleep(Duration::from_micros(200));
    }
}

impl Row {
    /// Opens the siblings that pause and resume an event.
    pub(super) fn siblings(&self, probe: &Probe, cpu: i32) -> Result<Vec<Event>> {
        let actions: &[(u32, u64)] = match self.paused {
            None | Some(Paused::Always) => &[],
            Some(Paused::Start) => &[(RESUME, 1_300_000)],
            Some(Paused::Again) => &[(PAUSE, 1_300_000), (RESUME, 1_700_000)],
        };
        actions
            .iter()
            .map(|&(aux_action, period)| {
                let attr = Attr {
                    aux_action,
                    ..software(CPU_CLOCK, period)
                };
                let event = Event::open_in(&attr, -1, cpu, Some(&probe.event));
                event.context("cannot open an event that pauses or resumes another")
            })
            .collect()
    }

    /// Traces, and reads the ring like the row's reader. Returns the content of the reader's file, if it writes one.
    pub(super) fn read(&self, probe: &mut Probe, cpu: i32) -> Result<Option<Vec<u8>>> {
        let setup = self.setup();
        let part = part(&setup);
        let goal = (self.rings() * setup.ring).min(setup.limit);
        let silent = |probe: &Probe| -> Result<bool> { Ok(probe.generated()? >= setup.limit) };
        let mut file = None;

        let path = TraceFile::new(&format!("matrix-{cpu}"));
        let recorder = match self.reader {
            Reader::Dies => Some(Recorder::start(probe, self.pages, path.path())?),
            _ => None,
        };

        if self.is_silent() {
            self.listen(probe)?;
            return Ok(None);
        }
        probe.event.enable()?;
        match self.reader {
            Reader::KeepsUp => probe.until("a ring that is read", |probe| {
                probe.wait()?;
                let cuts = probe.truncations();
                probe.read_trace(u64::MAX)?;
                probe.read_records()?;
                if probe.truncations() > cuts {
                    probe.read_trace(u64::MAX)?;
                    probe.event.enable()?;
                }
                Ok(silent(probe)? || setup.limit == u64::MAX && probe.head() >= goal)
            })?,
            Reader::Slow => {
                for round in 1.. {
                    let done = setup.limit == u64::MAX && round > ROUNDS;
                    if done || self.full(probe, round)? {
                        break;
                    }
                    probe.read_trace(part)?;
                    probe.event.enable()?;
                }
            }
            Reader::Stops => {
                self.full(probe, 1)?;
            }
            Reader::Dies => {
                // The reader is killed during its work, after it has written some pieces.
                let goal = setup.ring / 4;
                let result = probe.until("a file", |_| {
                    Ok(std::fs::metadata(path.path()).map_or(0, |file| file.len()) >= goal)
                });
                drop(recorder);
                result?;
                probe.read_records()?;
                let cuts = probe.truncations();
                // The event is disabled if the reader was too slow.
                probe.event.enable()?;
                self.full(probe, cuts + 1)?;
                let read = std::fs::read(path.path());
                file = Some(read.context("cannot read the dead reader's file")?);
            }
            Reader::Once => probe.until("trace", |probe| {
                Ok(silent(probe)? || setup.limit == u64::MAX && probe.generated()? >= goal)
            })?,
            Reader::Snapshots => {
                for step in 1..=4 {
                    probe.until("some trace", |probe| {
                        Ok(probe.generated()? >= goal / 4 * step)
                    })?;
                    self.read_snapshot(probe)
                        .with_context(|| format!("snapshot {step}"))?;
                    probe.event.enable()?;
                }
            }
        }
        probe.event.disable()?;
        Ok(file)
    }

    /// Reads a snapshot while the event is disabled. perf can miss the clone of an inherited event that is made at the same time: see
    /// [`Probe::until()`]. Such a clone stays enabled, and generates trace until the next disable. Then the snapshot is taken again.
    fn read_snapshot(&self, probe: &mut Probe) -> Result<()> {
        let mut tries = if self.mode == Mode::Inherited { 4 } else { 1 };
        loop {
            tries -= 1;
            probe.event.disable()?;
            let generated = probe.generated()?;
            probe.snapshot()?;
            probe.read_records()?;
            let read = stream::read(&probe.trace, probe.from, true);
            probe.event.disable()?;
            match read {
                Err(error) if tries == 0 || probe.generated()? == generated => return Err(error),
                Err(_) => {}
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Tries to map rings that the driver refuses, so often that a leak would add up to [`LEAK`] bytes. No memory and no reference may be
    /// left.
    pub(super) fn refuse(&self, attr: &Attr, cpu: i32) -> Result<()> {
        let Some(refused) = self.refused else {
            return Ok(());
        };
        let mut attr = attr.clone();
        let (fault, pages) = match refused {
            Refused::Setup => (6, self.pages),
            Refused::Memory => (7, self.pages),
            Refused::Small => (0, self.pages / 2),
        };
        attr.config1 |= fault << 4;
        let event = Event::open(&attr, -1, cpu)?;
        let references = module::references("pattern")?;
        let free = free()?;
        for _ in 0..LEAK / bytes(pages) {
            let error = match map(&event, pages, self.reader.overwrites()) {
                Ok(_) => bail!("a ring was mapped that must be refused"),
                Err(error) => error,
            };
            let errno = error.downcast_ref().and_then(Errno::from_io_error);
            ensure!(errno == Some(Errno::NOMEM), "{error:#}");
        }
        let end = Instant::now() + PATIENCE;
        // RCU frees some memory later.
        loop {
            let now = module::references("pattern")?;
            let gone = free.saturating_sub(self::free()?);
            if now == references && gone < LEAK / 4 {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "after rings that were refused {gone} bytes are gone, and {now} references are there, of {references} before"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Enables a silent event several times.
    fn listen(&self, probe: &Probe) -> Result<()> {
        let [began, refused] = ["begins", "begin_refused"].map(|name| counter("pattern", name));
        let (began, refused) = (began?, refused?);
        for round in 1.. {
            probe.event.enable()?;
            let end = Instant::now() + PATIENCE;
            // If it generates something, the sums will show that.
            let done = |count: Count| count.value > 0 || count.enabled >= QUIET * round;
            while !probe.event.count()?.is_some_and(done) {
                ensure!(
                    Instant::now() < end,
                    "an event is enabled, and its time stands still"
                );
                thread::sleep(Duration::from_millis(1));
            }
            probe.event.disable()?;
            if round == 3 {
                break;
            }
        }
        let began = counter("pattern", "begins")? - began;
        let refused = counter("pattern", "begin_refused")? - refused;
        let good = match self.fault {
            Fault::Start => began == 0 && refused >= 3,
            _ => began >= 3 && refused == 0,
        };
        ensure!(good, "{began} sessions began, and {refused} were refused");
        Ok(())
    }

    /// Waits until the ring has been full once more, or until the unit has reached its limit. Returns whether the limit is reached.
    fn full(&self, probe: &mut Probe, round: usize) -> Result<bool> {
        let limit = self.setup().limit;
        let mut done = false;
        probe.until("a full ring", |probe| {
            // The counter is read first: if the unit reaches its limit with a full ring, the truncation's record comes before.
            done = probe.generated()? >= limit;
            probe.read_records()?;
            Ok(done || probe.truncations() >= round)
        })?;
        Ok(done)
    }
}
