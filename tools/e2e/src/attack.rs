// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Building blocks of attacks: entries of their tables, victims (events with their rings), and access to control pages.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::{Attr, Flags, Read, SampleType};

use crate::events::probe::{area, bytes, rings};
use crate::module;
use crate::wait::wait_for;

/// An attack and its name.
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// Runs it, and returns a note about the result.
    pub run: fn() -> Result<String>,
}

/// A case whose name is made when the program runs, and a function that runs it.
pub type Named = (String, Box<dyn Fn() -> Result<String>>);

impl Attack {
    /// Each attack of a table.
    pub fn named(table: &'static [Self]) -> impl Iterator<Item = Named> {
        let named = |case: &'static Self| -> Named { (case.name.to_owned(), Box::new(case.run)) };
        table.iter().map(named)
    }
}

/// Makes an entry of a table of attacks.
pub const fn attack(name: &'static str, run: fn() -> Result<String>) -> Attack {
    Attack { name, run }
}

/// `PERF_TYPE_SOFTWARE`.
const SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_CPU_CLOCK`.
pub const CPU_CLOCK: u64 = 0;
/// `PERF_COUNT_SW_DUMMY`.
pub const DUMMY: u64 = 9;

/// KiB per second: fills an area of two pages in 2 ms.
const FAST: u64 = 4096;

/// Pages of a data ring.
pub const DATA_PAGES: usize = 8;

/// The attributes of a disabled event of this PMU.
pub fn traced(pmu: &str) -> Result<Attr> {
    Ok(Attr {
        kind: module::pmu_type(pmu)?,
        // For `minimal`, `config` is an interval in µs.
        config: if pmu == "pattern" { FAST } else { 100 },
        sample_period: 1,
        read_format: Read::FORMAT,
        flags: Flags::DISABLED,
        ..Attr::default()
    })
}

/// The attributes of a software event with a period.
pub fn software(config: u64, period: u64) -> Attr {
    Attr {
        kind: SOFTWARE,
        config,
        sample_period: period,
        sample_type: SampleType::IP,
        read_format: Read::FORMAT,
        ..Attr::default()
    }
}

/// An event with its rings. The fields are dropped in their order: the rings are unmapped before the event is closed.
pub struct Victim {
    /// Its AUX ring.
    pub aux: Option<Mapping>,
    /// Its control page and data ring.
    pub base: Option<Mapping>,
    /// The event.
    pub event: Event,
}

impl Victim {
    /// Opens an event and maps its rings, with an AUX area of `pages` pages.
    pub fn open(attr: &Attr, pid: i32, cpu: i32, pages: usize) -> Result<Self> {
        let event = Event::open(attr, pid, cpu).context("cannot open an event")?;
        let mut victim = Self {
            aux: None,
            base: None,
            event,
        };
        victim.map(pages)?;
        Ok(victim)
    }

    /// Does the same for an event of `pattern` on a CPU.
    pub fn on_cpu(cpu: i32, pages: usize) -> Result<Self> {
        Self::open(&traced("pattern")?, -1, cpu, pages)
    }

    /// Maps the event's rings.
    pub fn map(&mut self, pages: usize) -> Result<()> {
        let (base, aux) = rings(&self.event, DATA_PAGES, pages, false)?;
        self.base = Some(base);
        self.aux = Some(aux);
        Ok(())
    }

    /// Loads `aux_head`.
    pub fn head(&self) -> u64 {
        let base = self.base.as_ref();
        base.map_or(0, |base| get(base, Field::AuxHead))
    }

    /// Sets `aux_tail` to `aux_head`, without reading the trace.
    pub fn release(&self) {
        if let Some(base) = &self.base {
            set(base, Field::AuxTail, get(base, Field::AuxHead));
        }
    }

    /// Sets `data_tail` to `data_head`, without reading the records.
    pub fn read(&self) {
        if let Some(base) = &self.base {
            set(base, Field::DataTail, get(base, Field::DataHead));
        }
    }

    /// Takes its AUX area, for the caller to unmap.
    pub fn unmap(&mut self) -> Option<Mapping> {
        self.aux.take()
    }

    /// Its control page.
    pub fn control(&self) -> Result<&Mapping> {
        self.base.as_ref().context("no control page")
    }

    /// Enables and disables the event repeatedly until `aux_head` moves.
    pub fn traces(&self) -> Result<()> {
        let before = self.head();
        wait_for("trace", || {
            self.release();
            self.event.enable()?;
            sleep(2);
            self.event.disable()?;
            Ok(self.head() != before)
        })
    }
}

/// Maps an event's control page and data ring.
pub fn base(event: impl AsFd) -> std::io::Result<Mapping> {
    Mapping::new(event, 0, (1 + DATA_PAGES) * page_size(), true)
}

/// The offset at which AUX areas are mapped.
pub fn offset() -> u64 {
    bytes(1 + DATA_PAGES)
}

/// Maps an AUX area in non-overwrite mode.
pub fn aux(event: impl AsFd, base: &Mapping, pages: usize) -> std::io::Result<Mapping> {
    area(event, base, pages, false)
}

/// Loads a word of a control page.
pub fn get(control: &Mapping, field: Field) -> u64 {
    control.load(field, Ordering::Acquire)
}

/// Stores a word of a control page.
pub fn set(control: &Mapping, field: Field, value: u64) {
    control.store(field, value, Ordering::Release);
}

/// Sleeps for `ms` milliseconds.
pub fn sleep(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// Runs `other` in a thread, over and over, until `body` returns.
pub fn beside<T>(other: impl Fn(u64) + Sync, body: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                other(n);
                n += 1;
            }
        });
        let result = body();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Checks that the modules cannot be unloaded while `what` exists. Returns the number of references to `pattern`.
pub fn pinned(what: &str) -> Result<u32> {
    let references = module::references("pattern")?;
    ensure!(references > 0, "{what} holds no reference to the driver");
    for name in module::ORDER.iter().rev() {
        ensure!(
            module::unload(name).is_err(),
            "{name} was unloaded, though there is {what}"
        );
    }
    Ok(references)
}

/// The types of the records in a data ring that has not wrapped.
pub fn records(base: &Mapping) -> Vec<u32> {
    let end = get(base, Field::DataHead)
        .min(bytes(DATA_PAGES))
        .try_into()
        .unwrap_or(0);
    let mut kinds = Vec::new();
    let mut at = 0;
    while at < end {
        let mut header = [0; 8];
        if base.copy_out(page_size() + at, &mut header).is_none() {
            break;
        }
        let [a, b, c, d, _, _, low, high] = header;
        kinds.push(u32::from_le_bytes([a, b, c, d]));
        match u16::from_le_bytes([low, high]) {
            0 => break,
            len => at += usize::from(len),
        }
    }
    kinds
}

/// A pseudo-random number from `n`.
pub fn random(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Lets this thread run on all CPUs again.
pub fn unpin() -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in 0..rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).context("cannot use all CPUs again")
}
