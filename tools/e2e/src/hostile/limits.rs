// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits for an unprivileged user: CPU time with interrupts off, and kernel memory.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{Event, Field, Mapping};
use perfdata::Attr;
use rustix::process::{setrlimit, Resource, Rlimit};

use crate::attack::{attack, get, set, traced, Attack};
use crate::events::probe::{bytes, rings};
use crate::events::siblings::Setting;

/// The cases.
pub const ALL: [Attack; 2] = [
    attack("unprivileged: a tick is bounded", || as_user("ticks")),
    attack("unprivileged: bounce memory is charged", || {
        as_user("memory")
    }),
];

/// The id of an unprivileged user.
const USER: u32 = 1000;

/// The limit of locked memory that many systems set, in bytes.
const LOCKED: u64 = 64 << 10;

/// Runs a part as a user whom perf allows to trace the kernel's side of the user's own tasks.
fn as_user(part: &str) -> Result<String> {
    let _paranoid = Setting::change("/proc/sys/kernel/perf_event_paranoid", "1")?;
    // A path of this program that other users can execute.
    let program = std::env::current_exe().context("cannot find this program")?;
    let output = Command::new(program)
        .args(["limits", part])
        .uid(USER)
        .gid(USER)
        .stdin(Stdio::null())
        .output()
        .context("cannot start a child as another user")?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(said)
}

/// The part of a case that an ordinary user does.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_enum)]
    part: Part,
}

/// What that is.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Asks for as much in one tick as the terms let him.
    Ticks,
    /// Asks for as much bounce memory.
    Memory,
}

/// Runs this part.
pub fn part(args: &Args) -> Result<ExitCode> {
    let limit = Rlimit {
        current: Some(LOCKED),
        maximum: Some(LOCKED),
    };
    setrlimit(Resource::Memlock, limit).context("cannot limit locked memory")?;
    ensure!(
        rustix::process::getuid().as_raw() == USER,
        "this is not the user"
    );
    let seen = match args.part {
        Part::Ticks => ticks()?,
        Part::Memory => memory()?,
    };
    println!("{seen}");
    Ok(ExitCode::SUCCESS)
}

/// The most that a unit may generate in one tick, in bytes.
const TICK: u64 = 64 << 10;

/// Terms of `pattern`: rate in KiB/s, packets per tick, length of a packet in units of 64 bytes, and sink.
#[derive(Clone, Copy, Debug)]
struct Terms {
    rate: u64,
    burst: u64,
    packet: u64,
    sink: u64,
    overwrite: bool,
}

impl Terms {
    /// A row of a table, with each sink, in normal and in overwrite mode.
    fn all((rate, burst, packet): (u64, u64, u64)) -> impl Iterator<Item = Self> {
        (0..6).map(move |n| Self {
            rate,
            burst,
            packet,
            sink: n / 2,
            overwrite: n % 2 == 1,
        })
    }

    fn attr(self) -> Result<Attr> {
        let Self {
            rate,
            burst,
            packet,
            sink,
            ..
        } = self;
        Ok(Attr {
            config: rate | burst << 24 | packet << 40,
            config1: sink,
            ..traced("pattern")?
        })
    }
}

/// Rate, burst and packet of terms that must be refused or bounded. Each is tested with each sink, in normal and in overwrite mode.
const HOSTILE: [(u64, u64, u64); 6] = [
    // One packet more than is allowed.
    (8192, 5, 255),
    (8192, 16, 255),
    (16384, 1000, 16),
    // The default burst of this rate: a millisecond.
    (0xff_ffff, 0, 255),
    (0xff_ffff, 0, 0),
    (0xff_ffff, 65535, 1),
];

/// A gigabyte in a tick keeps an emulated CPU busy for a minute. These terms are tried only if the others are refused or bounded.
const WORST: [(u64, u64, u64); 1] = [(0xff_ffff, 65535, 255)];

/// A unit that generates nothing for this time has failed.
const LONG: Duration = Duration::from_secs(60);

/// These are harmless, and must not be refused.
const HARMLESS: [(u64, u64, u64); 4] = [
    (1024, 0, 0),
    (16384, 0, 16),
    (8192, 4, 255),
    (8192, 1024, 1),
];

fn ticks() -> Result<String> {
    let (mut tried, mut refused) = (0, 0);
    let mut wrong = Vec::new();
    let mut unbounded: Vec<(u64, Duration, Terms)> = Vec::new();
    for (harmless, table) in [(true, &HARMLESS[..]), (false, &HOSTILE), (false, &WORST)] {
        if table == WORST && !unbounded.is_empty() {
            break;
        }
        for terms in table.iter().flat_map(|&row| Terms::all(row)) {
            tried += 1;
            match terms.longest().with_context(|| format!("{terms:?}"))? {
                None if harmless => wrong.push(format!("{terms:?}: refused")),
                None => refused += 1,
                Some((least, _)) if least <= TICK => {}
                Some((least, gap)) => unbounded.push((least, gap, terms)),
            }
        }
    }
    if let Some((max, gap, terms)) = unbounded.iter().max_by_key(|(_, gap, _)| gap) {
        wrong.push(format!(
            "{} of {tried} terms write more than {TICK} bytes in a tick; the longest: {terms:?} {max} bytes, {} ms in which \
             the user's own code did not run",
            unbounded.len(),
            gap.as_millis()
        ));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(format!(
        "{refused} of {tried} terms refused, the others bounded"
    ))
}

impl Terms {
    /// Measures the bytes in one tick, by a thread that reads the count all the time; and the longest time between two reads. Returns
    /// [`None`] if the terms are refused.
    ///
    /// There may be more than one tick between two reads. So the smallest growth of the count is returned.
    fn longest(self) -> Result<Option<(u64, Duration)>> {
        const LOOKS: usize = 8;
        let event = match Event::open(&self.attr()?, 0, -1) {
            Ok(event) => event,
            Err(error) if matches!(error.raw_os_error(), Some(EINVAL | EACCES)) => return Ok(None),
            Err(error) => return Err(error).context("cannot open an event"),
        };
        // 32 pages hold two packets of each of these lengths.
        let (base, aux) = rings(&event, 1, 32, self.overwrite)?;
        event.enable()?;
        let end = Instant::now() + Duration::from_secs(2);
        let (mut last, mut seen) = (0, Vec::new());
        let (mut looked, mut gap) = (Instant::now(), Duration::ZERO);
        while seen.is_empty() || Instant::now() < end && seen.len() < LOOKS {
            ensure!(looked.elapsed() < LONG, "nothing was generated");
            let now = event.count()?.context("the event does not count")?.value;
            gap = gap.max(looked.elapsed());
            looked = Instant::now();
            if now != last {
                seen.push(now - last);
                last = now;
            }
            // A full ring disables the event.
            set(&base, Field::AuxTail, get(&base, Field::AuxHead));
            event.enable()?;
        }
        event.disable()?;
        drop((aux, base));
        let least = seen.iter().min().copied();
        Ok(Some((least.unwrap_or(0), gap)))
    }
}

const EINVAL: i32 = 22;
const EACCES: i32 = 13;

/// An event of a single thread, with an AUX ring of one page.
struct Held {
    _rings: (Mapping, Mapping),
    _event: Event,
}

/// Pages of the rings of such an event: control page, data ring and AUX ring.
const RING: u64 = 3;

impl Held {
    fn new(bounce: u64) -> Result<Self> {
        let attr = Attr {
            config1: 1 | bounce << 16,
            ..traced("pattern")?
        };
        let event = Event::open(&attr, 0, -1).context("cannot open an event")?;
        Ok(Self {
            _rings: rings(&event, 1, 1, false)?,
            _event: event,
        })
    }
}

/// Starts up to `max` threads, each of which opens an event with `bounce` pages of bounce memory. Returns how many succeeded.
fn hold(bounce: u64, max: usize) -> usize {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    thread::scope(|scope| {
        let (said, heard) = std::sync::mpsc::channel();
        let mut count = 0;
        for _ in 0..max {
            let (said, wait) = (said.clone(), &wait);
            scope.spawn(move || {
                let held = Held::new(bounce);
                let _ = said.send(held.is_ok());
                // The thread waits until the sender is dropped.
                let _ = wait.lock().map(|wait| wait.recv());
            });
            if !heard.recv().unwrap_or(false) {
                break;
            }
            count += 1;
        }
        drop(go);
        count
    })
}

fn memory() -> Result<String> {
    // A limit, so that the guest does not run out of memory.
    const MAX: u64 = 32768;
    let cpus = u64::try_from(thread::available_parallelism()?.get())?;
    let mlock = std::fs::read_to_string("/proc/sys/kernel/perf_event_mlock_kb")
        .context("cannot read what perf lets a user lock")?;
    let mlock: u64 = mlock.trim().parse().context("not a number")?;
    // The pages that perf allows this user for rings.
    let allowed = (mlock * cpus + (LOCKED >> 10)) * 1024 / bytes(1);
    let mut wrong = Vec::new();

    for bounce in [64, 1024, 32768] {
        // Threads that have ended must release everything: the second time must have the same result.
        let max = usize::try_from(MAX / bounce)?.min(64);
        let times = [hold(bounce, max), hold(bounce, max)];
        if times[0] != times[1] {
            wrong.push(format!(
                "bounce={bounce}: {times:?} events at first and later"
            ));
        }
        let held = u64::try_from(times[0])? * (bounce + RING);
        if held > allowed {
            wrong.push(format!(
                "bounce={bounce}: {} events hold {held} pages",
                times[0]
            ));
        }
        if bounce < allowed / 2 && times[0] == 0 {
            wrong.push(format!("bounce={bounce}: refused"));
        }
    }
    if !wrong.is_empty() {
        bail!("{allowed} pages are allowed; {}", wrong.join("; "));
    }
    Ok(format!("{allowed} pages are allowed, and no more was held"))
}
