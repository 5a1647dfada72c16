// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An event with its rings, and the work that it traces.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Count, Event, Field, Mapping};
use perfdata::{Attr, Flags, Read, SampleType};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::thread::{sched_setaffinity, CpuSet};

use crate::pmu::{Place, Pmu};
use crate::records::{self, Ledger, Record};
use crate::stream::Stream;

/// Whether the driver stops when the area is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The area is mapped writable: the driver stops when it is full.
    Normal,
    /// The area is mapped read-only: the driver overwrites old trace.
    Overwrite,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "in non-overwrite mode",
            Self::Overwrite => "in overwrite mode",
        })
    }
}

/// Pages of a data ring.
pub const DATA_PAGES: usize = 16;

/// How long a case waits for an expected result, in seconds.
static PATIENCE: AtomicU64 = AtomicU64::new(20);

/// Longer than any correct operation takes, even on an emulated and busy machine.
pub fn patience() -> Duration {
    Duration::from_secs(PATIENCE.load(Ordering::Relaxed))
}

/// Sets how long cases wait from now on.
pub fn set_patience(seconds: u64) {
    PATIENCE.store(seconds, Ordering::Relaxed);
}

/// Calls `what` with this patience, or with the current one if that is shorter.
pub fn with_patience<T>(seconds: u64, what: impl FnOnce() -> T) -> T {
    let long = PATIENCE.load(Ordering::Relaxed);
    set_patience(long.min(seconds));
    let done = what();
    set_patience(long);
    done
}

/// `PERF_COUNT_SW_CPU_CLOCK`.
pub const CPU_CLOCK: u64 = 0;
/// `PERF_COUNT_SW_DUMMY`.
pub const DUMMY: u64 = 9;

/// A software event with a period, which is enabled at once.
pub fn software(config: u64, period: u64) -> Attr {
    Attr {
        kind: 1,
        config,
        sample_period: period,
        sample_type: SampleType::TID | SampleType::TIME | SampleType::CPU | SampleType::IDENTIFIER,
        read_format: Read::FORMAT,
        flags: Flags::SAMPLE_ID_ALL,
        ..Attr::default()
    }
}

/// The length of this number of pages, in bytes.
pub fn bytes(pages: usize) -> u64 {
    u64::try_from(pages.saturating_mul(page_size())).unwrap_or(u64::MAX)
}

/// The offset at which areas are mapped.
pub fn offset() -> u64 {
    bytes(1 + DATA_PAGES)
}

/// Maps an event's control page and data ring.
pub fn map_base(event: impl AsFd) -> io::Result<Mapping> {
    Mapping::new(event, 0, (1 + DATA_PAGES) * page_size(), true)
}

/// Maps an area behind the data ring.
pub fn map_aux(event: impl AsFd, base: &Mapping, pages: usize, mode: Mode) -> io::Result<Mapping> {
    base.store(Field::AuxOffset, offset(), Ordering::Relaxed);
    base.store(Field::AuxSize, bytes(pages), Ordering::Relaxed);
    Mapping::new(event, offset(), pages * page_size(), mode == Mode::Normal)
}

/// Reads the records of a data ring of this number of pages, which is behind its control page.
pub fn drain(base: &Mapping, pages: usize) -> Result<Vec<Record>> {
    let len = bytes(pages);
    let head = base.load(Field::DataHead, Ordering::Acquire);
    let tail = base.load(Field::DataTail, Ordering::Relaxed);
    let left = head.wrapping_sub(tail);
    ensure!(
        left <= len,
        "data_head is {left} bytes ahead, in a ring of {len}"
    );
    let mut out = vec![0; usize::try_from(left)?];
    let at = usize::try_from(tail % len)?;
    let first = out.len().min(usize::try_from(len)? - at);
    let (front, back) = out.split_at_mut(first);
    base.copy_out(page_size() + at, front)
        .context("the data ring")?;
    base.copy_out(page_size(), back).context("the data ring")?;
    base.store(Field::DataTail, head, Ordering::Release);
    records::split(&out)
}

/// Copies the bytes of an area from one position to another.
pub fn copy(area: &Mapping, from: u64, to: u64) -> Result<Vec<u8>> {
    let len = u64::try_from(area.len())?;
    let left = to
        .checked_sub(from)
        .context("the trace ends before it begins")?;
    ensure!(left <= len, "{left} bytes of an area of {len}");
    let mut out = vec![0; usize::try_from(left)?];
    let at = usize::try_from(from % len)?;
    let first = out.len().min(area.len() - at);
    let (front, back) = out.split_at_mut(first);
    area.copy_out(at, front).context("the area")?;
    area.copy_out(0, back).context("the area")?;
    Ok(out)
}

/// An event with its rings, and a reader that follows them. The order of the fields matters: the rings are unmapped before the event is
/// closed.
pub struct Rig {
    /// Its area.
    pub aux: Option<Mapping>,
    /// Its control page and data ring.
    pub base: Option<Mapping>,
    /// The event.
    pub event: Event,
    /// The ledger of the AUX records.
    pub ledger: Ledger,
    /// All records except AUX records.
    pub others: Vec<Record>,
    /// The sample ids of AUX records.
    pub ids: Vec<records::SampleId>,
    /// Checks the trace, if its format is known.
    pub stream: Option<Stream>,
    mode: Mode,
    /// The position of the reader.
    tail: u64,
    /// Whether the PMU makes trace visible without being stopped.
    commits: bool,
    /// Number of records with `TRUNCATED` for which the event was enabled again.
    enabled: u64,
}

/// Starts a thread of a scope. This fails if the kernel has no memory for one.
pub fn beside<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    does: impl FnOnce() -> T + Send + 'scope,
) -> Result<std::thread::ScopedJoinHandle<'scope, T>> {
    let started = std::thread::Builder::new().spawn_scoped(scope, does);
    started.context("starting a thread")
}

impl Rig {
    /// Opens and maps a disabled event.
    pub fn open(pmu: &Pmu, place: Place, pages: usize, mode: Mode) -> Result<Self> {
        Self::with(pmu, &pmu.attr(), place, pages, mode)
    }

    /// The same, with this attribute.
    pub fn with(pmu: &Pmu, attr: &Attr, place: Place, pages: usize, mode: Mode) -> Result<Self> {
        let event = pmu.open_attr(attr, place);
        let event = event.with_context(|| format!("opening an event of {place}"))?;
        Self::of(pmu, event, place, pages, mode)
    }

    /// Maps the rings of an open event.
    pub fn of(pmu: &Pmu, event: Event, place: Place, pages: usize, mode: Mode) -> Result<Self> {
        let mut rig = Self {
            aux: None,
            base: None,
            event,
            ledger: Ledger::new(bytes(pages), mode == Mode::Overwrite),
            others: Vec::new(),
            ids: Vec::new(),
            stream: pmu.stream.map(Stream::new),
            mode,
            tail: 0,
            commits: pmu.commits,
            enabled: 0,
        };
        rig.map(pages)?;
        if let Place::Cpu(cpu) = place {
            pin(cpu)?;
        }
        Ok(rig)
    }

    /// Maps the rings.
    pub fn map(&mut self, pages: usize) -> Result<()> {
        let base = match self.base.take() {
            Some(base) => base,
            None => map_base(&self.event).context("mapping the data ring")?,
        };
        let aux = map_aux(&self.event, &base, pages, self.mode);
        let what = || format!("mapping an area of {pages} pages {}", self.mode);
        self.aux = Some(aux.with_context(what)?);
        self.base = Some(base);
        Ok(())
    }

    /// Loads a word of the control page.
    pub fn get(&self, field: Field) -> u64 {
        let base = self.base.as_ref();
        base.map_or(0, |base| base.load(field, Ordering::Acquire))
    }

    /// Stores a word of the control page.
    pub fn set(&self, field: Field, value: u64) {
        if let Some(base) = &self.base {
            base.store(field, value, Ordering::Release);
        }
    }

    /// `aux_head`.
    pub fn head(&self) -> u64 {
        self.get(Field::AuxHead)
    }

    /// The position of the reader.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// What the event has counted, and how long it ran.
    pub fn count(&self) -> Result<Count> {
        self.event
            .count()?
            .context("the event says nothing: its PMU is gone")
    }

    /// Reads the records. Returns their number.
    pub fn drain(&mut self) -> Result<usize> {
        let Some(base) = &self.base else {
            return Ok(0);
        };
        let found = drain(base, DATA_PAGES)?;
        let count = found.len();
        for record in found {
            match record.aux()? {
                Some(aux) => {
                    self.ledger.add(aux, self.tail)?;
                    self.ids.push(record.id);
                }
                None => self.others.push(record),
            }
        }
        self.ledger.ends_batch(self.tail);
        Ok(count)
    }

    /// Reads the records, and in non-overwrite mode the trace up to the end of the last record.
    pub fn read(&mut self) -> Result<()> {
        let head = self.head();
        let known = self.others.len();
        self.drain()?;
        if self.mode == Mode::Overwrite {
            return Ok(());
        }
        // The kernel writes records before it moves the head: the trace of a lost record is before the head.
        let mut found = self.others.iter().skip(known);
        if found.any(|record| record.kind == records::LOST) {
            self.ledger.goes_to(head);
        }
        let end = self.ledger.end.unwrap_or(self.tail);
        let trace = self.bytes(self.tail, end)?;
        if let Some(stream) = &mut self.stream {
            stream.feed(self.tail, &trace)?;
            if self.ledger.truncated > 0 {
                stream.may_begin_anew();
            }
        }
        self.tail = end;
        self.set(Field::AuxTail, end);
        Ok(())
    }

    /// Copies the bytes of the area from one position to another.
    pub fn bytes(&self, from: u64, to: u64) -> Result<Vec<u8>> {
        let aux = self.aux.as_ref().context("there is no area")?;
        copy(aux, from, to)
    }

    /// Works until the condition is true. Checks it after each stretch of work.
    pub fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + patience();
        let mut stretches = 0;
        while !is_so(self)? {
            work();
            stretches += 1;
            if !self.commits && stretches % 20 == 0 {
                self.event.disable()?;
                self.event.enable()?;
            }
            if Instant::now() > end {
                bail!(
                    "{what}: not in {} s of work; {:?}, aux_head is {:#x}",
                    patience().as_secs(),
                    self.ledger,
                    self.head()
                );
            }
        }
        Ok(())
    }

    /// Works until there are this many more bytes of trace, and reads them as they come. Enables the event again after its area was full.
    pub fn traces(&mut self, more: u64) -> Result<()> {
        let enough = self.tail.saturating_add(more);
        self.until("tracing", |rig| {
            rig.follows()?;
            Ok(rig.tail >= enough)
        })
    }

    /// Reads everything, and enables the event if its area was full.
    pub fn follows(&mut self) -> Result<()> {
        self.read()?;
        if self.ledger.truncated > self.enabled {
            // perf disables the event a little after the record. The ledger needs to know that no transaction is open.
            self.event.disable()?;
            self.read()?;
            self.ledger.begins(self.tail);
            self.enabled = self.ledger.truncated;
            self.event.enable()?;
        }
        Ok(())
    }

    /// Works, without reading trace, until `aux_head` has reached `head` or the area is full.
    pub fn fills(&mut self, head: u64) -> Result<()> {
        let before = self.ledger.truncated;
        self.until("filling the area", |rig| {
            rig.drain()?;
            Ok(rig.head() >= head || rig.ledger.truncated > before)
        })
    }

    /// Works, without reading trace, until a record reports that the area is full.
    pub fn overflows(&mut self) -> Result<()> {
        let before = self.ledger.truncated;
        self.until("waiting for TRUNCATED without a reader", |rig| {
            rig.drain()?;
            Ok(rig.ledger.truncated > before)
        })
    }

    /// Disables the event and reads everything. Checks that nothing is missing, and that nothing comes afterwards.
    pub fn settles(&mut self) -> Result<()> {
        self.event.disable()?;
        let head = self.head();
        self.read()?;
        if self.mode == Mode::Normal
            && !self
                .others
                .iter()
                .any(|record| record.kind == records::LOST)
        {
            let end = self.ledger.end.unwrap_or(0);
            ensure!(
                head >= end,
                "aux_head is {head:#x}, and the records go to {end:#x}"
            );
        }
        for _ in 0..3 {
            work();
        }
        let late = self.drain()?;
        ensure!(
            late == 0 && self.head() == head,
            "{late} records and {} bytes after the event was switched off",
            self.head().wrapping_sub(head)
        );
        Ok(())
    }

    /// Checks that the trace that was read is all that the event has counted, if the format of the trace allows that.
    pub fn is_exact(&self) -> Result<String> {
        let Some(stream) = &self.stream else {
            return Ok(format!(
                "{} bytes in {} records",
                self.ledger.bytes, self.ledger.records
            ));
        };
        let counted = self.count()?.value;
        let lost = stream.accounts(counted, self.ledger.flags)?;
        Ok(format!(
            "{} bytes in {} records, {lost} lost: {stream}",
            self.ledger.bytes, self.ledger.records
        ))
    }

    /// Whether the event's descriptor is readable.
    pub fn is_readable(&self) -> Result<bool> {
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).context("poll")?;
        Ok(fds.iter().any(|fd| fd.revents().contains(PollFlags::IN)))
    }
}

/// Calls `round` this many times, and then until it has returned true once: other tasks may take all of the CPU in some rounds. Returns how
/// often it was called.
pub fn rounds(least: u32, mut round: impl FnMut() -> Result<bool>) -> Result<u32> {
    let end = Instant::now() + patience();
    let (mut number, mut done) = (0, false);
    while number < least || !done && Instant::now() < end {
        number += 1;
        done |= round()?;
    }
    Ok(number)
}

/// Keeps this thread on a CPU.
pub fn pin(cpu: u32) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::try_from(cpu)?);
    sched_setaffinity(None, &set).with_context(|| format!("going to CPU {cpu}"))
}

/// Lets this thread run on any CPU again.
pub fn unpin() -> Result<()> {
    let mut set = CpuSet::new();
    for cpu in 0..CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).context("using all CPUs again")
}

/// Enables the event while this thread works, and disables it, again and again until `aux_head` has moved. Returns `aux_head`.
pub fn makes_trace(event: &Event, base: &Mapping) -> Result<u64> {
    let end = Instant::now() + patience();
    let before = base.load(Field::AuxHead, Ordering::Acquire);
    loop {
        event.enable()?;
        for _ in 0..10 {
            work();
        }
        event.disable()?;
        let head = base.load(Field::AuxHead, Ordering::Acquire);
        if head != before {
            return Ok(head);
        }
        ensure!(Instant::now() < end, "nothing was traced");
    }
}

/// Two milliseconds of branches, calls, returns and system calls, so that each unit has something to trace.
pub fn work() {
    let end = Instant::now() + Duration::from_millis(2);
    let mut n = 1_u64;
    while Instant::now() < end {
        for _ in 0..64 {
            n = black_box(step(black_box(n)));
        }
        black_box(rustix::process::getppid());
    }
}

/// The next number of a Collatz sequence, which begins again at its end.
#[inline(never)]
fn step(n: u64) -> u64 {
    match n {
        0 | 1 => 27,
        n if n % 2 == 0 => n / 2,
        n => n.wrapping_mul(3).wrapping_add(1),
    }
}
