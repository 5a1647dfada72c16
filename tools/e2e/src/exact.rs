// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `soft_pt`: is what decoders make of its trace what a program executed, instruction by instruction?
//!
//! In a guest each program runs by itself, stepped by `steptrace`, and traced: by `auxrec`, and by stock perf. Decoding takes long in a
//! guest that is emulated, so it is done outside, from the files, by perf and by libipt. The programs see the same addresses in all
//! runs: nothing is random, the environment is the same, and so is the CPU, of which each has one for itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use auxrec::trace::Trace;
use clap::Subcommand;
use perfdata::Event;
use rustix::thread::{sched_setaffinity, CpuSet};
use steptrace::compare::{self, Decoded};
use steptrace::log::{self, Threads};

use crate::{ktap, module};

/// What is to be done.
#[derive(Subcommand, Debug)]
pub enum Part {
    /// Run and record the programs, in a guest.
    Record {
        /// Where the programs are.
        programs: PathBuf,
        /// Only programs whose names contain one of these.
        filters: Vec<String>,
    },
    /// Decode what was recorded, and compare.
    Judge {
        /// Where the files are.
        files: PathBuf,
        /// The source of `ptwalk`.
        ptwalk: PathBuf,
        /// Only programs whose names contain one of these.
        filters: Vec<String>,
    },
}

/// A program, and what is known of it.
struct Program {
    name: &'static str,
    /// Whether stock perf records it, too.
    perf: bool,
    /// Whether it is one thread from its beginning to its end: ptwalk knows no threads.
    one: bool,
    expect: Expect,
}

/// What the comparison must come to.
enum Expect {
    /// Each instruction of each thread, in its order, and no error.
    Same,
    /// The ring is too small: an error for each loss, and between them each instruction that was counted.
    Losses,
    /// Two runs are not alike; the decoder must show as many instructions as were counted, without an error.
    Counted(&'static str),
}

use Expect::{Counted, Losses, Same};

const fn program(name: &'static str, one: bool, expect: Expect) -> Program {
    Program {
        name,
        perf: false,
        one,
        expect,
    }
}

/// The same, and by stock perf too.
const fn by_perf(name: &'static str, one: bool) -> Program {
    Program {
        name,
        perf: true,
        one,
        expect: Same,
    }
}

/// Long ones first: two run at a time.
const PROGRAMS: &[Program] = &[
    program(
        "goroutines",
        false,
        Counted("a thread of its runtime goes by the clock"),
    ),
    by_perf("exceptions", true),
    program("syscalls", true, Same),
    program("calls-32", true, Same),
    program("threads", false, Same),
    by_perf("calls-static", true),
    program("children", false, Same),
    program("closures", true, Same),
    program("calls", true, Same),
    by_perf("indirect", true),
    program("strings", true, Same),
    program("generated", true, Same),
    program("signals", true, Same),
    program("flags", true, Same),
    by_perf("jumps", true),
    program("again", true, Same),
    program(
        "stepper",
        true,
        Counted("it steps itself, which a debugger changes"),
    ),
    program("losses", false, Losses),
];

/// Another program under the name of the row.
const OTHERS: &[(&str, &str)] = &[("losses", "calls-static")];

/// The file in which `generated` leaves its code.
const CODE: &str = "/tmp/generated.code";

impl Program {
    fn is_one_of(&self, filters: &[String]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| self.name.contains(filter))
    }

    /// The file that is run.
    fn file(&self) -> &'static str {
        let other = OTHERS.iter().find(|(name, _)| *name == self.name);
        other.map_or(self.name, |(_, file)| file)
    }

    /// Whether there is something to compare with.
    fn is_stepped(&self) -> bool {
        !matches!(self.expect, Counted(_))
    }
}

/// Runs a part.
pub fn run(part: &Part) -> Result<ExitCode> {
    let (Part::Record { filters, .. } | Part::Judge { filters, .. }) = part;
    let chosen = || PROGRAMS.iter().filter(|p| p.is_one_of(filters));
    let report = Mutex::new(ktap::Report::begin(chosen().count()));
    // Each as soon as it is known.
    let tell = |program: &Program, outcome: Result<String>| {
        let Ok(mut report) = report.lock() else {
            return;
        };
        match outcome {
            Ok(note) => report.pass(program.name, &note),
            Err(error) => report.fail(program.name, &format!("{error:#}")),
        }
    };
    match part {
        Part::Record { programs, .. } => record(programs, chosen(), &tell)?,
        Part::Judge { files, ptwalk, .. } => {
            let walker = prepare(files, ptwalk)?;
            chosen().for_each(|program| tell(program, compared(files, &walker, program)));
        }
    }
    let good = report.into_inner().is_ok_and(|report| report.good());
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn record(
    programs: &Path,
    chosen: impl Iterator<Item = &'static Program> + Send,
    tell: &(impl Fn(&Program, Result<String>) + Sync),
) -> Result<()> {
    module::load("rust_perf")?;
    module::tool("insmod", &["/modules/soft_pt.ko", "intel_pt=1"])?;
    fs::write("/proc/sys/kernel/randomize_va_space", "0")
        .context("cannot turn randomisation off")?;
    same_digits()?;
    let left = &Mutex::new(chosen);
    let worker = |cpu| -> Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        // What this thread starts stays there.
        sched_setaffinity(None, &set).with_context(|| format!("cannot move to CPU {cpu}"))?;
        loop {
            // Not held while the program runs.
            let Some(program) = left.lock().ok().and_then(|mut left| left.next()) else {
                return Ok(());
            };
            tell(program, runs(programs, program));
        }
    };
    thread::scope(|scope| {
        let workers = [0, 1].map(|cpu| scope.spawn(move || worker(cpu)));
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(ended) => ended,
                Err(_) => bail!("a thread died"),
            })
    })?;
    module::unload("soft_pt").context("somebody holds the driver")
}

/// Starts programs until their numbers have four digits: the C library writes a thread's number into the name of its stack, and
/// all runs are to have as many digits to write.
fn same_digits() -> Result<()> {
    loop {
        let mut child = Command::new("/bin/true")
            .spawn()
            .context("cannot start true")?;
        let number = child.id();
        child.wait()?;
        if number >= 1000 {
            return Ok(());
        }
    }
}

/// All runs of a program; each must end as the one that nobody watches.
fn runs(programs: &Path, program: &Program) -> Result<String> {
    let path = programs.join(program.file());
    let path = path.to_str().context("no plain path")?;
    let name = program.name;
    let mut command = vec![path];
    if name == "generated" {
        command.push(CODE);
    }
    let log = format!("/out/{name}.log");
    let data = format!("/out/{name}.data");
    let theirs = format!("/out/{name}.perf.data");
    let rings = match program.expect {
        Losses => ["-m64,1", "--aux-watermark=4K"],
        _ => ["-m64,512", "--aux-watermark=512K"],
    };
    let [rings, watermark] = rings;
    let by_steptrace: &[&str] = &["steptrace", "record", "-o", &log, "--"];
    let by_auxrec: &[&str] = &[
        "auxrec",
        "record",
        "-q",
        "-e",
        "intel_pt//u",
        rings,
        watermark,
        "-o",
        &data,
        "--",
    ];
    // perf changes the environment of what it starts.
    let by_perf: &[&str] = &[
        "/usr/bin/perf",
        "record",
        "-q",
        "-B",
        "-N",
        "-e",
        "intel_pt//u",
        "-m",
        "64,512",
        "-o",
        &theirs,
        "--",
        "/usr/bin/env",
        "-i",
        "PATH=/bin",
    ];
    let alone = output(&[], &command)?;
    let mut note = String::new();
    let mut tracers = vec![("auxrec", by_auxrec)];
    if program.is_stepped() {
        tracers.push(("steptrace", by_steptrace));
    }
    if program.perf {
        tracers.push(("perf", by_perf));
    }
    for (tracer, arguments) in tracers {
        let start = Instant::now();
        let seen = output(arguments, &command)?;
        note += &format!("{tracer} {:.1} s, ", start.elapsed().as_secs_f64());
        // A tracer by ptrace cannot hide the trap flag, which this program looks for.
        if tracer == "steptrace" && program.name == "flags" {
            continue;
        }
        // The recorder says so when trace was lost.
        let lost = matches!(program.expect, Losses) && seen.status.code() == Some(3);
        ensure!(
            seen.stdout == alone.stdout && (seen.status == alone.status || lost),
            "under {tracer} it ends with {} and says {:?}, else with {} and says {:?}; {}",
            seen.status,
            String::from_utf8_lossy(&seen.stdout),
            alone.status,
            String::from_utf8_lossy(&alone.stdout),
            String::from_utf8_lossy(&seen.stderr),
        );
    }
    if name == "generated" {
        fs::copy(CODE, "/out/generated.code").context("cannot keep the code")?;
    }
    Ok(format!("{note}{}", alone.status))
}

fn output(tracer: &[&str], command: &[&str]) -> Result<Output> {
    let mut words = tracer.iter().chain(command);
    let program = words.next().context("no program")?;
    Command::new(program)
        .args(words)
        .env_clear()
        .env("PATH", "/bin")
        .output()
        .with_context(|| format!("cannot start {program}"))
}

/// What decoding needs: the program that follows a trace with libipt.
fn prepare(files: &Path, ptwalk: &Path) -> Result<PathBuf> {
    let walker = files.join("ptwalk");
    let mut compiler = Command::new("gcc");
    compiler.arg("-O2").arg("-o").arg(&walker);
    let built = compiler.arg(ptwalk).arg("-lipt").output();
    let built = built.context("cannot start gcc")?;
    ensure!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let code = files.join("generated.code");
    if code.exists() {
        fs::copy(code, CODE).context("cannot put the code where it was")?;
    }
    Ok(walker)
}

/// Compares all that was recorded of a program.
fn compared(files: &Path, walker: &Path, program: &Program) -> Result<String> {
    let name = program.name;
    let logged = files.join(format!("{name}.log"));
    let logged = if program.is_stepped() {
        let file = File::open(&logged);
        let file = file.with_context(|| format!("cannot open {}", logged.display()))?;
        log::read(BufReader::new(file))?
    } else {
        Threads::new()
    };
    let data = files.join(format!("{name}.data"));

    let ours = perf(&data)?;
    let traced = total(&ours.threads);
    let (counted, losses) = counted(&data)?;
    let mut note =
        verdict(&program.expect, &logged, ours, losses).context("auxrec's file, by perf")?;
    if program.perf {
        let mut theirs = perf(&files.join(format!("{name}.perf.data")))?;
        forget_env(&logged, &mut theirs.threads);
        verdict(&program.expect, &logged, theirs, 0).context("perf's file, by perf")?;
        note += "; perf's file as well";
    }
    if program.one {
        let walked = walk(&data, walker, files)?;
        match program.expect {
            Counted(_) => ensure!(
                walked.errors.is_empty() && total(&walked.threads) == traced,
                "libipt shows {} instructions and {} errors",
                total(&walked.threads),
                walked.errors.len()
            ),
            _ => {
                verdict(&program.expect, &logged, walked, losses)
                    .context("auxrec's file, by libipt")?;
            }
        }
        note += "; libipt as well";
    }
    ensure!(
        counted == u64::try_from(traced)?,
        "{counted} instructions were counted, and perf shows {traced}"
    );
    Ok(note)
}

fn total(threads: &Threads) -> usize {
    threads.values().map(Vec::len).sum()
}

fn verdict(expect: &Expect, logged: &Threads, decoded: Decoded, losses: u64) -> Result<String> {
    let executed = total(logged);
    let shown = total(&decoded.threads);

    match *expect {
        Same => {
            let outcome = compare::compare(logged, decoded);
            ensure!(outcome.is_equal(), "{outcome}");
            Ok(format!(
                "{executed} instructions in {} threads, all the same",
                logged.len()
            ))
        }
        Losses => {
            let mut pairs = logged.values().zip(decoded.threads.values());
            ensure!(losses > 0, "nothing was lost");
            ensure!(
                u64::try_from(decoded.errors.len())? == losses,
                "{} errors of {losses} losses: {:?}",
                decoded.errors.len(),
                decoded.errors
            );
            ensure!(
                logged.len() == decoded.threads.len() && pairs.all(|(all, some)| holds(all, some)),
                "it shows what was not executed"
            );
            Ok(format!(
                "{shown} of {executed} instructions, {losses} losses, as many errors"
            ))
        }
        Counted(why) => {
            ensure!(
                decoded.errors.is_empty(),
                "{} errors: {}",
                decoded.errors.len(),
                decoded.errors.first().map_or("", String::as_str)
            );
            Ok(format!(
                "{shown} instructions shown, and as many counted: {why}"
            ))
        }
    }
}

/// Whether `some` is left of `all` when parts are left out.
fn holds(all: &[u64], some: &[u64]) -> bool {
    let mut all = all.iter();
    some.iter().all(|ip| all.any(|other| other == ip))
}

/// What perf shows of a file.
fn perf(data: &Path) -> Result<Decoded> {
    let mut script = Command::new("perf");
    script
        .args(["script", "--itrace=i1ie", "-F", "tid,ip", "-i"])
        .arg(data);
    let output = script
        .env("HOME", "/tmp")
        .output()
        .context("cannot start perf")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    compare::read(&output.stdout[..])
}

/// The instructions of `env`, which perf started and which became the program.
fn forget_env(logged: &Threads, decoded: &mut Threads) {
    let begin = logged.values().next().and_then(|ips| ips.first());
    for ips in decoded.values_mut() {
        if let Some(at) = ips.iter().rposition(|ip| Some(ip) == begin) {
            ips.drain(..at);
        }
    }
}

/// What the driver has counted: instructions, and how often it had no room.
fn counted(data: &Path) -> Result<(u64, u64)> {
    let bytes = fs::read(data)?;
    let trace = Trace::read(&bytes)?;
    let counts = trace.rings.values().flat_map(|ring| &ring.counts);
    let losses = trace.rings.values().map(|ring| ring.loss.truncated);
    Ok((counts.map(|count| count.value).sum(), losses.sum()))
}

/// What libipt shows of the one ring that has trace.
fn walk(data: &Path, walker: &Path, files: &Path) -> Result<Decoded> {
    let bytes = fs::read(data)?;
    let trace = Trace::read(&bytes)?;
    ensure!(trace.problems.is_empty(), "{:?}", trace.problems);
    let mut rings = trace.rings.values().filter(|ring| !ring.pieces.is_empty());
    let ring = rings.next().context("no trace")?;
    ensure!(rings.next().is_none(), "trace in several rings");
    let raw = files.join("ring");
    let pieces: Vec<_> = ring.pieces.iter().map(|piece| piece.bytes).collect();
    fs::write(&raw, pieces.concat())?;

    // A later mapping at the same address takes the place of an earlier one.
    let mut image = BTreeMap::new();
    for file in &trace.files {
        for record in file.records() {
            let record = record?;
            let (Event::Mmap2(map), _) = file.decode(&record)? else {
                continue;
            };
            let name = std::str::from_utf8(map.filename)?.trim_end_matches('\0');
            if map.prot & 4 != 0 && name.starts_with('/') && !name.starts_with("//") {
                image.insert(
                    map.addr,
                    format!("{name}:{:x}:{:x}:{:x}", map.pgoff, map.len, map.addr),
                );
            }
        }
    }
    let walked = Command::new(walker)
        .arg(&raw)
        .args(image.values())
        .output()?;
    ensure!(
        walked.status.success(),
        "ptwalk: {}",
        String::from_utf8_lossy(&walked.stderr)
    );
    compare::read(&walked.stdout[..])
}
