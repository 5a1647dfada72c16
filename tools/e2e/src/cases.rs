// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cases.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use pattern_codec::{Header, PACKET_UNIT};
use rustix::process::Signal;

use crate::apart;
use crate::compress;
use crate::contract;
use crate::device;
use crate::drivers;
use crate::failing;
use crate::hostile;
use crate::hotplug;
use crate::limits;
use crate::live;
use crate::locks;
use crate::minimal;
use crate::module;
use crate::overwrite;
use crate::recorder;
use crate::recording::{Disk, Reader, Recorder, TraceFile};
use crate::restart;
use crate::sampling;
use crate::share;
use crate::soft_pt;
use crate::target;
use crate::tasks;
use crate::truncate;

/// A case: a name, and what to do.
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    what: What,
}

enum What {
    /// Record, check, compare.
    Trace(Trace),
    /// A refusal: arguments of the recorder, its exit status, and what it must say.
    Refused(&'static [&'static str], i32, &'static [&'static str]),
    /// Something else.
    Steps(fn(&str) -> Result<String>),
    /// An attack, after which all must be as before.
    Hostile(fn() -> Result<String>),
    /// With the driver that steps through programs.
    Stepped(fn() -> Result<String>),
}

/// How much is traced, and what must come of it.
struct Trace {
    /// Terms of the event.
    terms: &'static str,
    /// Pages of the AUX ring.
    ring: u64,
    /// What is traced: arguments of the recorder.
    target: &'static [&'static str],
    workload: &'static str,
    reader: Reader,
    /// Whether the ring is mapped read-only, to be overwritten.
    overwrite: bool,
    /// How often the rings must have gone round at least, all CPUs together.
    wraps: u64,
    /// Whether the rings must have been full.
    full: bool,
    /// How many CPUs must have trace at least.
    cpus: usize,
    /// How many streams there must be at least.
    streams: usize,
}

pub const PAGE: u64 = 4096;

/// What most traces have in common.
///
/// A ring holds 128 ms of trace: a guest may be without a processor for a while when the machine has other work, and a
/// reader that keeps up must not be blamed for that.
const TRACE: Trace = Trace {
    terms: "rate=512",
    ring: 16,
    target: &["-C", "0"],
    workload: "sleep",
    reader: Reader::KeepsUp,
    overwrite: false,
    wraps: 10,
    full: false,
    cpus: 1,
    streams: 1,
};

/// All cases, in the order in which they are run.
pub fn all() -> impl Iterator<Item = Case> {
    let attacks = sampling::ALL
        .into_iter()
        .chain(contract::ALL)
        .chain(hostile::ALL)
        .chain(drivers::ALL)
        .chain(failing::all())
        .chain(limits::ALL)
        .chain(restart::ALL)
        .chain(hotplug::ATTACKS)
        .chain(device::ALL)
        .map(|attack| Case {
            name: attack.name,
            what: What::Hostile(attack.run),
        });
    let more = recorder::ALL
        .into_iter()
        .chain(target::ALL)
        .chain(truncate::ALL)
        .chain(hotplug::ALL)
        .chain(tasks::ALL)
        .chain(compress::ALL)
        .chain(live::ALL)
        .chain(overwrite::ALL)
        .chain(apart::ALL)
        .chain(share::ALL)
        .map(|(name, steps)| Case {
            name,
            what: What::Steps(steps),
        });
    let stepped = soft_pt::ALL.into_iter().map(|(name, run)| Case {
        name,
        what: What::Stepped(run),
    });
    // At the end: where one of these fails, its guest ends.
    let last = locks::ALL.into_iter().map(|attack| Case {
        name: attack.name,
        what: What::Hostile(attack.run),
    });
    USUAL
        .into_iter()
        .chain(more)
        .chain(attacks)
        .chain(stepped)
        .chain(last)
}

/// What users do, and what goes wrong then.
const USUAL: [Case; 38] = [
    trace(
        "ring of 2 pages",
        Trace {
            // Straight into the ring, a page of two is all that the unit may fill before the reader comes.
            terms: "rate=64,sink=1",
            ring: 2,
            wraps: 3,
            ..TRACE
        },
    ),
    trace("ring of 16 pages", TRACE),
    trace(
        "ring of 1024 pages",
        Trace {
            terms: "rate=16384,packet=32",
            ring: 1024,
            ..TRACE
        },
    ),
    trace(
        "packets that do not divide the ring",
        Trace {
            terms: "rate=512,packet=3,burst=5",
            ..TRACE
        },
    ),
    trace(
        "sessions that are padded",
        Trace {
            // No packets of 192 bytes end at a page, at which each session begins.
            terms: "rate=512,packet=3,align=12",
            ..TRACE
        },
    ),
    trace(
        "slow reader, ring of 2 pages",
        // Of two pages the unit gets one at a time.
        Trace {
            ring: 2,
            reader: Reader::Slow,
            full: true,
            wraps: 2,
            ..TRACE
        },
    ),
    trace(
        "slow reader, ring of 16 pages",
        Trace {
            terms: "rate=4096,packet=3",
            reader: Reader::Slow,
            full: true,
            ..TRACE
        },
    ),
    trace(
        "overwrite, ring of 2 pages",
        Trace {
            ring: 2,
            overwrite: true,
            ..TRACE
        },
    ),
    trace(
        "overwrite, ring of 16 pages",
        Trace {
            terms: "rate=4096,packet=3",
            overwrite: true,
            ..TRACE
        },
    ),
    trace(
        "overwrite, not filled once",
        Trace {
            ring: 1024,
            overwrite: true,
            wraps: 0,
            ..TRACE
        },
    ),
    trace(
        "two CPUs",
        Trace {
            target: &["-C", "0,1"],
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "all CPUs, slow reader",
        Trace {
            terms: "rate=4096",
            target: &["-a"],
            reader: Reader::Slow,
            full: true,
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "two CPUs, overwrite",
        Trace {
            terms: "rate=4096",
            target: &["-a"],
            overwrite: true,
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "task",
        Trace {
            target: &[],
            workload: "spin",
            ..TRACE
        },
    ),
    trace(
        "task that migrates, a ring a CPU",
        Trace {
            target: &[],
            workload: "migrate",
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "task that migrates, one ring",
        Trace {
            target: &["--per-thread"],
            workload: "migrate",
            cpus: 2,
            ..TRACE
        },
    ),
    trace(
        "task that migrates, one ring, slow reader",
        Trace {
            terms: "rate=4096",
            target: &["--per-thread"],
            workload: "migrate",
            reader: Reader::Slow,
            full: true,
            cpus: 2,
            ..TRACE
        },
    ),
    trace(
        "children inherit",
        Trace {
            target: &[],
            workload: "fork",
            streams: 5,
            ..TRACE
        },
    ),
    Case {
        name: "attach to a process",
        what: What::Steps(attach),
    },
    Case {
        name: "interrupted recorder",
        what: What::Steps(interrupted),
    },
    Case {
        name: "killed recorder",
        what: What::Steps(killed),
    },
    Case {
        name: "largest file",
        what: What::Steps(max_size),
    },
    Case {
        name: "full disk",
        what: What::Steps(full_disk),
    },
    Case {
        name: "exact number of bytes",
        what: What::Steps(exact),
    },
    Case {
        name: "minimal, every number",
        what: What::Steps(minimal::every_number),
    },
    Case {
        name: "modules unloaded and loaded again",
        what: What::Steps(reload),
    },
    Case {
        name: "unload while an event is open",
        what: What::Steps(busy),
    },
    refused(
        "unknown PMU",
        &["-e", "patern//", "--", "true"],
        2,
        &["patern", "pattern"],
    ),
    refused(
        "unknown term",
        &["-e", "pattern/rat=1/", "--", "true"],
        2,
        &["rat", "rate", "burst"],
    ),
    refused(
        "value too large for its term",
        &["-e", "pattern/sink=9/", "--", "true"],
        2,
        &["sink", "3"],
    ),
    refused(
        "what the driver cannot do",
        &["-e", "pattern/sink=3/", "--", "true"],
        1,
        &["pattern/sink=3/", "refuses"],
    ),
    refused(
        "what makes no sense to the driver",
        &["-e", "pattern/rate=16777215,burst=1/", "--", "true"],
        1,
        &["pattern/rate=16777215,burst=1/", "refuses"],
    ),
    refused(
        "ring of no power of two",
        &["-e", "pattern//", "-m", "16,3", "--", "true"],
        2,
        &["3", "2", "4"],
    ),
    refused(
        "ring that is too small",
        &["-e", "pattern/packet=255/", "-m", "16,2", "--", "true"],
        1,
        &["AUX"],
    ),
    refused(
        "command that is not there",
        &["-e", "pattern//", "--", "/no/such"],
        1,
        &["/no/such"],
    ),
    refused(
        "process that is not there",
        &["-e", "pattern//", "-p", "999999"],
        2,
        &["999999"],
    ),
    refused(
        "CPU that is not there",
        &["-e", "pattern//", "-C", "77", "--", "true"],
        2,
        &["77", "online"],
    ),
    Case {
        name: "limits of an unprivileged user",
        what: What::Steps(unprivileged),
    },
];

const fn trace(name: &'static str, trace: Trace) -> Case {
    Case {
        name,
        what: What::Trace(trace),
    }
}

const fn refused(
    name: &'static str,
    arguments: &'static [&'static str],
    status: i32,
    says: &'static [&'static str],
) -> Case {
    Case {
        name,
        what: What::Refused(arguments, status, says),
    }
}

impl Case {
    /// Runs it; says what was seen.
    pub fn run(&self) -> Result<String> {
        match &self.what {
            What::Trace(trace) => trace.run(self.name),
            What::Refused(arguments, status, says) => refuse(self.name, arguments, *status, says),
            What::Steps(steps) => steps(self.name),
            What::Hostile(attack) => {
                let seen = attack()?;
                released()?;
                TRACE.run(self.name).context("a recording after it")?;
                Ok(seen)
            }
            What::Stepped(run) => soft_pt::run(*run),
        }
    }
}

impl Trace {
    fn run(&self, name: &str) -> Result<String> {
        let file = TraceFile::new(name);
        // A kernel that looks at each access leaves a reader less time.
        let (ring, wraps) = match failing::debug() && !self.full {
            true => (4 * self.ring, self.wraps / 4),
            false => (self.ring, self.wraps),
        };
        let mut arguments = event(self.terms, ring);
        arguments.extend(self.target.iter().map(ToString::to_string));
        if self.overwrite {
            arguments.extend(["-S".into(), "e".into()]);
        }
        arguments.push("--".into());
        arguments.extend(["auxe2e", "workload", self.workload].map(String::from));
        if self.overwrite {
            // The file is written at the end only: what the rings hold then.
            arguments.extend(["--ms".into(), "900".into()]);
        } else {
            let cpus = u64::try_from(self.cpus)?;
            // Each ring may be on its way to the next wrap; and the file has more than trace.
            let bytes = (wraps + 1) * ring * PAGE * cpus + 16 * PAGE;
            arguments.extend([
                "--until".into(),
                file.path().display().to_string(),
                bytes.to_string(),
            ]);
        }

        let ended = Recorder::start(file.path(), &arguments)?.wait(self.reader)?;
        let seen = Seen::of(&file)?;

        seen.is_right()?;
        ensure!(
            seen.wraps >= wraps,
            "the rings went round {} times only: {seen}",
            seen.wraps
        );
        ensure!(
            seen.cpus.len() >= self.cpus,
            "trace of CPUs {:?} only: {seen}",
            seen.cpus
        );
        ensure!(
            seen.content.streams >= u64::try_from(self.streams)?,
            "too few streams: {seen}"
        );
        if self.full {
            ensure!(
                seen.truncations > 1,
                "the ring was not full, and then enabled again: {seen}"
            );
        } else {
            ensure!(
                seen.truncations == 0,
                "a reader that keeps up found the ring full: {seen}"
            );
            ensure!(
                seen.content.lost == 0,
                "bytes are lost, though the ring was never full: {seen}"
            );
        }
        if self.overwrite {
            let most = ring * PAGE * u64::try_from(seen.cpus.len())?;
            ensure!(
                seen.content.recorded <= most,
                "more in the file than the rings hold: {seen}"
            );
        }
        let lost = seen.content.lost > 0;
        let expected = if lost || self.full { 3 } else { 0 };
        ensure!(
            ended.status == expected,
            "auxrec record: exit status {}: {}",
            ended.status,
            ended.errors
        );
        released()?;

        Ok(seen.to_string())
    }
}

/// `-e` and `-m` for the PMU under test.
pub fn event(terms: &str, ring: u64) -> Vec<String> {
    [
        "-e",
        &format!("pattern/{terms}/"),
        "-m",
        &format!("64,{ring}"),
    ]
    .map(String::from)
    .to_vec()
}

/// What is in a file.
pub struct Seen {
    pub content: auxrec::check::Content,
    problems: Vec<String>,
    pub wraps: u64,
    pub truncations: u64,
    pub cpus: Vec<u32>,
}

impl Seen {
    /// Reads a file with the library, and has the command agree.
    pub fn of(file: &TraceFile) -> Result<Self> {
        Self::of_parts(&[file.path().to_owned()])
    }

    /// Of a recording that went into several files.
    pub fn of_parts(paths: &[PathBuf]) -> Result<Self> {
        let (seen, expected) = Self::read(paths)?;
        let output = Command::new("auxrec")
            .arg("check")
            .args(paths)
            .output()
            .context("cannot start auxrec")?;
        ensure!(
            output.status.code() == Some(expected),
            "auxrec check ended with {} and not with {expected}: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
        );
        Ok(seen)
    }

    /// Reads files with the library only; gives the status with which the command must end.
    fn read(paths: &[PathBuf]) -> Result<(Self, i32)> {
        let files = paths
            .iter()
            .map(|path| {
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
            })
            .collect::<Result<Vec<_>>>()?;
        let parts: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        let findings = auxrec::check::check_parts(&parts)?;
        let content = findings
            .content()
            .context("the file has no trace of pattern")?;
        let expected = if !findings.problems.is_empty() {
            1
        } else if findings.lost() {
            3
        } else {
            0
        };
        let seen = Self {
            content,
            problems: findings.problems.clone(),
            wraps: findings.wraps,
            truncations: findings
                .rings
                .iter()
                .map(|(_, loss, _)| loss.truncated + loss.full)
                .sum(),
            cpus: cpus(&parts)?,
        };
        Ok((seen, expected))
    }

    /// Whether every byte is right, and none is missing without having been counted.
    pub fn is_right(&self) -> Result<()> {
        let Self {
            content, problems, ..
        } = self;

        ensure!(problems.is_empty(), "{}\n{self}", problems.join("\n"));
        ensure!(
            content.mismatches == 0,
            "{} mismatches: {self}",
            content.mismatches
        );
        ensure!(content.generated > 0, "nothing was generated");
        ensure!(
            content.generated == content.recorded + content.lost + content.overwritten,
            "the sum is wrong: {self}",
        );
        Ok(())
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} wraps, {} truncations, CPUs {:?}",
            self.content, self.wraps, self.truncations, self.cpus,
        )
    }
}

/// The CPUs that have written packets, as the packets say.
fn cpus(parts: &[&[u8]]) -> Result<Vec<u32>> {
    let trace = auxrec::trace::Trace::read_parts(parts)?;
    let mut cpus = BTreeSet::new();

    for piece in trace.rings.values().flat_map(|ring| &ring.pieces) {
        // Packets begin at multiples of their unit, in the stream and so in every piece of it but for what cuts it.
        let skew = piece.aux.offset.wrapping_neg() % u64::from(PACKET_UNIT);
        let whole = piece
            .bytes
            .get(usize::try_from(skew)?..)
            .unwrap_or_default();
        for unit in whole.chunks(PACKET_UNIT.into()) {
            if let Ok(header) = Header::decode(unit) {
                cpus.insert(u32::from(header.cpu));
            }
        }
    }
    Ok(cpus.into_iter().collect())
}

/// Waits until nobody holds the driver: events, rings and their references are gone.
pub fn released() -> Result<()> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let references = module::references("pattern")?;
        if references == 0 {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("pattern still has {references} references when nothing uses it");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn refuse(name: &str, arguments: &[&str], status: i32, says: &[&str]) -> Result<String> {
    let file = TraceFile::new(name);
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;

    ensure!(
        ended.status == status,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    for word in says {
        ensure!(
            ended.errors.contains(word),
            "it does not say {word:?}: {}",
            ended.errors
        );
    }
    released()?;
    ensure!(!file.path().exists(), "it left a file");

    Ok(ended.errors.trim().replace('\n', " "))
}

/// Starts a recorder without an end, and waits until it has recorded `bytes`.
fn until(file: &TraceFile, arguments: &[String], bytes: u64) -> Result<Recorder> {
    let recorder = Recorder::start(file.path(), arguments)?;
    let end = Instant::now() + Duration::from_secs(30);

    while std::fs::metadata(file.path()).map_or(0, |m| m.len()) < bytes {
        if Instant::now() > end {
            recorder.signal(Signal::INT)?;
            let ended = recorder.wait(Reader::KeepsUp)?;
            bail!("no trace: exit status {}: {}", ended.status, ended.errors);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(recorder)
}

fn attach(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut target = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "60000"])
        .spawn()
        .context("cannot start a process to attach to")?;
    let mut arguments = event("rate=512", 16);
    arguments.extend(["-p".into(), target.id().to_string()]);

    let recorded = until(&file, &arguments, 10 * 16 * PAGE).and_then(|recorder| {
        // The recording ends with what it records.
        target.kill()?;
        recorder.wait(Reader::KeepsUp)
    });
    target.kill().or_else(|_| target.try_wait().map(|_| ()))?;
    target.wait()?;
    let ended = recorded?;
    ensure!(
        ended.status == 0,
        "auxrec record: exit status {}: {}",
        ended.status,
        ended.errors
    );

    let seen = Seen::of(&file)?;
    seen.is_right()?;
    ensure!(seen.content.lost == 0, "bytes are lost: {seen}");
    released()?;
    Ok(seen.to_string())
}

fn interrupted(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut arguments = event("rate=512", 16);
    arguments.push("-a".into());

    let recorder = until(&file, &arguments, 10 * 16 * PAGE)?;
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "auxrec record: exit status {}: {}",
        ended.status,
        ended.errors
    );

    let seen = Seen::of(&file)?;
    seen.is_right()?;
    ensure!(seen.content.lost == 0, "bytes are lost: {seen}");
    released()?;
    Ok(seen.to_string())
}

/// A recording that ends by itself when its file is large enough, and not much later.
fn max_size(name: &str) -> Result<String> {
    const SIZE: u64 = 1 << 20;
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let mut arguments = event("rate=2048", 64);
        let more = ["-a", "--threads", threads, "--max-size", "1M"];
        arguments.extend(more.map(String::from));
        let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        let expected = if seen.content.lost > 0 { 3 } else { 0 };
        ensure!(
            ended.status == expected,
            "auxrec record: exit status {}: {}",
            ended.status,
            ended.errors
        );
        let len = std::fs::metadata(file.path())?.len();
        // What the two rings hold comes after it.
        ensure!(
            (SIZE..SIZE + 3 * 64 * PAGE).contains(&len),
            "the file has {len} bytes: {seen}"
        );
        out = seen.to_string();
    }
    Ok(out)
}

/// A disk that is full: the recording ends with a sentence, and the file has what found room, with every byte accounted for.
fn full_disk(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let disk = Disk::new(name, "1m")?;
        let file = TraceFile::within(disk.path());
        let mut arguments = event("rate=2048", 64);
        arguments.extend(["-a", "--threads", threads].map(String::from));
        let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
        ensure!(
            ended.status == 1 && ended.errors.contains("there is no space left for it"),
            "auxrec record: exit status {}: {}",
            ended.status,
            ended.errors
        );
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        ensure!(
            seen.content.recorded > 1 << 19,
            "the disk has room for more: {seen}"
        );
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}

/// Always the same numbers below others, of no pattern: the generator of Numerical Recipes.
pub fn random() -> impl FnMut(u64) -> u64 {
    let mut seed: u32 = 1;
    move |below| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(seed >> 8) % below
    }
}

/// Killed at moments of no choice; what it has written is a recording after `recover`, with every byte right.
fn killed(name: &str) -> Result<String> {
    const TIMES: u64 = 100;
    let mut random = random();
    let mut sum = 0;
    for time in 0..TIMES {
        let file = TraceFile::new(name);
        let mut arguments = event("rate=8192", 16);
        arguments.push("-a".into());

        // Somewhere in the middle of what it does, and of the first wraps.
        let recorder = until(&file, &arguments, 4 * PAGE + random(30 * PAGE))?;
        thread::sleep(Duration::from_micros(random(16_000)));
        recorder.kill()?;
        released()?;
        let there = std::fs::metadata(file.path())?.len();
        // The command is tried now and then; to start it takes longer than all else.
        let seen = if time % 10 == 0 {
            let output = Command::new("auxrec")
                .arg("recover")
                .arg(file.path())
                .output()
                .context("cannot start auxrec")?;
            ensure!(
                output.status.success(),
                "auxrec recover: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            Seen::of(&file)?
        } else {
            auxrec::recover::recover(file.path())?;
            Seen::read(&[file.path().to_owned()])?.0
        };
        seen.is_right().with_context(|| format!("kill {time}"))?;
        // All but what the two rings can hold, and headers and records.
        ensure!(
            seen.content.recorded + 40_000 > there,
            "{there} bytes were in the file: {seen}"
        );
        sum += seen.content.recorded;
    }
    Ok(format!("{TIMES} times, {sum} bytes recovered in all"))
}

/// A unit that falls silent after a number of bytes, all of which arrive.
fn exact(name: &str) -> Result<String> {
    const LIMIT: u64 = 1 << 20;
    let file = TraceFile::new(name);
    let mut arguments = event(&format!("rate=2048,limit={LIMIT}"), 64);
    arguments.extend(["-C".into(), "1".into()]);

    // The last bytes come with the commit at the end.
    let recorder = until(&file, &arguments, LIMIT / 2)?;
    thread::sleep(Duration::from_millis(1000));
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "auxrec record: exit status {}: {}",
        ended.status,
        ended.errors
    );

    let seen = Seen::of(&file)?;
    seen.is_right()?;
    let content = seen.content;
    ensure!(
        content.generated == LIMIT && content.recorded == LIMIT,
        "not {LIMIT} bytes: {seen}"
    );
    released()?;
    Ok(seen.to_string())
}

fn reload(name: &str) -> Result<String> {
    const TIMES: u32 = 3;
    let mut out = String::new();

    for _ in 0..TIMES {
        for module in module::ORDER.iter().rev() {
            module::unload(module)?;
            ensure!(
                !module::is_loaded(module),
                "{module} is still there after rmmod"
            );
        }
        module::load_all()?;

        let seen = TRACE.run(name)?;
        out.clear();
        write!(out, "{TIMES} times; last {seen}")?;
    }
    Ok(out)
}

fn busy(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut arguments = event("rate=512", 16);
    arguments.extend(["-C".into(), "0".into()]);

    let recorder = until(&file, &arguments, 16 * PAGE)?;
    let references = module::references("pattern")?;
    let refusals: Vec<_> = module::ORDER
        .iter()
        .rev()
        .map(|module| module::unload(module))
        .collect();
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;

    ensure!(references > 0, "an open event holds no reference");
    for refusal in refusals {
        ensure!(refusal.is_err(), "a module in use was unloaded");
    }
    ensure!(
        ended.status == 0,
        "auxrec record: exit status {}: {}",
        ended.status,
        ended.errors
    );
    Seen::of(&file)?.is_right()?;
    released()?;
    for module in module::ORDER.iter().rev() {
        module::unload(module)?;
    }
    Ok(format!(
        "refused with {references} references, and unloaded after"
    ))
}

/// What an ordinary user is told: which limit bites, its value, and how to raise it.
fn unprivileged(_name: &str) -> Result<String> {
    const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
    const NOBODY: u32 = 65534;
    let before = std::fs::read_to_string(PARANOID).context("cannot read perf_event_paranoid")?;
    let ask = |paranoid: &str, arguments: &[&str]| -> Result<(i32, String)> {
        use std::os::unix::process::CommandExt;

        std::fs::write(PARANOID, paranoid).context("cannot set perf_event_paranoid")?;
        let file = TraceFile::new("unprivileged");
        let output = Command::new("auxrec")
            .arg("record")
            .arg("-o")
            .arg(file.path())
            .args(arguments)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .context("cannot start auxrec")?;
        let status = output.status.code().context("auxrec was killed")?;
        Ok((status, String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let program = [
        "-e",
        "pattern//",
        "--",
        "auxe2e",
        "workload",
        "spin",
        "--ms",
        "50",
    ];
    let large = [
        "-e",
        "pattern//",
        "-m",
        "16,16384",
        "--",
        "auxe2e",
        "workload",
        "spin",
        "--ms",
        "50",
    ];
    let table: [(&str, &[&str], &[&str]); 3] = [
        ("2", &program, &["perf_event_paranoid", "2", "CAP_PERFMON"]),
        (
            "1",
            &["-e", "pattern//", "-a"],
            &["perf_event_paranoid", "1", "CAP_PERFMON"],
        ),
        ("1", &large, &["perf_event_mlock_kb", "RLIMIT_MEMLOCK"]),
    ];

    let mut outcome = Ok(());
    for (paranoid, arguments, says) in table {
        outcome = ask(paranoid, arguments).and_then(|(status, errors)| {
            ensure!(status == 1, "{arguments:?}: exit status {status}: {errors}");
            for word in says {
                ensure!(
                    errors.contains(word),
                    "{arguments:?}: it does not say {word:?}: {errors}"
                );
            }
            Ok(())
        });
        if outcome.is_err() {
            break;
        }
    }
    // And what is within the limits works, or is made to be.
    let small = ["-e", "pattern//", "-m", "8,8"];
    let shrunk = [&large[..4], &["--shrink"]].concat();
    let workload = ["--", "auxe2e", "workload", "spin", "--ms", "50"];
    let allowed = outcome.and_then(|()| {
        let small = ask("1", &[&small[..], &workload].concat())?;
        Ok((small, ask("1", &[&shrunk[..], &workload].concat())?))
    });
    std::fs::write(PARANOID, before).context("cannot restore perf_event_paranoid")?;
    let (small, shrunk) = allowed?;
    for ((status, errors), smaller) in [(small, false), (shrunk, true)] {
        // On a machine that is slow a small ring may be full once, which is told of.
        ensure!(
            matches!(status, 0 | 3) && errors.contains("the rings are made smaller") == smaller,
            "a recording within the limits: exit status {status}: {errors}"
        );
    }
    released()?;

    Ok(format!(
        "{} refusals, and two recordings within the limits",
        table.len()
    ))
}
