// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `soft_pt`: is what decoders make of its trace what a program executed, instruction by instruction?
//!
//! In a guest each program runs by itself, stepped by `steptrace`, and traced: by `auxrec`, and by stock perf. Decoding takes long in a
//! guest that is emulated, so it is done outside, from the files, by perf and by libipt. The programs see the same addresses in all
//! runs: nothing is random, the environment is the same, and so is the CPU, of which each has one for itself.
//!
//! The file is long, as each program needs a row, and the rules that judge a row belong beside it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Output, Stdio};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::trace::Trace;
use clap::Subcommand;
use object::{Object, ObjectSegment, ObjectSymbol};
use perfdata::Event;
use rustix::io::Errno;
use rustix::process::{kill_process, Pid, Signal};
use rustix::thread::{sched_setaffinity, CpuSet};
use steptrace::compare::{self, Decoded};
use steptrace::log::{self, Threads};

use crate::probe::PATIENCE;
use crate::{ktap, module};

pub mod packets;
mod unit;

/// What is to be done.
#[derive(Subcommand, Debug)]
pub enum Part {
    /// Run and record the programs, in a guest.
    Record {
        /// By the trace unit, after the same without this.
        #[arg(long)]
        unit: bool,
        /// Where the programs are.
        programs: PathBuf,
        /// Only programs whose names contain one of these.
        filters: Vec<String>,
    },
    /// Decode what was recorded, and compare.
    Judge {
        /// What the trace unit traced.
        #[arg(long)]
        unit: bool,
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
    /// The recorder is held still, and its ring overflows: an error for each loss, and between two losses each instruction.
    Losses,
    /// It executes what no file has: decoders stop there, and go on at a PSB that comes later.
    Unseen,
    /// The same by libipt; perf reads it as 32-bit code, as it goes by the kind of the file.
    X32,
    /// Two runs are not alike; the decoder must show as many instructions as were counted, without an error.
    Counted(&'static str),
    /// The same, and the instruction at this symbol as often as the program says.
    Visits(&'static str),
}

use Expect::{Counted, Losses, Same, Unseen, Visits, X32};

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
    by_perf("fibers", true),
    program("losses", true, Losses),
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
    program("probed", true, Same),
    program("dispatched", true, Visits("refused")),
    program("unreadable", true, Same),
    program("sequences", false, Visits("aborted")),
    program("vsyscalls", true, Visits("returned")),
    program("debugged", false, Visits("stepped")),
    program("rewritten", true, Unseen),
    program("x32", true, X32),
];

/// What came of a program.
enum Outcome {
    Good(String),
    Skipped(&'static str),
}

/// How often a recorder is held still, and asked for much work meanwhile.
const HELD: usize = 4;

/// How a program ends that needs what the kernel does not have.
const ABSENT: i32 = 77;

/// Held while something is traced. The driver counts for all its events, so where its counters are looked at there must be one.
static TRACED: RwLock<()> = RwLock::new(());

/// The file in which `generated` leaves its code.
const CODE: &str = "/tmp/generated.code";

impl Program {
    fn is_one_of(&self, filters: &[String]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| self.name.contains(filter))
    }

    /// Whether there is something to compare with.
    fn is_stepped(&self) -> bool {
        !matches!(self.expect, Counted(_) | Visits(_))
    }
}

/// Runs a part.
pub fn run(part: &Part) -> Result<ExitCode> {
    let (Part::Record { filters, unit, .. } | Part::Judge { filters, unit, .. }) = part;
    // All that is said of the unit's trace is that it is the same.
    let fits = |program: &Program| !unit || matches!(program.expect, Same);
    let chosen = || PROGRAMS.iter().filter(|p| p.is_one_of(filters) && fits(p));
    let report = Mutex::new(ktap::Report::begin(chosen().count()));
    // Each as soon as it is known.
    let tell = |program: &Program, outcome: Result<Outcome>| {
        let Ok(mut report) = report.lock() else {
            return;
        };
        match outcome {
            Ok(Outcome::Good(note)) => report.pass(program.name, &note),
            Ok(Outcome::Skipped(why)) => report.skip(program.name, why),
            Err(error) => report.fail(program.name, &format!("{error:#}")),
        }
    };
    match part {
        Part::Record { programs, .. } => {
            let unit = *unit;
            record(unit, chosen(), &|program| {
                let runs = if unit { unit::runs } else { runs };
                tell(program, runs(programs, program));
            })?;
        }
        Part::Judge { files, ptwalk, .. } => {
            let walker = prepare(files, ptwalk)?;
            let compared = if *unit { unit::compared } else { compared };
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
    unit: bool,
    chosen: impl Iterator<Item = &'static Program> + Send,
    runs: &(impl Fn(&Program) + Sync),
) -> Result<()> {
    let driver = if unit { "trace_unit" } else { "soft_pt" };
    module::load("rust_perf")?;
    module::load("rust_stepping")?;
    module::tool("insmod", &[&format!("/modules/{driver}.ko"), "intel_pt=1"])?;
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
            runs(program);
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
    module::unload(driver).context("somebody holds the driver")
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
fn runs(programs: &Path, program: &Program) -> Result<Outcome> {
    let path = programs.join(program.name);
    let path = path.to_str().context("no plain path")?;
    let name = program.name;
    if matches!(program.expect, X32) && !can_run(path)? {
        return Ok(Outcome::Skipped("this kernel does not run x32 programs"));
    }
    if name == "dispatched" && output(&[], &[path], "")?.status.code() == Some(ABSENT) {
        return Ok(Outcome::Skipped("this kernel has no SYSCALL_USER_DISPATCH"));
    }
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
    let mut note = String::new();
    let start = Instant::now();
    let probes = match name {
        "probed" => Some(Probes::put(path)?),
        _ => None,
    };
    let (asked, seen) = match program.expect {
        Losses => {
            let _alone = TRACED.write();
            held(by_auxrec, &command)?
        }
        _ => {
            let _others = TRACED.read();
            (String::new(), output(by_auxrec, &command, "")?)
        }
    };
    let mut runs = vec![("auxrec", start.elapsed(), seen)];
    let alone = output(&[], &command, &asked)?;
    if let Some(probes) = probes {
        note += &format!("{} hits of probes, ", probes.remove()?);
    }
    if let Visits(_) = program.expect {
        fs::write(format!("/out/{name}.out"), &runs[0].2.stdout)
            .context("cannot keep its output")?;
    }
    let mut more = Vec::new();
    if program.is_stepped() {
        more.push(("steptrace", by_steptrace));
    }
    if program.perf {
        more.push(("perf", by_perf));
    }
    for (tracer, arguments) in more {
        let _others = (tracer == "perf").then(|| TRACED.read());
        let start = Instant::now();
        let seen = output(arguments, &command, &asked)?;
        runs.push((tracer, start.elapsed(), seen));
    }
    for (tracer, time, seen) in runs {
        note += &format!("{tracer} {:.1} s, ", time.as_secs_f64());
        // A tracer by ptrace cannot hide the trap flag, which these programs look for.
        if tracer == "steptrace" && ["flags", "probed", "unreadable", "x32"].contains(&name) {
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
    Ok(Outcome::Good(format!("{note}{}", alone.status)))
}

/// The kernel's probes of user code, in the functions `on_…` of a program.
struct Probes;

impl Probes {
    const EVENTS: &str = "/sys/kernel/tracing/uprobe_events";
    const ENABLE: &str = "/sys/kernel/tracing/events/probed/enable";
    /// How the rounds of the program hit them: five functions and a return.
    const FEWEST: u64 = 6 * 20;

    fn put(path: &str) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {path}"))?;
        let mut events = String::new();
        for name in ["on_nop", "on_lea", "on_push", "on_jump", "on_return"] {
            let offset = offset(&bytes, name)?;
            events += &format!("p:probed/{name} {path}:{offset:#x}\n");
        }
        let offset = offset(&bytes, "on_return")?;
        events += &format!("r:probed/returns {path}:{offset:#x}\n");
        fs::write(Self::EVENTS, events).context("cannot put probes")?;
        fs::write(Self::ENABLE, "1").context("cannot enable probes")?;
        Ok(Self)
    }

    /// How often they were hit.
    fn remove(self) -> Result<u64> {
        let path = "/sys/kernel/tracing/uprobe_profile";
        let text = fs::read_to_string(path).context("cannot read the profile")?;
        let hits = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2));
        let hits = hits.filter_map(|hits| hits.parse::<u64>().ok()).sum();
        fs::write(Self::ENABLE, "0").context("cannot disable probes")?;
        fs::write(Self::EVENTS, "").context("cannot remove probes")?;
        // By the run that is traced, and the one that is not.
        ensure!(hits >= 2 * Self::FEWEST, "the probes were hit {hits} times");
        Ok(hits)
    }
}

/// The address of a symbol.
fn address(bytes: &[u8], name: &str) -> Result<u64> {
    let file = object::File::parse(bytes).context("no program")?;
    let symbol = file.symbol_by_name(name);
    Ok(symbol
        .with_context(|| format!("there is no symbol {name}"))?
        .address())
}

/// Where a symbol is in its file.
fn offset(bytes: &[u8], name: &str) -> Result<u64> {
    let address = address(bytes, name)?;
    let file = object::File::parse(bytes).context("no program")?;
    let offset = file.segments().find_map(|segment| {
        let into = address.checked_sub(segment.address())?;
        (into < segment.size()).then(|| segment.file_range().0 + into)
    });
    offset.context("the symbol is in no segment")
}

/// Whether the kernel knows this kind of programs.
fn can_run(path: &str) -> Result<bool> {
    match Command::new(path).output() {
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => Ok(false),
        output => output.map(|_| true),
    }
    .with_context(|| format!("cannot start {path}"))
}

/// Runs a program that reads `input`, under a tracer if there is one.
fn output(tracer: &[&str], command: &[&str], input: &str) -> Result<Output> {
    let mut child = start(tracer, command)?;
    let mut stdin = child.stdin.take().context("no way to its input")?;
    // What it does not read is not missed.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child
        .wait_with_output()
        .context("cannot wait for a program")
}

fn start(tracer: &[&str], command: &[&str]) -> Result<Child> {
    let mut words = tracer.iter().chain(command);
    let program = words.next().context("no program")?;
    Command::new(program)
        .args(words)
        .env_clear()
        .env("PATH", "/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))
}

/// Runs a program that works when it is asked to, under a recorder that is held still while there is more to record than its ring
/// takes; what it was asked for, and how it ended.
fn held(recorder: &[&str], command: &[&str]) -> Result<(String, Output)> {
    let mut child = start(recorder, command)?;
    let asked = hold(&mut child);
    if asked.is_err() {
        child.kill().context("cannot end the recorder")?;
    }
    // Its end of the program's input is closed.
    let output = child
        .wait_with_output()
        .context("cannot wait for the recorder")?;
    let (asked, said) = asked?;
    Ok((
        asked,
        Output {
            stdout: said.into_bytes(),
            ..output
        },
    ))
}

/// A program that works when it is asked to.
struct Worker {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it was asked for.
    asked: String,
    /// What it said.
    said: String,
}

impl Worker {
    /// Has some work done.
    fn work(&mut self, what: &str) -> Result<()> {
        let asked = self.input.write_all(what.as_bytes());
        asked.context("the program does not read")?;
        self.asked += what;
        let len = self.output.read_line(&mut self.said);
        let len = len.context("the program does not write")?;
        ensure!(len != 0, "the program has ended");
        Ok(())
    }

    /// Has little work done, again and again, until some of it is traced.
    fn until_traced(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let before = count("begins")?;
        loop {
            self.work(".")?;
            if count("begins")? != before {
                return Ok(());
            }
            ensure!(Instant::now() < end, "it is not traced, or no more");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn count(name: &str) -> Result<u64> {
    module::counter("intel_pt", name)
}

/// Holds the recorder still for a while, some times; what the program was asked for, and what it said.
fn hold(recorder: &mut Child) -> Result<(String, String)> {
    let pid = i32::try_from(recorder.id()).ok().and_then(Pid::from_raw);
    let pid = pid.context("not a process")?;
    let signal = |signal| kill_process(pid, signal).context("cannot send the recorder a signal");
    let output = recorder.stdout.take().context("no way to its output")?;
    let mut worker = Worker {
        input: recorder.stdin.take().context("no way to its input")?,
        output: BufReader::new(output),
        asked: String::new(),
        said: String::new(),
    };

    for _ in 0..HELD {
        let before = count("truncated")?;
        worker.until_traced()?;
        signal(Signal::STOP)?;
        worker.work("w")?;
        signal(Signal::CONT)?;
        ensure!(count("truncated")? > before, "the ring took all of it");
    }
    worker.until_traced()?;
    Ok((worker.asked, worker.said))
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

/// What is known of a run.
struct Run {
    /// An address, and how often the program says that it was there.
    visits: Option<(u64, usize)>,
    /// What was executed, in another run that was stepped.
    logged: Threads,
    /// What is known of it by files.
    image: Image,
    /// How many instructions the driver counted.
    counted: u64,
    /// How often it had no room.
    losses: u64,
}

#[derive(Clone, Copy)]
enum Decoder {
    Perf,
    Libipt,
}

/// Compares all that was recorded of a program.
fn compared(files: &Path, walker: &Path, program: &Program) -> Result<Outcome> {
    let name = program.name;
    let data = files.join(format!("{name}.data"));
    // If it should have been, that has been said.
    if !data.exists() {
        return Ok(Outcome::Skipped("it was not recorded"));
    }
    let logged = files.join(format!("{name}.log"));
    let logged = if program.is_stepped() {
        let file = File::open(&logged);
        let file = file.with_context(|| format!("cannot open {}", logged.display()))?;
        log::read(BufReader::new(file))?
    } else {
        Threads::new()
    };
    let (counted, losses) = counted(&data)?;
    let visits = match program.expect {
        Visits(symbol) => {
            let path = files.join(format!("{name}.out"));
            let said = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let image = image(&data)?;
            let file = image.0.values().find(|part| part.file.ends_with(name));
            let file = &file.context("the program is not mapped")?.file;
            let bytes = fs::read(file).with_context(|| format!("cannot read {file}"))?;
            Some((address(&bytes, symbol)?, said.trim().parse()?))
        }
        _ => None,
    };
    let run = Run {
        visits,
        logged,
        image: image(&data)?,
        counted,
        losses,
    };
    let judge = |decoded, decoder| verdict(&program.expect, &run, decoder, decoded);

    let ours = judge(perf(&data)?, Decoder::Perf);
    let mut note = ours.context("auxrec's file, by perf")?;
    if program.perf {
        let mut theirs = perf(&files.join(format!("{name}.perf.data")))?;
        forget_env(&run.logged, &mut theirs.threads);
        judge(theirs, Decoder::Perf).context("perf's file, by perf")?;
        note += "; perf's file as well";
    }
    if program.one {
        let walked = walk(&data, walker, files, &run.image)?;
        let walked = judge(walked, Decoder::Libipt).context("auxrec's file, by libipt")?;
        note += &format!("; libipt: {walked}");
    }
    Ok(Outcome::Good(note))
}

fn total(threads: &Threads) -> usize {
    threads.values().map(Vec::len).sum()
}

fn verdict(expect: &Expect, run: &Run, decoder: Decoder, decoded: Decoded) -> Result<String> {
    let executed = total(&run.logged);
    let shown = total(&decoded.threads);
    let errors = decoded.errors.len();
    let first = decoded.errors.first().cloned().unwrap_or_default();
    let all_counted = |number: usize| {
        ensure!(
            run.counted == u64::try_from(number)?,
            "{} instructions were counted, and there are {number}",
            run.counted
        );
        Ok(())
    };

    match (expect, decoder) {
        (X32, Decoder::Perf) => {
            let outcome = compare::compare(&run.logged, decoded);
            ensure!(!outcome.is_equal(), "perf can read x32 programs now");
            Ok(format!(
                "perf reads it as 32-bit code: {shown} instructions for {executed}, {errors} errors"
            ))
        }
        (Same, _) | (X32, Decoder::Libipt) => {
            let outcome = compare::compare(&run.logged, decoded);
            ensure!(outcome.is_equal(), "{outcome}");
            all_counted(executed)?;
            Ok(format!(
                "{executed} instructions in {} threads, all the same",
                run.logged.len()
            ))
        }
        (Losses, _) => {
            let held = u64::try_from(HELD)?;
            ensure!(run.losses >= held, "{} losses of {held}", run.losses);
            let expected = match decoder {
                Decoder::Perf => run.losses,
                // What is cut ends as it should: perf makes its errors of the records.
                Decoder::Libipt => 0,
            };
            ensure!(
                u64::try_from(errors)? == expected,
                "{errors} errors of {} losses: {first}",
                run.losses
            );
            all_counted(shown)?;
            let parts = parts(one(&run.logged)?, one(&decoded.threads)?);
            let parts = parts.context("it shows what was not executed")?;
            // It goes on after each time that the recorder was held, and nothing is missing but for a loss.
            let parts = parts.len();
            ensure!(
                parts > HELD && u64::try_from(parts)? <= run.losses + 1,
                "{} losses, and what it shows is in {parts} parts",
                run.losses
            );
            Ok(format!(
                "{shown} of {executed} instructions in {parts} parts, {} losses, {errors} errors",
                run.losses
            ))
        }
        (Unseen, _) => {
            let has = |ip: &u64| run.image.has(*ip);
            let all = one(&run.logged)?;
            let known = decoded.errors.iter().all(|error| run.image.explains(error));
            ensure!(known, "an error is another: {:?}", decoded.errors);
            let parts = parts(all, one(&decoded.threads)?);
            let parts = parts.context("it shows what was not executed")?;
            let ends = parts.iter().filter_map(|part| all.get(part.end));
            let wrong: Vec<_> = ends.clone().filter(|ip| has(ip)).collect();
            ensure!(wrong.is_empty(), "it stops in front of {wrong:x?}");
            let ends = ends.count();
            let told = match decoder {
                // Of code that it has missed once it says no more.
                Decoder::Perf => (1..=ends).contains(&errors),
                Decoder::Libipt => errors == ends,
            };
            ensure!(told, "it stops {ends} times, with {errors} errors");
            ensure!(parts.len() > 2, "it does not go on behind what no file has");
            all_counted(executed)?;
            let visits = all.chunk_by(|a, b| has(a) == has(b));
            let visits = visits.filter(|ips| !ips.first().is_some_and(has)).count();
            Ok(format!(
                "{shown} of {executed} instructions in {} parts, {errors} errors; {visits} times it went where no file is, and {ends} times that was seen",
                parts.len()
            ))
        }
        (Visits(symbol), _) => {
            ensure!(errors == 0, "{errors} errors: {first}");
            all_counted(shown)?;
            let (address, said) = run.visits.context("it was not recorded")?;
            let all = decoded.threads.values().flatten();
            let visits = all.filter(|ip| **ip == address).count();
            ensure!(
                said > 0 && visits == said,
                "{symbol} was executed {said} times, and is shown {visits} times"
            );
            Ok(format!(
                "{shown} instructions shown, and as many counted; {visits} times at {symbol}"
            ))
        }
        (Counted(why), _) => {
            ensure!(errors == 0, "{errors} errors: {first}");
            all_counted(shown)?;
            Ok(format!(
                "{shown} instructions shown, and as many counted: {why}"
            ))
        }
    }
}

/// The instructions of the one thread there is.
fn one(threads: &Threads) -> Result<&[u64]> {
    let mut all = threads.values();
    let only = all.next().context("no instruction")?;
    ensure!(all.next().is_none(), "{} threads", threads.len());
    Ok(only)
}

/// The parts of `all` that `some` is made of, each without a gap, in their order; none if it is not.
fn parts(all: &[u64], some: &[u64]) -> Option<Vec<Range<usize>>> {
    let mut parts = Vec::new();
    let (mut from, mut left) = (0, some);

    while !left.is_empty() {
        // The longest, of those the first.
        let tails = (from..all.len()).filter_map(|at| Some((at, all.get(at..)?)));
        let (at, len) = tails
            .map(|(at, tail)| (at, common(tail, left)))
            .max_by_key(|&(at, len)| (len, Reverse(at)))
            .filter(|&(_, len)| len != 0)?;
        from = at + len;
        left = left.get(len..)?;
        parts.push(at..from);
    }
    Some(parts)
}

/// How much two begin with alike.
fn common(left: &[u64], right: &[u64]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}

/// What files say of a program's code.
struct Image(BTreeMap<u64, Mapped>);

/// A part of a file.
struct Mapped {
    file: String,
    offset: u64,
    len: u64,
}

impl Image {
    fn has(&self, ip: u64) -> bool {
        let before = self.0.range(..=ip).next_back();
        before.is_some_and(|(at, part)| ip - at < part.len)
    }

    /// Whether a decoder's error is that no file has an instruction.
    fn explains(&self, error: &str) -> bool {
        // libipt, which says where in the trace.
        if error.contains("no memory mapped at this address") {
            return true;
        }
        let mut words = error.split_whitespace().skip_while(|word| *word != "ip");
        let ip = words.nth(1).and_then(|word| word.strip_prefix("0x"));
        let ip = ip.and_then(|word| u64::from_str_radix(word, 16).ok());
        error.contains("Failed to get instruction") && ip.is_some_and(|ip| !self.has(ip))
    }
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

/// What was mapped to be executed, of files.
fn image(data: &Path) -> Result<Image> {
    let bytes = fs::read(data)?;
    let trace = Trace::read(&bytes)?;
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
                let part = Mapped {
                    file: name.to_owned(),
                    offset: map.pgoff,
                    len: map.len,
                };
                image.insert(map.addr, part);
            }
        }
    }
    Ok(Image(image))
}

/// What libipt shows of the one ring that has trace.
fn walk(data: &Path, walker: &Path, files: &Path, image: &Image) -> Result<Decoded> {
    let bytes = fs::read(data)?;
    let trace = Trace::read(&bytes)?;
    ensure!(trace.problems.is_empty(), "{:?}", trace.problems);
    let mut rings = trace.rings.values().filter(|ring| !ring.pieces.is_empty());
    let ring = rings.next().context("no trace")?;
    ensure!(rings.next().is_none(), "trace in several rings");
    let raw = files.join("ring");
    let pieces: Vec<_> = ring.pieces.iter().map(|piece| piece.bytes).collect();
    fs::write(&raw, pieces.concat())?;

    let parts = image.0.iter().map(|(at, part)| {
        let Mapped { file, offset, len } = part;
        format!("{file}:{offset:x}:{len:x}:{at:x}")
    });
    let walked = Command::new(walker).arg(&raw).args(parts).output()?;
    // It ends with 1 where it has said that there were errors.
    let decoded = compare::read(&walked.stdout[..])?;
    ensure!(
        walked.status.success() || !decoded.errors.is_empty(),
        "ptwalk: {}",
        String::from_utf8_lossy(&walked.stderr)
    );
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found() {
        let all = [1, 2, 3, 1, 2, 4, 5, 6];
        let table: [(&[u64], &str); 8] = [
            (&[], "Some([])"),
            (&all, "Some([0..8])"),
            (&[1, 2, 4], "Some([3..6])"),
            (&[2, 3, 5, 6], "Some([1..3, 6..8])"),
            (&[1, 3, 2, 5], "Some([0..1, 2..3, 4..5, 6..7])"),
            (&[2, 1], "Some([1..2, 3..4])"),
            (&[6, 5], "None"),
            (&[1, 7], "None"),
        ];
        for (some, expected) in table {
            assert_eq!(format!("{:?}", parts(&all, some)), expected, "{some:?}");
        }
    }

    #[test]
    fn what_files_have() {
        let part = |len| Mapped {
            file: "/bin/a".to_owned(),
            offset: 0,
            len,
        };
        let image = Image(BTreeMap::from([(0x1000, part(0x10)), (0x2000, part(0x20))]));
        let table = [
            (0xfff, false),
            (0x1000, true),
            (0x100f, true),
            (0x1010, false),
            (0x201f, true),
        ];
        for (ip, has) in table {
            assert_eq!(image.has(ip), has, "{ip:x}");
        }
        let error = |ip, what| format!(" instruction trace error type 1 ip {ip} code 5: {what}");
        assert!(image.explains(&error("0x1010", "Failed to get instruction")));
        assert!(!image.explains(&error("0x1000", "Failed to get instruction")));
        assert!(!image.explains(&error("0x1010", "Lost trace data")));
    }
}
