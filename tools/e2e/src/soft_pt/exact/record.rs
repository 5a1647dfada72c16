// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs each program in a guest: once stepped by `steptrace`, and traced.

use std::fs::{self, File};
use std::hint;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{bail, ensure, Context, Result};
use rustix::io::Errno;
use rustix::process::{kill_process, Pid, Signal};
use rustix::thread::{sched_setaffinity, CpuSet};

use super::decoders::offset;
use super::{
    Expect::{Losses, Visits, Writes, X32},
    Outcome, Program, Runs, Way, CODE, HELD,
};
use crate::module;
use crate::wait::wait_for;

/// A compiler that compiles while its program runs.
const PYPY: &str = "/usr/bin/pypy3";

/// The end of the line that `stress` prints for a case that it leaves out.
const LACKS: &str = ": the machine lacks something";

/// The exit status of a program that needs a feature which the kernel does not have.
const ABSENT: i32 = 77;

/// Held for reading while a program is traced. The driver's counters are those of all its events, so a case that reads them holds this for
/// writing.
static TRACED: RwLock<()> = RwLock::new(());

/// Held while a program runs with the highest priority. Other tasks, also those of the kernel, then need the other CPU.
static FIRST: Mutex<()> = Mutex::new(());

/// Calls `runs` for each program, two at a time. If there is a driver, it is loaded meanwhile.
pub(super) fn all(
    driver: Option<(&str, &[&str])>,
    chosen: impl Iterator<Item = &'static Program> + Send,
    runs: &(impl Fn(&Program) + Sync),
) -> Result<()> {
    if let Some((driver, parameters)) = driver {
        module::load("rust_perf")?;
        module::load("rust_stepping")?;
        let file = format!("/modules/{driver}.ko");
        module::tool("insmod", &[&[file.as_str()], parameters].concat())?;
    }
    fs::write("/proc/sys/kernel/randomize_va_space", "0")
        .context("cannot turn randomisation off")?;
    same_digits()?;
    leave_alone()?;
    let left = &Mutex::new(chosen);
    let worker = |cpu| -> Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        // The programs that this thread starts stay on this CPU.
        sched_setaffinity(None, &set).with_context(|| format!("cannot move to CPU {cpu}"))?;
        loop {
            // The lock is not held while the program runs.
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
    match driver {
        Some((driver, _)) => module::unload(driver).context("a reference to the driver is left"),
        None => Ok(()),
    }
}

/// Makes the kernel let a task of the highest priority keep its CPU as long as it wants.
fn leave_alone() -> Result<()> {
    // The watchdog runs a task of the highest priority every few seconds.
    let mut files = vec![PathBuf::from("/proc/sys/kernel/watchdog")];
    // The scheduler reserves a part of each second for other tasks.
    let servers = fs::read_dir("/sys/kernel/debug/sched/fair_server");
    for cpu in servers.context("the scheduler keeps time for others")? {
        files.push(cpu?.path().join("runtime"));
    }
    for file in files {
        fs::write(&file, "0").with_context(|| format!("cannot write to {}", file.display()))?;
    }
    Ok(())
}

/// Starts programs until process ids have four digits. The C library writes a thread's id into the name of its stack, and all runs must
/// write the same number of digits.
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

/// Runs a program in these ways. Each run must end as the untraced one.
pub(super) fn runs(programs: &Path, program: &Program, which: &Runs) -> Result<Outcome> {
    let path = programs.join(program.name);
    let path = path.to_str().context("no plain path")?;
    let name = program.name;
    if matches!(program.expect, X32) && !can_run(path)? {
        return Ok(Outcome::Skipped("this kernel does not run x32 programs"));
    }
    if name == "dispatched" && output(&[], &[path], "")?.status.code() == Some(ABSENT) {
        return Ok(Outcome::Skipped("this kernel has no SYSCALL_USER_DISPATCH"));
    }
    let constant = format!("LD_PRELOAD={}", programs.join("constant.so").display());
    let command = match name {
        "generated" => vec![path, CODE],
        // Its random seed determines where it puts compiled code.
        "compiled.lua" => vec!["/usr/bin/env", &constant, "/usr/bin/luajit", path],
        "compiled.py" => {
            as_compiled()?;
            // It compiles early, like a program that runs long.
            let early = "threshold=53,trace_eagerness=20";
            vec![PYPY, "--jit", early, "-I", "-S", "-B", path]
        }
        _ => vec![path],
    };
    let log = format!("/out/{name}.log");
    // auxrec writes generated code to a second file with a similar name.
    let data = format!("/tmp/{name}.data");
    let theirs = format!("/out/{name}.perf.data");
    let by_steptrace: &[&str] = &["steptrace", "record", "-o", &log, "--"];
    // perf changes the environment of the program that it starts.
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
    let (mut runs, mut probes) = (Vec::new(), None);
    let asked = match which {
        Runs::All | Runs::Traced => {
            let traced = traced(program, path, &data, &command)?;
            runs.push(("auxrec", traced.time, traced.seen));
            probes = traced.probes;
            traced.asked
        }
        Runs::Stepped(folder) if matches!(program.expect, Losses) => {
            let path = folder.join(format!("{name}.asked"));
            let asked = fs::read_to_string(&path);
            asked.with_context(|| format!("cannot read {}", path.display()))?
        }
        Runs::Stepped(_) => String::new(),
    };
    let alone = output(&[], &command, &asked)?;
    if name == "stress" {
        let said = String::from_utf8_lossy(&alone.stdout);
        let absent: Vec<_> = said.lines().filter_map(|l| l.strip_suffix(LACKS)).collect();
        note += &format!("left out: {}; ", absent.join(", "));
    }
    if let Some(probes) = probes {
        note += &format!("{} hits of probes, ", probes.remove()?);
    }
    if let Visits(_) | Writes(_) = program.expect {
        fs::write(format!("/out/{name}.out"), &runs[0].2.stdout)
            .context("cannot keep its output")?;
    }
    if let (Losses, Runs::Traced) = (&program.expect, which) {
        fs::write(format!("/out/{name}.asked"), &asked).context("cannot keep what it was asked")?;
    }
    let mut more = Vec::new();
    if program.is_stepped() && which.steps() {
        more.push(("steptrace", by_steptrace));
    }
    if program.perf && which.traces() {
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
        // A ptrace tracer cannot hide the trap flag, which these programs look for.
        if tracer == "steptrace" && ["flags", "probed", "unreadable", "x32"].contains(&name) {
            continue;
        }
        // The recorder reports lost trace by exit status 3.
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
    if !which.traces() {
        return Ok(Outcome::Good(format!("{note}{}", alone.status)));
    }
    if name == "generated" {
        fs::copy(CODE, "/out/generated.code").context("cannot keep the code")?;
    }
    for (kept, needed) in [("data", true), ("data.code", false)] {
        let from = format!("/tmp/{name}.{kept}");
        if needed || fs::exists(&from)? {
            let to = format!("/out/{name}.{kept}");
            fs::copy(&from, to).with_context(|| format!("cannot keep {from}"))?;
        }
    }
    Ok(Outcome::Good(format!("{note}{}", alone.status)))
}

/// The result of a traced run.
struct Traced {
    /// The input that the program got.
    asked: String,
    seen: Output,
    time: Duration,
    probes: Option<Probes>,
}

/// Records a program with `auxrec`, together with the activity that the program's case needs.
fn traced(program: &Program, path: &str, data: &str, command: &[&str]) -> Result<Traced> {
    let _rival = (program.name == "vsyscalls").then(Rival::start);
    let start = Instant::now();
    let probes = match program.name {
        "probed" => Some(Probes::put(path)?),
        _ => None,
    };
    let (asked, seen) = match program.expect {
        Losses => {
            let _alone = TRACED.write();
            held(&by_auxrec(program, None, data), command)?
        }
        _ => {
            let _others = TRACED.read();
            (String::new(), recorded(program, None, data, command)?)
        }
    };
    Ok(Traced {
        asked,
        seen,
        time: start.elapsed(),
        probes,
    })
}

/// Records a program with `auxrec` into a file.
pub(super) fn recorded(
    program: &Program,
    way: Option<Way>,
    data: &str,
    command: &[&str],
) -> Result<Output> {
    let _first = program.packets.then(|| FIRST.lock());
    output(&by_auxrec(program, way, data), command, "")
}

/// The command for that.
fn by_auxrec<'a>(program: &Program, way: Option<Way>, data: &'a str) -> Vec<&'a str> {
    // With this priority, no other task runs on the program's CPU while it does not sleep.
    let first: &[&str] = if program.packets {
        &["/usr/bin/chrt", "--fifo", "99"]
    } else {
        &[]
    };
    let rings = match program.expect {
        Losses => ["-m64,1", "--aux-watermark=4K"],
        // These run so long that the recorder falls behind.
        _ if ["compiled.py", "stress"].contains(&program.name) => {
            ["-m64,4096", "--aux-watermark=4M"]
        }
        // At the watermark, the trace restarts at the next trap.
        _ if program.packets => ["-m64,512", "--aux-watermark=2M"],
        _ => ["-m64,512", "--aux-watermark=512K"],
    };
    // The recorder wakes up now and then. It has a lower priority than the program, so it runs only when no thread of the program can. The
    // trace continues when threads of the program switch, and restarts after any other task.
    let behind: &[&str] = if program.packets { &["-r98"] } else { &[] };
    let auxrec: &[&str] = &["auxrec", "record", "-q", "-e", program.event(way)];
    [first, auxrec, &rings, behind, &["-o", data, "--"]].concat()
}

/// A thread that never sleeps, on the CPU of this thread. So a program on that CPU is preempted at any place.
struct Rival {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    fn start() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            while !seen.load(Relaxed) {
                hint::spin_loop();
            }
        });
        Self {
            ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // The thread has no code that can fail.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// uprobes on the functions `on_…` of a program.
struct Probes;

impl Probes {
    const EVENTS: &str = "/sys/kernel/tracing/uprobe_events";
    const ENABLE: &str = "/sys/kernel/tracing/events/probed/enable";
    /// The fewest hits in one run of the program: 20 rounds with five functions and a return.
    const FEWEST: u64 = 6 * 20;

    fn put(path: &str) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {path}"))?;
        // A fork waits while probes are installed.
        let _none_first = FIRST.lock();
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

    /// Removes the probes. Returns how often they were hit.
    fn remove(self) -> Result<u64> {
        let _none_first = FIRST.lock();
        let path = "/sys/kernel/tracing/uprobe_profile";
        let text = fs::read_to_string(path).context("cannot read the profile")?;
        let hits = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2));
        let hits = hits.filter_map(|hits| hits.parse::<u64>().ok()).sum();
        fs::write(Self::ENABLE, "0").context("cannot disable probes")?;
        fs::write(Self::EVENTS, "").context("cannot remove probes")?;
        // There is a traced run and an untraced one.
        ensure!(hits >= 2 * Self::FEWEST, "the probes were hit {hits} times");
        Ok(hits)
    }
}

/// Gives PyPy's modules the modification times that they had when they were compiled. Otherwise PyPy compiles them again.
fn as_compiled() -> Result<()> {
    let mut folders: Vec<_> = fs::read_dir("/usr/lib")?.collect::<Result<_, _>>()?;
    folders.retain(|entry| entry.file_name().to_string_lossy().starts_with("pypy3"));
    for folder in folders {
        for cached in ["__pycache__", "encodings/__pycache__"] {
            let cached = folder.path().join(cached);
            for entry in
                fs::read_dir(&cached).with_context(|| format!("no {}", cached.display()))?
            {
                let path = entry?.path();
                let header = fs::read(&path)?;
                let time = header.get(8..12).and_then(|time| time.try_into().ok());
                let time = u32::from_le_bytes(time.context("no compiled module")?);
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let stem = name.split('.').next().unwrap_or_default();
                let source = cached.with_file_name(format!("{stem}.py"));
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time.into());
                File::options()
                    .write(true)
                    .open(&source)
                    .and_then(|file| file.set_modified(time))
                    .with_context(|| format!("cannot change {}", source.display()))?;
            }
        }
    }
    Ok(())
}

/// Whether the kernel can execute this kind of program.
fn can_run(path: &str) -> Result<bool> {
    match Command::new(path).output() {
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => Ok(false),
        output => output.map(|_| true),
    }
    .with_context(|| format!("cannot start {path}"))
}

/// Runs a program with this input, under a tracer if one is given.
pub(super) fn output(tracer: &[&str], command: &[&str], input: &str) -> Result<Output> {
    let mut child = start(tracer, command)?;
    let mut stdin = child.stdin.take().context("no way to its input")?;
    // The program may end without reading all of its input.
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

/// Runs a program that works on request. Its recorder is stopped while the program generates more trace than the ring holds. Returns the
/// requests, and the program's output and exit status.
fn held(recorder: &[&str], command: &[&str]) -> Result<(String, Output)> {
    let mut child = start(recorder, command)?;
    let asked = hold(&mut child);
    if asked.is_err() {
        child.kill().context("cannot end the recorder")?;
    }
    // This end of the program's input is closed, so the program ends.
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

/// A program that works on request.
struct Worker {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The requests so far.
    asked: String,
    /// Its output so far.
    said: String,
}

impl Worker {
    /// Requests work, and waits until it is done.
    fn work(&mut self, what: &str) -> Result<()> {
        let asked = self.input.write_all(what.as_bytes());
        asked.context("the program does not read")?;
        self.asked += what;
        let len = self.output.read_line(&mut self.said);
        let len = len.context("the program does not write")?;
        ensure!(len != 0, "the program has ended");
        Ok(())
    }

    /// Requests a little work again and again, until some of it is traced.
    fn until_traced(&mut self) -> Result<()> {
        let before = count("begins")?;
        wait_for("trace of it", || {
            self.work(".")?;
            Ok(count("begins")? != before)
        })
    }
}

fn count(name: &str) -> Result<u64> {
    module::counter("intel_pt", name)
}

/// Stops the recorder for a while, several times. Returns the requests and the program's output.
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
