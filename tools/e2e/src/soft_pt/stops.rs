// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `soft_pt`: in whichever way tracing stops, the program must continue undisturbed, and the driver must be removable at once.
//!
//! The traced program is `watch` (`tools/e2e/watch.c`). It looks for the trap flag wherever a program can see its flags, and repeats a
//! computation whose result is known. If the driver leaves a trap flag behind, the next trap kills the program.

use std::ffi::CStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use object::{Object, ObjectSegment};
use perfdata::Flags;
use rustix::process::{kill_process, Pid, Signal};

use crate::events::probe::Probe;
use crate::ktap::Skip;
use crate::module;
use crate::recording::{auxrec, Recorder, TraceFile};
use crate::soft_pt::traced;
use crate::wait::{wait_for, PATIENCE};

/// What the program does while it is traced.
const TARGETS: [&str; 6] = ["alone", "threads", "children", "execs", "asleep", "refused"];

/// How tracing stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The events are disabled first, and closed later.
    Disable,
    /// The events are closed while they are enabled.
    Close,
    /// The recorder gets SIGINT.
    Interrupt,
    /// The recorder is killed.
    Kill,
    /// The recorder is killed while the program is stopped by a signal. The driver is unloaded before the program continues.
    Stopped,
}

const STOPS: [Stop; 5] = [
    Stop::Disable,
    Stop::Close,
    Stop::Interrupt,
    Stop::Kill,
    Stop::Stopped,
];

/// How a traced program ends, its exit status, and the signal that ends it.
const ENDS: [(&str, Option<i32>, Option<i32>); 5] = [
    ("exit", Some(7), None),
    ("exec", Some(7), None),
    ("kill", None, Some(9)),
    ("term", None, Some(15)),
    ("fault", None, Some(11)),
];

/// A running `watch`.
struct Watch {
    child: Child,
    says: ChildStdout,
    file: String,
}

impl Watch {
    fn new(what: &str) -> Result<Self> {
        let file = format!("/tmp/watch-{what}");
        let _ = fs::remove_file(&file);
        let mut child = Command::new("watch")
            .args([what, &file])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start watch")?;
        let says = child.stdout.take().context("no pipe")?;
        let mut watch = Self { child, says, file };

        watch.goes_on(1)?;
        Ok(watch)
    }

    fn id(&self) -> Result<i32> {
        self.child.id().try_into().context("not a process")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.id()?).context("not a process")?;
        kill_process(pid, signal).context("cannot send a signal")
    }

    /// Waits until it has reported `rounds` more rounds than by now.
    fn goes_on(&mut self, rounds: usize) -> Result<()> {
        let mut bytes = [0; 1 << 16];
        let mut left = rounds;

        // Discards the rounds that were reported before. The pipe holds no more than that.
        let _before = self.says.read(&mut bytes).context("it says nothing")?;
        while left > 0 {
            let said = self.says.read(&mut bytes[..1]).context("it says nothing")?;
            if said == 0 {
                let status = self.child.wait().context("cannot wait for it")?;
                bail!("it ended with {status}");
            }
            left -= 1;
        }
        Ok(())
    }

    /// Makes it end. Returns its exit status and its other output.
    fn ends(mut self) -> Result<(ExitStatus, String)> {
        fs::write(&self.file, "!").with_context(|| format!("cannot write {}", self.file))?;
        let mut said = String::new();
        self.says
            .read_to_string(&mut said)
            .context("it says nothing")?;
        let status = self.child.wait().context("cannot wait for it")?;
        Ok((status, said.trim_start_matches(['.', 'g', 'o']).to_owned()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended. An error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The tracer of the program.
enum Tracer {
    Probes(Vec<Probe>),
    Recorder(Recorder, TraceFile),
}

impl Tracer {
    /// Traces all threads of a program, and their children, with events of this process.
    fn probes(watch: &Watch, filter: Option<&CStr>) -> Result<Self> {
        let mut attr = traced()?;
        attr.flags |= Flags::INHERIT;
        let mut probes = Vec::new();

        let path = format!("/proc/{}/task", watch.id()?);
        for entry in fs::read_dir(&path).with_context(|| format!("cannot read {path}"))? {
            let name = entry?.file_name();
            let tid = name.to_string_lossy().parse().context("not a thread")?;
            for cpu in 0..2 {
                let probe = Probe::open(&attr, tid, cpu, 16, false)?;
                if let Some(filter) = filter {
                    let set = probe.event.set_filter(filter);
                    set.context("cannot set a filter")?;
                }
                probe.event.enable()?;
                probes.push(probe);
            }
        }
        Ok(Self::Probes(probes))
    }

    fn recorder(watch: &Watch) -> Result<Self> {
        let file = TraceFile::new("stops");
        let recorder = Recorder::spawn(
            auxrec(["record", "-q", "-e", "soft_pt/tsc/u", "-m", "16,16", "-o"])
                .arg(file.path())
                .args(["-p", &watch.id()?.to_string()]),
        )?;
        Ok(Self::Recorder(recorder, file))
    }

    /// Waits until something was traced.
    fn traces(&mut self) -> Result<()> {
        wait_for("trace", || match self {
            Self::Probes(probes) => {
                let mut sum = 0;
                for probe in probes {
                    probe.read_records()?;
                    probe.read_trace(u64::MAX)?;
                    sum += probe.generated()?;
                }
                Ok(sum > 1000)
            }
            Self::Recorder(recorder, file) => {
                recorder.runs()?;
                Ok(fs::metadata(file.path()).is_ok_and(|file| file.len() > 16 * 1024))
            }
        })
    }

    /// Ends the recorder by a signal.
    fn signal(self, signal: Signal) -> Result<()> {
        let Self::Recorder(recorder, _file) = self else {
            bail!("no recorder");
        };
        recorder.signal(signal)?;
        let status = recorder.ended()?;
        // Exit status 3 reports losses, which are possible here.
        ensure!(
            signal == Signal::KILL || matches!(status.code(), Some(0 | 3)),
            "auxrec ended with {status}"
        );
        Ok(())
    }
}

/// Runs one row: this target, and this way to stop.
fn stop(target: &str, stop: Stop) -> Result<()> {
    module::load("soft_pt")?;
    let mut watch = Watch::new(target)?;
    let mut tracer = match stop {
        Stop::Disable | Stop::Close => Tracer::probes(&watch, None)?,
        _ => Tracer::recorder(&watch)?,
    };
    tracer.traces()?;
    ensure!(
        module::unload("soft_pt").is_err(),
        "the driver can be unloaded while it traces"
    );

    match (stop, tracer) {
        (Stop::Disable, Tracer::Probes(probes)) => {
            for probe in &probes {
                probe.event.disable()?;
            }
            watch.goes_on(20)?;
            drop(probes);
        }
        (Stop::Disable | Stop::Close, tracer) => drop(tracer),
        (Stop::Interrupt, tracer) => tracer.signal(Signal::INT)?,
        (Stop::Kill, tracer) => tracer.signal(Signal::KILL)?,
        (Stop::Stopped, tracer) => {
            watch.signal(Signal::STOP)?;
            tracer.signal(Signal::KILL)?;
        }
    }
    // The driver is unloaded at once, while the program runs. A trap flag or a callback that is left would have no handler.
    unload()?;
    if stop == Stop::Stopped {
        watch.signal(Signal::CONT)?;
    }
    watch.goes_on(20)?;
    let (status, said) = watch.ends()?;
    ensure!(status.success(), "it ended with {status}: {said}");
    Ok(())
}

/// Unloads the driver and `rust_stepping`. References may exist for a moment: a child that has not been reaped holds an event, and a signal
/// on its way may hold `rust_stepping`.
fn unload() -> Result<()> {
    let end = Instant::now() + PATIENCE;
    for name in ["soft_pt", "rust_stepping"] {
        while let Err(error) = module::unload(name) {
            if Instant::now() > end {
                return Err(error.context(format!("a reference to {name} is left")));
            }
        }
    }
    Ok(())
}

/// In whichever way tracing stops, the program must continue untraced.
pub fn stops() -> Result<String> {
    let rows = || -> Result<()> {
        for how in STOPS {
            for target in TARGETS {
                stop(target, how).with_context(|| format!("{target}, {how:?}"))?;
            }
        }
        Ok(())
    };
    let outcome = rows();
    // Later cases need the driver.
    module::load("soft_pt")?;
    outcome?;
    Ok(format!(
        "{} ways for {} programs",
        STOPS.len(),
        TARGETS.len()
    ))
}

/// In whichever way a traced program ends, it must end as it would untraced.
pub fn ends() -> Result<String> {
    for (what, code, signal) in ENDS {
        let row = || -> Result<()> {
            module::load("soft_pt")?;
            let watch = Watch::new(what)?;
            let mut tracer = Tracer::probes(&watch, None)?;
            tracer.traces()?;
            let (status, said) = watch.ends()?;
            ensure!(
                (status.code(), status.signal()) == (code, signal),
                "it ended with {status}: {said}"
            );
            drop(tracer);
            unload()
        };
        let outcome = row().with_context(|| what.to_owned());
        // Later cases need the driver.
        module::load("soft_pt")?;
        outcome?;
    }
    Ok(format!("{} ways", ENDS.len()))
}

/// If filters exclude all code of a program, it is still single-stepped, and must not see that either.
pub fn outside() -> Result<String> {
    for target in TARGETS {
        let row = || -> Result<()> {
            let mut watch = Watch::new(target)?;
            let before = module::counter("soft_pt", "begins")?;
            // The program does not execute the bytes there.
            let filter = c"filter 0x10/0x10@/bin/watch";
            let probes = Tracer::probes(&watch, Some(filter))?;
            watch.goes_on(20)?;
            let Tracer::Probes(probes) = probes else {
                bail!("no events");
            };
            let counts = probes.iter().map(Probe::generated);
            let count = counts.sum::<Result<u64>>()?;
            ensure!(count == 0, "{count} instructions were traced");
            ensure!(
                module::counter("soft_pt", "begins")? > before,
                "it was not stepped through"
            );
            let (status, said) = watch.ends()?;
            ensure!(status.success(), "it ended with {status}: {said}");
            Ok(())
        };
        row().with_context(|| target.to_owned())?;
    }
    Ok(format!("{} programs", TARGETS.len()))
}

/// The kernel's own memory.
struct Kernel {
    file: fs::File,
    /// Address, length and file offset of each segment.
    segments: Vec<(u64, u64, u64)>,
}

impl Kernel {
    fn open() -> Result<Self> {
        let path = "/proc/kcore";
        let Ok(file) = fs::File::open(path) else {
            return Err(Skip("this kernel has no /proc/kcore").into());
        };
        let mut header = vec![0; 1 << 16];
        let read = file.read_at(&mut header, 0)?;
        header.truncate(read);
        let elf = object::File::parse(header.as_slice()).context("/proc/kcore is no ELF file")?;
        let segments = elf.segments().map(|segment| {
            let (offset, len) = segment.file_range();
            (segment.address(), len, offset)
        });
        let segments = segments.collect();
        Ok(Self { file, segments })
    }

    /// Reads the number at an address.
    fn read(&self, address: u64) -> Result<u32> {
        let offset = self.segments.iter().find_map(|(start, len, offset)| {
            let into = address.checked_sub(*start)?;
            (into < *len).then_some(offset + into)
        });
        let mut bytes = [0; 4];
        let offset = offset.context("no such memory")?;
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// The tracepoints on which the driver has callbacks while an event exists.
const TRACEPOINTS: [&str; 3] = ["sys_enter", "sys_exit", "sched_switch"];

/// The number of users of each tracepoint: its static key, read from the kernel's memory.
fn keys(kernel: &Kernel) -> Result<[u32; 3]> {
    /// Offset of `key.enabled` in `struct tracepoint`, behind the name.
    const ENABLED: u64 = 8;
    let symbols = fs::read_to_string("/proc/kallsyms").context("cannot read /proc/kallsyms")?;
    let mut keys = [0; 3];

    for (key, name) in keys.iter_mut().zip(TRACEPOINTS) {
        let name = format!("__tracepoint_{name}");
        let line = symbols.lines().find(|line| line.ends_with(&name));
        let address = line.and_then(|line| line.split(' ').next());
        let address = address.with_context(|| format!("there is no {name}"))?;
        *key = kernel.read(u64::from_str_radix(address, 16)? + ENABLED)?;
    }
    Ok(keys)
}

/// Without an event, system calls and task switches must not run a callback. With an event, tracing must work, every time.
pub fn hooked() -> Result<String> {
    const TIMES: usize = 4;
    let kernel = Kernel::open()?;
    let expect = |wanted: [u32; 3], when: &str| -> Result<()> {
        let mut found = keys(&kernel)?;
        // After the last event, a work item removes the callbacks.
        let end = Instant::now() + PATIENCE;
        while wanted == [0; 3] && found != wanted && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
            found = keys(&kernel)?;
        }
        ensure!(
            found == wanted,
            "{when}, {TRACEPOINTS:?} are enabled {found:?} times"
        );
        Ok(())
    };
    let (none, all) = ([0; 3], [1; 3]);

    // Another tracer's switch changes these keys, which shows that the right keys are read.
    let switch = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/enable";
    if fs::write(switch, "1").is_ok() {
        let [enter, ..] = keys(&kernel)?;
        ensure!(
            enter == 1,
            "a trace of another's enables sys_enter {enter} times"
        );
        fs::write(switch, "0").with_context(|| format!("cannot write {switch}"))?;
    }
    for _ in 0..TIMES {
        expect(none, "without an event")?;
        let watch = Watch::new("children")?;
        let mut tracer = Tracer::probes(&watch, None)?;
        expect(all, "with events")?;
        tracer.traces()?;
        let Tracer::Probes(mut probes) = tracer else {
            bail!("no events");
        };
        probes.truncate(1);
        expect(all, "with one event left, and its children's")?;
        drop(probes);
        let (status, said) = watch.ends()?;
        ensure!(status.success(), "it ended with {status}: {said}");
        expect(none, "without an event again")?;
    }
    // A refused event must not leave callbacks behind.
    for config in [1 << 2, 1 << 9, 15 << 24] {
        let attr = perfdata::Attr {
            config,
            ..traced()?
        };
        ensure!(
            auxrec::sys::Event::open(&attr, 0, -1).is_err(),
            "{config:#x} was not refused"
        );
    }
    expect(none, "after refusals")?;
    Ok(format!("{TIMES} times"))
}
