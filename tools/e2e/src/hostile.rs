// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile user: what no recorder does, and any program may.
//!
//! Each attack is bounded in time, and ends with everything closed. Whoever runs it sees then that nobody holds the driver,
//! and that a recording is as exact as before; the kernel's console is looked through when the guest has ended.
//!
//! One of them makes perf itself warn, once: `perf_aux_output_begin()` of a ring that is being written. It is the last, and
//! runs under a name of its own, by which the warning is known and let pass.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use pattern_codec::{verify_payload, Header, HEADER_LEN};
use perfdata::{Attr, Flags, Read, SampleType};

use crate::module;
use crate::workload::{pin, spin};
use crate::Skip;

/// An attack, with what it is called.
pub struct Attack {
    /// What it is about.
    pub name: &'static str,
    /// Does it, and says what was seen.
    pub run: fn() -> Result<String>,
}

/// All attacks.
pub const ALL: [Attack; 15] = [
    attack("two PMUs, one ring", two_pmus),
    attack("AUX of a redirected event", redirected),
    attack("unmap while running", unmap),
    attack("rmmod with a mapping alive", rmmod),
    attack("aux_tail set to garbage", garbage_tail),
    attack("control page set to garbage", garbage_page),
    attack("group throttled", throttle),
    attack("period, refresh and reset while running", ioctls),
    attack("paused and resumed by siblings", pause),
    attack("storm of fork, exec and exit", storm),
    attack("open and close on both CPUs at once", open_close),
    attack("wrong mappings", wrong_mappings),
    attack("descriptor that outlives its opener", outlive),
    attack("CPU taken offline", hotplug),
    attack("two writers at once, one ring", two_writers),
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

/// `attr.aux_action`.
const START_PAUSED: u32 = 1 << 0;
const PAUSE: u32 = 1 << 1;
const RESUME: u32 = 1 << 2;

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
    aux: Option<Mapping>,
    base: Option<Mapping>,
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

    fn on_cpu(cpu: i32, pages: usize) -> Result<Self> {
        Self::open(&traced("pattern")?, -1, cpu, pages)
    }

    fn map(&mut self, pages: usize) -> Result<()> {
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

/// A number that looks like any other.
fn random(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A second PMU with AUX writes to the ring of the first, both redirected to an event without. In turn: what perf says of
/// both at a time is perf's own.
fn two_pmus() -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = turns(pmu);
    // Nothing of it is open any more.
    module::unload(module)?;
    seen
}

fn turns(second: &'static str) -> Result<String> {
    const TIMES: u32 = 20;
    let before =
        module::counter(second, "begin_foreign")? + module::counter("pattern", "begin_foreign")?;

    for n in 0..TIMES {
        // Who owns the ring and who is the stranger.
        let names = if n % 2 == 0 {
            ["pattern", second]
        } else {
            [second, "pattern"]
        };
        let mut owner = Victim::open(&traced(names[0])?, -1, 0, 4)?;
        // perf refuses to redirect one of them to the other, but not by way of a third.
        let between = Event::open(&software(DUMMY, 0), -1, 0)?;
        between.set_output(&owner.event)?;
        let stranger = Event::open(&traced(names[1])?, -1, 0)?;
        ensure!(
            stranger.set_output(&owner.event).is_err(),
            "perf takes two PMUs with AUX into one ring"
        );
        stranger.set_output(&between).context("cannot redirect")?;

        for _ in 0..3 {
            owner.traces()?;
            stranger.enable()?;
            sleep(1);
            stranger.disable()?;
        }
        stranger.enable()?;
        drop(owner.aux.take());
        stranger.disable()?;
        stranger.enable()?;
    }

    let after =
        module::counter(second, "begin_foreign")? + module::counter("pattern", "begin_foreign")?;
    let refused = after - before;
    ensure!(
        refused >= u64::from(TIMES),
        "a stranger was refused {refused} times only: it has used what another driver made"
    );
    Ok(format!("a stranger was refused {refused} times"))
}

/// The name of tasks that have perf warn of nested transactions.
const TWO_WRITERS: &str = "two-writers";

/// Two events that write to one ring at the same time: of two PMUs on one CPU, and of one PMU on both.
fn two_writers() -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = thread::scope(|scope| {
        let named = thread::Builder::new().name(TWO_WRITERS.into());
        let run = named.spawn_scoped(scope, || -> Result<String> {
            let one = nested(["pattern", pmu])? + nested([pmu, "pattern"])?;
            let both = inherited()?;
            Ok(format!("refused {one} times on one CPU, {both} on two"))
        });
        run.context("cannot start a thread")?
            .join()
            .unwrap_or_else(|_| bail!("the attack panicked"))
    });
    unpin()?;
    // Nothing of it is open any more.
    module::unload(module)?;
    // perf warns of the next again.
    let _ = std::fs::write("/sys/kernel/debug/clear_warn_once", "1");
    seen
}

/// A ring with an AUX area that is mapped by an event that is no trace's, for an event of the PMU, and for both.
struct Shared {
    aux: Mapping,
    control: Mapping,
    ring: Event,
}

impl Shared {
    /// The ring is made by a PMU of this name.
    fn new(pmu: &str, cpu: i32, pages: usize) -> Result<Self> {
        let ring = Event::open(&software(DUMMY, 0), 0, cpu)?;
        let control = base(&ring)?;
        let maker = Event::open(&traced(pmu)?, 0, cpu)?;
        maker.set_output(&ring)?;
        let made = aux(&maker, &control, pages).context("cannot map AUX by a redirected event")?;
        let aux = aux(&ring, &control, pages).context("cannot map AUX by another event")?;
        drop((made, maker));
        Ok(Self { aux, control, ring })
    }

    /// An event of this thread that writes to it.
    fn writer(&self, pmu: &str, cpu: i32, flags: Flags) -> Result<Event> {
        let mut attr = traced(pmu)?;
        attr.flags |= flags;
        let event = Event::open(&attr, 0, cpu)?;
        event.set_output(&self.ring).context("cannot redirect")?;
        Ok(event)
    }

    fn release(&self) {
        set(
            &self.control,
            Field::AuxTail,
            get(&self.control, Field::AuxHead),
        );
    }
}

/// Both run on CPU 0: who comes second finds a transaction open that is not its own. How often.
fn nested(names: [&str; 2]) -> Result<u64> {
    const TIMES: u64 = 10;
    let failed = || -> Result<u64> {
        let of = |pmu| -> Result<u64> {
            Ok(module::counter(pmu, "begin_not_mapped")? + module::counter(pmu, "begin_foreign")?)
        };
        Ok(of(names[0])? + of(names[1])?)
    };
    pin(0)?;
    let before = failed()?;
    for n in 0..TIMES {
        let shared = Shared::new(names[0], 0, 16)?;
        let owner = shared.writer(names[0], 0, Flags::empty())?;
        let stranger = shared.writer(names[1], 0, Flags::empty())?;
        let order = if n % 2 == 0 {
            [&owner, &stranger]
        } else {
            [&stranger, &owner]
        };
        for event in order {
            event.enable()?;
            spin(Duration::from_millis(3));
        }
        // Both are taken off and put on again, until there is trace.
        let end = Instant::now() + PATIENCE;
        while get(&shared.control, Field::AuxHead) == 0 {
            ensure!(Instant::now() < end, "the owner has traced nothing");
            sleep(1);
            spin(Duration::from_millis(3));
            owner.disable()?;
            owner.enable()?;
        }
        stranger.disable()?;
        owner.disable()?;
        let head = get(&shared.control, Field::AuxHead);
        if names[0] == "pattern" {
            shared.verify(head)?;
        }
    }
    let refused = failed()? - before;
    ensure!(refused >= TIMES, "{refused} begins failed only");
    Ok(refused)
}

impl Shared {
    /// That what is there is the trace of one `pattern` event, and nothing else.
    fn verify(&self, head: u64) -> Result<()> {
        let mut trace = vec![0; usize::try_from(head)?];
        self.aux
            .copy_out(0, &mut trace)
            .context("the ring has gone round")?;
        let mut rest = &trace[..];
        while !rest.is_empty() {
            let header = Header::decode(rest)
                .map_err(|error| anyhow::anyhow!("{} bytes from the end: {error}", rest.len()))?;
            let (packet, next) = rest
                .split_at_checked(header.len.into())
                .context("a packet that is cut off")?;
            if let Err(at) = verify_payload(&header, HEADER_LEN.try_into()?, &packet[HEADER_LEN..])
            {
                bail!("byte {at} of a packet is wrong");
            }
            rest = next;
        }
        Ok(())
    }
}

/// A task's event that is inherited cannot be mapped, but it can be redirected to one that is: then its children write to one
/// ring from all CPUs. perf's count of transactions is made for one CPU. How often one was refused.
fn inherited() -> Result<u64> {
    const TIMES: u32 = 6;
    let before = module::counter("pattern", "begin_not_mapped")?;
    let mut bytes_seen = 0;
    for _ in 0..TIMES {
        let shared = Shared::new("pattern", -1, 16)?;
        let event = shared.writer("pattern", -1, Flags::INHERIT)?;
        event.enable()?;
        let end = Instant::now() + Duration::from_millis(150);
        thread::scope(|scope| -> Result<()> {
            for cpu in [0, 1, 0, 1] {
                let busy = move || -> Result<()> {
                    pin(cpu)?;
                    while Instant::now() < end {
                        // Off and on: each time it begins anew.
                        spin(Duration::from_micros(300));
                        thread::yield_now();
                    }
                    Ok(())
                };
                let named = thread::Builder::new().name(TWO_WRITERS.into());
                named.spawn_scoped(scope, busy)?;
            }
            while Instant::now() < end {
                shared.release();
                event.enable()?;
                sleep(1);
            }
            Ok(())
        })?;
        event.disable()?;
        bytes_seen += get(&shared.control, Field::AuxHead);
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    let refused = module::counter("pattern", "begin_not_mapped")? - before;
    ensure!(refused > 0, "nobody was refused");
    Ok(refused)
}

/// An AUX ring that is mapped through an event whose ring is another's, and that goes in every order.
fn redirected() -> Result<String> {
    const TIMES: u64 = 12;
    let mut bytes_seen = 0;

    for n in 0..TIMES {
        let ring = Event::open(&software(DUMMY, 0), -1, 0)?;
        let control = base(&ring)?;
        let event = Event::open(&traced("pattern")?, -1, 0)?;
        event.set_output(&ring)?;
        let area = aux(&event, &control, 4).context("cannot map AUX through a redirected event")?;
        event.enable()?;
        sleep(4);
        if n % 2 == 0 {
            event.disable()?;
        }
        bytes_seen += get(&control, Field::AuxHead);
        match n % 4 {
            0 => drop((event, area, control, ring)),
            1 => drop((ring, control, area, event)),
            2 => drop((area, event, ring, control)),
            _ => drop((control, event, area, ring)),
        }
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{bytes_seen} bytes in {TIMES} rings"))
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
fn pinned(what: &str) -> Result<u32> {
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

/// A reader that lies, in every way, about how far it is.
fn garbage_tail() -> Result<String> {
    let mut bytes_seen = 0;
    // Pages, how they are mapped, and the sink.
    let rings = [
        (2, false, 0),
        (16, false, 0),
        (1, false, 1),
        (2, false, 2),
        (4, true, 0),
    ];
    for (pages, overwrite, config1) in rings {
        let attr = Attr {
            config1,
            ..traced("pattern")?
        };
        let mut victim = Victim {
            aux: None,
            base: None,
            event: Event::open(&attr, -1, 0)?,
        };
        let control = base(&victim.event)?;
        set(&control, Field::AuxOffset, offset());
        set(&control, Field::AuxSize, bytes(pages));
        victim.aux = Some(Mapping::new(
            &victim.event,
            offset(),
            pages * page_size(),
            !overwrite,
        )?);
        let size = bytes(pages);
        let head = |add: u64| get(&control, Field::AuxHead).wrapping_add(add);
        let lie = |n: u64| {
            let tail = match n % 12 {
                0 => 0,
                1 => head(1),
                2 => head(u64::MAX),
                3 => head(size),
                4 => head(size.wrapping_neg()),
                5 => head(size.wrapping_neg().wrapping_sub(1)),
                6 => head(size.wrapping_neg().wrapping_add(1)),
                7 => u64::MAX,
                8 => 1 << 63,
                9 => head(0) % size,
                10 => random(n),
                _ => head(0),
            };
            set(&control, Field::AuxTail, tail);
        };
        let end = Instant::now() + Duration::from_millis(300);
        let mut last = 0;
        beside(lie, || {
            while Instant::now() < end {
                victim.event.enable()?;
                sleep(1);
                let now = get(&control, Field::AuxHead);
                ensure!(now >= last, "the head went back from {last} to {now}");
                ensure!(
                    overwrite || now - last <= size * 64,
                    "the head made a leap from {last} to {now}"
                );
                last = now;
                victim.event.disable()?;
            }
            Ok(())
        })?;
        // Honest again.
        set(&control, Field::AuxTail, last);
        victim.base = Some(control);
        victim.traces().context("after the lies")?;
        bytes_seen += last;
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{bytes_seen} bytes meanwhile"))
}

/// Everything else in the control page that a program may write.
fn garbage_page() -> Result<String> {
    let victim = Victim::on_cpu(0, 4)?;
    let control = victim.base.as_ref().context("no control page")?;
    let fields = [
        Field::AuxOffset,
        Field::AuxSize,
        Field::DataHead,
        Field::DataTail,
    ];
    let before = module::counter("pattern", "commits")?;
    let scribble = |n: u64| {
        for (field, k) in fields.iter().zip(1..) {
            set(control, *field, random(n.wrapping_mul(k)));
        }
    };
    beside(scribble, || -> Result<()> {
        for _ in 0..200 {
            victim.event.enable()?;
            sleep(1);
            victim.event.disable()?;
            victim.release();
        }
        Ok(())
    })?;
    let commits = module::counter("pattern", "commits")? - before;
    ensure!(
        commits > 100,
        "only {commits} transactions were committed meanwhile"
    );

    // The kernel has the head for itself, and writes it here only.
    let head = victim.head();
    set(control, Field::AuxHead, random(head));
    victim.event.enable()?;
    sleep(5);
    victim.event.disable()?;
    let now = victim.head();
    ensure!(
        now >= head && now - head <= bytes(4),
        "the kernel's head went from {head} to {now}"
    );
    Ok(format!("{commits} commits meanwhile"))
}

/// A file of /proc that is changed for a time.
struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    fn change(path: &'static str, value: &str) -> Result<Self> {
        let before =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        std::fs::write(path, value).with_context(|| format!("cannot write {path}"))?;
        Ok(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path, &self.before);
    }
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

/// A sibling that samples too often has perf stop the whole group, from the sibling's interrupt.
fn throttle() -> Result<String> {
    const THROTTLE: u32 = 5;
    let _rate = Setting::change("/proc/sys/kernel/perf_event_max_sample_rate", "250")?;
    let mut attr = traced("pattern")?;
    // A packet each 49 µs: there is trace between two samples, which the tick of the scheduler allows again.
    attr.config = 1280 | 1 << 24;
    let victim = Victim::open(&attr, -1, 0, 64)?;
    let sibling = Event::open_in(&software(CPU_CLOCK, 500_000), -1, 0, Some(&victim.event))?;
    victim.event.enable()?;
    pin(0)?;
    let end = Instant::now() + PATIENCE;
    let seen = loop {
        spin(Duration::from_millis(50));
        let base = victim.base.as_ref().context("no control page")?;
        let seen = records(base).iter().filter(|&&k| k == THROTTLE).count();
        if seen >= 3 || Instant::now() > end {
            break seen;
        }
        victim.release();
    };
    victim.event.disable()?;
    unpin()?;
    ensure!(seen > 0, "the group was never throttled");
    ensure!(victim.head() > 0, "nothing was traced");
    let samples = sibling.count()?.map_or(0, |count| count.value);
    drop(sibling);
    Ok(format!(
        "throttled {seen} times, {} bytes, the sibling at {samples} ns",
        victim.head()
    ))
}

/// Lets this thread run anywhere again.
pub fn unpin() -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in 0..rustix::thread::CpuSet::MAX_CPU.min(8) {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).context("cannot use all CPUs again")
}

fn ioctls() -> Result<String> {
    let victim = Victim::on_cpu(0, 8)?;
    victim.event.enable()?;
    let event = &victim.event;
    let other = |n: u64| {
        let _ = match n % 4 {
            0 => event.set_period(random(n) >> 32 | 1),
            1 => event.reset(),
            2 => event.refresh(1),
            _ => event.enable(),
        };
    };
    let refused = beside(other, || -> Result<u32> {
        let mut refused = 0;
        for n in 1..400_u64 {
            event.set_period(n)?;
            event.refresh(i32::try_from(n)?)?;
            event.reset()?;
            // A period may be anything but 0 and what looks negative.
            refused += u32::from(event.set_period(0).is_err());
            refused += u32::from(event.set_period(u64::MAX).is_err());
            victim.release();
        }
        Ok(refused)
    })?;
    victim.event.disable()?;
    victim.traces()?;
    ensure!(refused > 0, "no impossible period was refused");
    Ok(format!("{} bytes meanwhile", victim.head()))
}

/// Siblings that pause and resume the trace from their interrupts, while it starts and stops.
fn pause() -> Result<String> {
    let mut bytes_seen = 0;
    for start_paused in [false, true] {
        let mut attr = traced("pattern")?;
        attr.aux_action = if start_paused { START_PAUSED } else { 0 };
        let victim = Victim::open(&attr, -1, 0, 8)?;
        let sibling = |period, action| {
            let attr = Attr {
                aux_action: action,
                ..software(CPU_CLOCK, period)
            };
            Event::open_in(&attr, -1, 0, Some(&victim.event))
        };
        let _siblings = [sibling(130_000, PAUSE)?, sibling(170_000, RESUME)?];
        pin(0)?;
        let end = Instant::now() + Duration::from_millis(400);
        let mut n = 0;
        while Instant::now() < end {
            victim.event.enable()?;
            spin(Duration::from_millis(n % 5));
            victim.release();
            if n % 3 != 0 {
                victim.event.disable()?;
            }
            n += 1;
        }
        victim.event.disable()?;
        unpin()?;
        bytes_seen += victim.head();
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{bytes_seen} bytes meanwhile"))
}

/// Rings of this process for both CPUs, which its children inherit.
fn of_this_process() -> Result<Vec<Victim>> {
    let mut attr = traced("pattern")?;
    attr.flags |= Flags::INHERIT;
    (0..2)
        .map(|cpu| {
            let victim = Victim::open(&attr, 0, cpu, 4)?;
            victim.event.enable()?;
            Ok(victim)
        })
        .collect()
}

fn child(what: What) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    Command::new(program)
        .arg("attack")
        .arg(match what {
            What::Tree => "tree",
            What::Open => "open",
            What::Hold => "hold",
        })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a child")
}

fn storm() -> Result<String> {
    const TIMES: u32 = 3;
    let victims = of_this_process()?;
    let mut children = 0;

    beside(
        |_| {
            for victim in &victims {
                victim.release();
                let _ = victim.event.enable();
            }
            sleep(1);
        },
        || -> Result<()> {
            for n in 0..TIMES {
                let mut trees = (0..4)
                    .map(|_| child(What::Tree))
                    .collect::<Result<Vec<_>>>()?;
                if n == 1 {
                    // Some die in the middle of it.
                    sleep(30);
                    for tree in &mut trees {
                        tree.kill()?;
                    }
                }
                for mut tree in trees {
                    tree.wait()?;
                    children += TREE + 1;
                }
            }
            Ok(())
        },
    )?;
    let bytes_seen: u64 = victims.iter().map(Victim::head).sum();
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{children} processes, {bytes_seen} bytes"))
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

fn outlive() -> Result<String> {
    let mut opener = child(What::Open)?;
    let out = opener.stdout.take().context("no standard output")?;
    let mut lines = BufReader::new(out).lines();
    let status = opener.wait()?;
    ensure!(status.success(), "the opener ended with {status}");
    // The holder, which has our pipe from the opener, says so when it has mapped the rings.
    let said = lines.next().context("the holder has died")??;
    ensure!(said == HELD, "the holder says {said:?}");
    let references = pinned("an event whose opener is gone")?;
    // It closes its end when it ends.
    for line in lines {
        line?;
    }
    Ok(format!("{references} references after the opener had gone"))
}

/// Where CPU 1 is taken offline.
pub const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";

/// Takes CPU 1 online, or offline.
pub fn switch(on: bool) -> Result<()> {
    std::fs::write(ONLINE, if on { "1" } else { "0" }).with_context(|| {
        format!(
            "cannot take CPU 1 {}",
            if on { "online" } else { "offline" }
        )
    })
}

fn hotplug() -> Result<String> {
    const TIMES: u32 = 4;
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let mut bytes_seen = 0;
    let mut outcome = Ok(());
    for n in 0..TIMES {
        let victim = Victim::on_cpu(1, 8)?;
        victim.traces()?;
        victim.event.enable()?;
        // One that is with a task, wherever that goes.
        let task = Victim::open(
            &Attr {
                config: 512,
                ..traced("pattern")?
            },
            0,
            1,
            8,
        );
        if let Ok(task) = &task {
            task.event.enable()?;
        }
        sleep(u64::from(n));
        outcome = switch(false).and_then(|()| {
            victim.event.disable()?;
            victim.event.enable()?;
            let refused = Event::open(&traced("pattern")?, -1, 1).is_err();
            ensure!(refused, "an event on a CPU that is offline was not refused");
            sleep(5);
            Ok(())
        });
        bytes_seen += victim.head();
        if n % 2 == 0 {
            drop(victim);
            drop(task);
            switch(true)?;
        } else {
            switch(true)?;
            drop(victim);
            drop(task);
        }
        if outcome.is_err() {
            break;
        }
        Victim::on_cpu(1, 4)?
            .traces()
            .context("on a CPU that is back")?;
    }
    outcome?;
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{TIMES} times, {bytes_seen} bytes"))
}

/// The part of an attack that is another process.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_enum)]
    what: What,
}

/// What the other process does.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Starts many processes and threads that end at once.
    Tree,
    /// Opens an event, gives it to a holder, and ends.
    Open,
    /// Maps the event that is its standard input, and holds it for a while.
    Hold,
}

/// How many processes a tree starts.
const TREE: u32 = 12;

const HELD: &str = "held";

/// Does that part.
pub fn part(args: &Args) -> Result<ExitCode> {
    match args.what {
        What::Tree => {
            for _ in 0..TREE / 2 {
                let threads: Vec<_> = (0..3)
                    .map(|_| thread::spawn(|| spin(Duration::from_micros(300))))
                    .collect();
                let mut children = (0..2)
                    .map(|_| Command::new("true").spawn())
                    .collect::<std::io::Result<Vec<_>>>()?;
                for child in &mut children {
                    child.wait()?;
                }
                // Some threads are left to end with the process.
                drop(threads);
            }
        }
        What::Open => {
            let event = Event::open(&traced("pattern")?, -1, 0)?;
            let control = base(&event)?;
            let _aux = aux(&event, &control, 4)?;
            event.enable()?;
            let passed = OwnedFd::from(event.try_clone()?);
            let program = std::env::current_exe().context("cannot find this program")?;
            // It inherits our pipe too, by which its end is seen.
            let _ = Command::new(program)
                .args(["attack", "hold"])
                .stdin(passed)
                .spawn()
                .context("cannot start a holder")?;
            // Until it has mapped the rings.
            sleep(200);
        }
        What::Hold => {
            let input = rustix::stdio::stdin();
            let control = base(input)?;
            let _aux = aux(input, &control, 4)?;
            sleep(600);
            println!("{HELD}");
            sleep(400);
        }
    }
    Ok(ExitCode::SUCCESS)
}
