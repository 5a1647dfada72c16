// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile user: what no recorder does, and any program may.
//!
//! Each attack is bounded in time, and ends with everything closed. Then the runner checks that no reference to the driver is
//! left, and that a recording is as exact as before; the kernel's console is looked through when the guest has ended.
//!
//! Those that are about one thing each have a file of their own.

pub mod children;
pub mod control;
pub mod drivers;
pub mod failing;
pub mod limits;
pub mod redirect;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::{Attr, Flags, Read, SampleType};

use crate::events::siblings;
use crate::hotplug;
use crate::module;
use crate::workload::{pin, spin};

/// An attack, with what it is called.
pub struct Attack {
    /// What it is about.
    pub name: &'static str,
    /// Does it, and says what was seen.
    pub run: fn() -> Result<String>,
}

/// All attacks.
pub const ALL: [Attack; 15] = [
    attack("two PMUs, one ring", redirect::two_pmus),
    attack("AUX of a redirected event", redirect::redirected),
    attack("unmap while running", unmap),
    attack("rmmod with a mapping alive", rmmod),
    attack("aux_tail set to garbage", control::garbage_tail),
    attack("control page set to garbage", control::garbage_page),
    attack("group throttled", siblings::throttle),
    attack("period, refresh and reset while running", siblings::ioctls),
    attack("paused and resumed by siblings", siblings::pause),
    attack("storm of fork, exec and exit", children::storm),
    attack("open and close on both CPUs at once", open_close),
    attack("wrong mappings", wrong_mappings),
    attack("descriptor that outlives its opener", children::outlive),
    attack("CPU taken offline", hotplug::attack),
    attack("two writers at once, one ring", redirect::two_writers),
];

/// An entry of a list.
pub const fn attack(name: &'static str, run: fn() -> Result<String>) -> Attack {
    Attack { name, run }
}

/// Software events.
const SOFTWARE: u32 = 1;
/// Time.
pub const CPU_CLOCK: u64 = 0;
/// Counts nothing.
pub const DUMMY: u64 = 9;

/// KiB each second; fills a ring of two pages in 2 ms.
const FAST: u64 = 4096;

const DATA_PAGES: usize = 8;

/// What an event of the PMU under test asks for.
pub fn traced(pmu: &str) -> Result<Attr> {
    let path = format!("/sys/bus/event_source/devices/{pmu}/type");
    let kind = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;

    Ok(Attr {
        kind: kind.trim().parse().context("a PMU's type is no number")?,
        // For `minimal` this is an interval, µs.
        config: if pmu == "pattern" { FAST } else { 100 },
        sample_period: 1,
        read_format: Read::FORMAT,
        flags: Flags::DISABLED,
        ..Attr::default()
    })
}

/// A software event with a period.
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

/// An event with its rings. Unmapped before it is closed, as the fields are.
pub struct Victim {
    /// Its AUX ring.
    pub aux: Option<Mapping>,
    /// Its control page and data ring.
    pub base: Option<Mapping>,
    /// The event.
    pub event: Event,
}

impl Victim {
    /// Opens and maps one with an AUX ring of so many pages.
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

    /// Opens and maps one of `pattern` on a CPU.
    pub fn on_cpu(cpu: i32, pages: usize) -> Result<Self> {
        Self::open(&traced("pattern")?, -1, cpu, pages)
    }

    /// Maps its rings.
    pub fn map(&mut self, pages: usize) -> Result<()> {
        let base = base(&self.event).context("cannot map the data ring")?;
        let aux = aux(&self.event, &base, pages).context("cannot map the AUX ring")?;
        self.base = Some(base);
        self.aux = Some(aux);
        Ok(())
    }

    /// How far its trace is.
    pub fn head(&self) -> u64 {
        let base = self.base.as_ref();
        base.map_or(0, |base| get(base, Field::AuxHead))
    }

    /// Reads nothing, but says so.
    pub fn release(&self) {
        if let Some(base) = &self.base {
            set(base, Field::AuxTail, get(base, Field::AuxHead));
        }
    }

    /// Drops all records of the data ring.
    pub fn read(&self) {
        if let Some(base) = &self.base {
            set(base, Field::DataTail, get(base, Field::DataHead));
        }
    }

    /// Its AUX ring, for the caller to unmap.
    pub fn unmap(&mut self) -> Option<Mapping> {
        self.aux.take()
    }

    /// Its control page.
    pub fn control(&self) -> Result<&Mapping> {
        self.base.as_ref().context("no control page")
    }

    /// Traces until there is something new.
    pub fn traces(&self) -> Result<()> {
        let before = self.head();
        let end = Instant::now() + PATIENCE;
        while self.head() == before {
            self.release();
            self.event.enable()?;
            sleep(2);
            self.event.disable()?;
            ensure!(Instant::now() < end, "no trace in {} s", PATIENCE.as_secs());
        }
        Ok(())
    }
}

/// Longer than anything takes that works, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Maps an event's control page and data ring.
pub fn base(event: impl AsFd) -> std::io::Result<Mapping> {
    Mapping::new(event, 0, (1 + DATA_PAGES) * page_size(), true)
}

/// Where AUX rings are mapped.
pub fn offset() -> u64 {
    bytes(1 + DATA_PAGES)
}

/// So many pages.
pub fn bytes(pages: usize) -> u64 {
    u64::try_from(pages * page_size()).unwrap_or(0)
}

/// Maps an AUX ring, to be read by a reader that says so.
pub fn aux(event: impl AsFd, base: &Mapping, pages: usize) -> std::io::Result<Mapping> {
    set(base, Field::AuxOffset, offset());
    set(base, Field::AuxSize, bytes(pages));
    Mapping::new(event, offset(), pages * page_size(), true)
}

/// A word of a control page.
pub fn get(control: &Mapping, field: Field) -> u64 {
    control.load(field, Ordering::Acquire)
}

/// Sets a word of a control page.
pub fn set(control: &Mapping, field: Field, value: u64) {
    control.store(field, value, Ordering::Release);
}

/// Sleeps.
pub fn sleep(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// Runs `other` in a thread over and over while `body` runs.
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

fn unmap() -> Result<String> {
    const TIMES: u64 = 60;
    let mut traced = 0;

    for n in 0..TIMES {
        let cpu = i32::try_from(n % 2)?;
        let mut victim = Victim::on_cpu(cpu, 4)?;
        victim.event.enable()?;
        sleep(n % 4);
        traced += victim.head();
        match n % 5 {
            0 => drop(victim.aux.take()),
            1 => drop(victim.base.take()),
            2 => {
                drop(victim.base.take());
                drop(victim.aux.take());
            }
            3 => {
                drop(victim.aux.take());
                drop(victim.base.take());
            }
            // And with the event closed first.
            _ => {
                let Victim { aux, base, event } = victim;
                drop(event);
                sleep(1);
                drop(base);
                drop(aux);
                continue;
            }
        }
        sleep(n % 3);
        // It was disabled by perf, or runs without a ring; then it gets another.
        victim.event.enable()?;
        drop((victim.aux.take(), victim.base.take()));
        victim.map(8).context("after all was unmapped")?;
        victim
            .traces()
            .context("with another ring after all was unmapped")?;
    }
    Ok(format!(
        "{TIMES} rings, {traced} bytes until they were unmapped"
    ))
}

/// That a module which is in use cannot be unloaded.
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

fn rmmod() -> Result<String> {
    let victim = Victim::on_cpu(0, 4)?;
    victim.event.enable()?;
    pinned("an event")?;
    let Victim { aux, base, event } = victim;
    drop(event);
    pinned("an event that only its mappings hold")?;
    drop(base);
    let references = pinned("a mapping of AUX")?;
    drop(aux);

    Ok(format!("refused with {references} references by a mapping"))
}

/// The types of the records in a data ring that was never full.
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

/// A number that looks like any other.
pub fn random(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Lets this thread run anywhere again.
pub fn unpin() -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in 0..rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).context("cannot use all CPUs again")
}

fn open_close() -> Result<String> {
    const TIMES: u64 = 80;
    let both = |cpu: i32| -> Result<(u64, u64)> {
        pin(usize::try_from(cpu)?)?;
        let mut seen = 0;
        let mut opened = 0;
        let end = Instant::now() + PATIENCE;
        for n in 0.. {
            if opened == TIMES || Instant::now() > end {
                break;
            }
            // Every third time the other CPU's, so that the two meet.
            let at = if n % 3 == 0 { 1 - cpu } else { cpu };
            // All sinks; straight into the ring takes two pages of it.
            let config1 = if n % 4 == 0 { 1 } else { n % 3 };
            let attr = Attr {
                config1,
                ..traced("pattern")?
            };
            // perf lets one event of an exclusive PMU onto a CPU.
            let event = match Event::open(&attr, -1, at) {
                Ok(event) => event,
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    sleep(1);
                    continue;
                }
                Err(error) => return Err(error).context("cannot open an event"),
            };
            let mut victim = Victim {
                aux: None,
                base: None,
                event,
            };
            victim.map(1 << (n % 4))?;
            opened += 1;
            victim.event.enable()?;
            if n % 4 == 0 {
                spin(Duration::from_millis(3));
            }
            if n % 2 == 0 {
                victim.event.disable()?;
            }
            seen += victim.head();
        }
        ensure!(opened >= TIMES / 4, "only {opened} events could be opened");
        Ok((opened, seen))
    };
    let (first, second) = thread::scope(|scope| {
        let threads = [0, 1].map(|cpu| scope.spawn(move || both(cpu)));
        let [first, second] = threads.map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| bail!("a thread of the attack panicked"))
        });
        (first, second)
    });
    let (first, second) = (first?, second?);
    let (opened, bytes_seen) = (first.0 + second.0, first.1 + second.1);
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{opened} events, {bytes_seen} bytes"))
}

fn wrong_mappings() -> Result<String> {
    let event = Event::open(&traced("pattern")?, -1, 0)?;
    let page = page_size();
    let mut refused = 0;
    let mut wrong = |what: &str, offset: u64, len: usize| -> Result<()> {
        refused += 1;
        ensure!(
            Mapping::new(&event, offset, len, true).is_err(),
            "{what} was not refused"
        );
        Ok(())
    };

    wrong("an AUX ring without a data ring", offset(), 4 * page)?;
    wrong("a data ring of 3 pages", 0, 4 * page)?;
    wrong("nothing", 0, 0)?;
    let control = base(&event)?;
    // What the control page says, and what is mapped.
    let table = [
        ("an AUX ring at no place", 0, 0, offset(), 4),
        (
            "an AUX ring in the data ring",
            bytes(4),
            bytes(4),
            bytes(4),
            4,
        ),
        ("an AUX ring of 3 pages", offset(), bytes(3), offset(), 3),
        (
            "an AUX ring of another size",
            offset(),
            bytes(4),
            offset(),
            8,
        ),
        (
            "an AUX ring of another place",
            offset(),
            bytes(4),
            bytes(16),
            4,
        ),
        ("an AUX ring at the end of all", !0xfff, bytes(4), !0xfff, 4),
        ("a huge AUX ring", offset(), 1 << 40, offset(), 1 << 28),
        // The driver's own limit is checked below; this is a ring of half a page.
        (
            "an AUX ring of no page",
            offset(),
            bytes(1) / 2,
            offset(),
            1,
        ),
        (
            "another data ring",
            offset(),
            bytes(4),
            0,
            1 + 2 * DATA_PAGES,
        ),
    ];
    for (what, says_offset, says_size, at, pages) in table {
        set(&control, Field::AuxOffset, says_offset);
        set(&control, Field::AuxSize, says_size);
        wrong(what, at, pages * page)?;
    }
    let aux = aux(&event, &control, 4).context("the right AUX ring after the wrong ones")?;
    for (what, size, pages) in [("larger", 8, 8), ("smaller", 2, 2)] {
        set(&control, Field::AuxSize, bytes(size));
        wrong(
            &format!("a second, {what} AUX ring"),
            offset(),
            pages * page,
        )?;
    }
    set(&control, Field::AuxSize, bytes(4));
    let twice = Mapping::new(&event, offset(), 4 * page, true).context("the same ring twice")?;
    let victim = Victim {
        aux: Some(aux),
        base: Some(control),
        event,
    };
    victim.traces()?;
    drop(victim);
    drop(twice);
    Ok(format!("{refused} refusals"))
}
