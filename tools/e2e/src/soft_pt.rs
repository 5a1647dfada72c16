// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of `soft_pt`: tracing must not disturb the traced program, and must respect permissions.
//!
//! If the driver leaves a trap flag behind in a program, the next trap kills the program. So each case checks at the end how its programs
//! ended. These cases do not decode the trace; others do so with perf.

pub mod exact;
mod followed;
mod reported;
mod runs;
mod sampled;
pub mod stepped;
pub mod stops;
mod triggered;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use auxview::trace::Trace;
use perfdata::{Attr, Flags, Read};

use followed::{filters, flamegraph, snapshot, times};
pub use followed::{place, Followed, PROGRAM};
pub use runs::times as of_runs;

use crate::attack::{software, CPU_CLOCK};
use crate::events::probe::Probe;
use crate::events::siblings::{RESUME, START_PAUSED};
use crate::module;
use crate::recording::{self, auxrec, Recorder, TraceFile};
use crate::wait::{wait_for, PATIENCE};

/// A case: its name, and its code.
pub type Case = (&'static str, fn() -> Result<String>);

/// Checks how stock perf shows a recording with a trigger.
pub fn trigger_by_perf() -> Result<String> {
    module::load_all()?;
    run(triggered::by_perf)
}

/// All cases.
pub const ALL: [Case; 28] = [
    ("soft_pt: attached and detached", attach),
    ("soft_pt: closed while it runs", close),
    ("soft_pt: a ring without a reader", full),
    ("soft_pt: enabled and disabled in a hurry", hurry),
    ("soft_pt: paused and resumed", pause),
    ("soft_pt: fork, exec and exit", family),
    ("soft_pt: all tasks of both CPUs", everybody),
    ("soft_pt: recorder killed", killed),
    ("soft_pt: however it stops", stops::stops),
    ("soft_pt: however the program ends", stops::ends),
    ("soft_pt: hooked while there is an event", stops::hooked),
    ("soft_pt: the kernel and other terms refused", refused),
    ("soft_pt: another user's program", permission),
    ("soft_pt: what the recorder says to do", hint),
    ("soft_pt: a flame graph", flamegraph),
    ("soft_pt: address filters", filters),
    ("soft_pt: outside of all filters", stops::outside),
    ("soft_pt: a snapshot", snapshot),
    ("soft_pt: a trigger", triggered::hits),
    (
        "soft_pt: the end of a snapshot at a trigger",
        triggered::end,
    ),
    ("soft_pt: a trigger of a process", triggered::process),
    ("soft_pt: what is no trigger", triggered::refused),
    ("soft_pt: the time of each piece", times),
    ("soft_pt: many short runs", runs::same),
    ("soft_pt: each single step is reported", reported::steps),
    ("soft_pt: what a reported step does", reported::acts),
    ("soft_pt: events that sample, refused", sampled::refused),
    (
        "soft_pt: an event that samples, and its leader",
        sampled::counts,
    ),
];

/// Runs a case with the module loaded, and unloads it afterwards.
pub fn run(case: fn() -> Result<String>) -> Result<String> {
    module::with("soft_pt", case)
}

/// The event that perf opens for `soft_pt/tsc/u`.
pub fn traced() -> Result<Attr> {
    Ok(Attr {
        kind: module::pmu_type("soft_pt")?,
        config: 1 << 10,
        sample_period: 1,
        read_format: Read::FORMAT,
        flags: Flags::DISABLED | Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
        ..Attr::default()
    })
}

/// A program that computes until it is stopped by a file.
struct Victim {
    child: Child,
    stop: String,
}

impl Victim {
    fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let stop = format!("/tmp/stop-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let child = Command::new("/proc/self/exe")
            .args(["workload", "spin", "--until", &stop])
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start a program")?;

        Ok(Self { child, stop })
    }

    fn id(&self) -> Result<i32> {
        id(&self.child)
    }

    /// Stops it, and checks its exit status.
    fn ends(self) -> Result<()> {
        std::fs::write(&self.stop, "!").with_context(|| format!("cannot write {}", self.stop))?;
        ended(self.child)
    }
}

fn id(child: &Child) -> Result<i32> {
    child.id().try_into().context("not a process")
}

/// Waits until the program ends by itself, with success.
fn ended(mut child: Child) -> Result<()> {
    let end = Instant::now() + PATIENCE;

    while Instant::now() < end {
        if let Some(status) = child.try_wait().context("cannot wait for a program")? {
            ensure!(status.success(), "the program ended with {status}");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().context("cannot end a program")?;
    bail!("the program did not end");
}

/// Waits until `aux_head` is above `from`.
fn grows(probe: &mut Probe, from: u64) -> Result<()> {
    probe.until("trace", |probe| {
        probe.read_trace(u64::MAX)?;
        Ok(probe.head() > from)
    })
}

fn attach() -> Result<String> {
    let child = Victim::new()?;
    let mut probe = Probe::open(&traced()?, child.id()?, -1, 64, false)?;

    probe.event.enable()?;
    grows(&mut probe, 0)?;
    probe.event.disable()?;
    let (head, count) = (probe.head(), probe.generated()?);
    thread::sleep(Duration::from_millis(100));
    ensure!(
        (probe.head(), probe.generated()?) == (head, count),
        "it traces on after it was disabled"
    );
    child.ends()?;
    ensure!(count > 0, "no instruction was counted");
    Ok(format!("{head} bytes, {count} instructions"))
}

fn close() -> Result<String> {
    const TIMES: u32 = 5;

    for _ in 0..TIMES {
        let child = Victim::new()?;
        let mut probe = Probe::open(&traced()?, child.id()?, -1, 16, false)?;

        probe.event.enable()?;
        grows(&mut probe, 0)?;
        drop(probe);
        child.ends()?;
    }
    Ok(format!("{TIMES} times"))
}

fn full() -> Result<String> {
    const TIMES: usize = 5;
    let child = Victim::new()?;
    let mut probe = Probe::open(&traced()?, child.id()?, -1, 2, false)?;

    for n in 1..=TIMES {
        probe.event.enable()?;
        probe.until("a full ring", |probe| {
            probe.read_records()?;
            Ok(probe.truncations() >= n)
        })?;
        probe.read_trace(u64::MAX)?;
    }
    drop(probe);
    child.ends()?;
    Ok(format!("full {TIMES} times"))
}

fn hurry() -> Result<String> {
    const TIMES: u32 = 300;
    let child = Victim::new()?;
    let mut probe = Probe::open(&traced()?, child.id()?, -1, 64, false)?;

    for _ in 0..TIMES {
        probe.event.enable()?;
        probe.event.disable()?;
        probe.read_trace(u64::MAX)?;
    }
    probe.event.enable()?;
    let head = probe.head();
    grows(&mut probe, head)?;
    drop(probe);
    child.ends()?;
    Ok(format!("{TIMES} times, {head} bytes"))
}

fn pause() -> Result<String> {
    const QUIET: Duration = Duration::from_millis(200);
    let child = Victim::new()?;
    let attr = Attr {
        aux_action: START_PAUSED,
        ..traced()?
    };
    let mut probe = Probe::open(&attr, child.id()?, -1, 64, false)?;

    probe.event.enable()?;
    thread::sleep(QUIET);
    let count = probe.generated()?;
    ensure!(
        count == 0,
        "{count} instructions were traced while it was paused"
    );

    // The sibling is opened while the group is disabled, so that perf schedules both together. The event stays paused until the sibling
    // overflows.
    probe.event.disable()?;
    let resume = Attr {
        aux_action: RESUME,
        ..software(CPU_CLOCK, 20_000_000)
    };
    let _sibling = Event::open_in(&resume, child.id()?, -1, Some(&probe.event))
        .context("cannot open the event that resumes")?;
    let head = probe.head();
    probe.event.enable()?;
    grows(&mut probe, head).context("after an event has resumed it")?;
    let count = probe.generated()?;
    ensure!(count > 0, "it was resumed, and counts no instruction");
    drop(probe);
    child.ends()?;
    Ok("nothing while paused; resumed".to_owned())
}

fn family() -> Result<String> {
    const TIMES: u32 = 10;
    let mut attr = traced()?;
    attr.flags |= Flags::INHERIT | Flags::ENABLE_ON_EXEC;

    let mut count = 0;
    for n in 0..TIMES {
        // The events are opened while the shell waits for its first line. They count from its exec of sh on, if they are not enabled
        // before.
        let shell = Command::new("/bin/busybox")
            .args(["sh", "-c", "read line; exec sh -c 'for i in 1 2 3; do (exit $i) || : ; /bin/busybox true; done | cat; exit 0'"])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start a shell")?;
        let mut shell = shell;
        let probes = (0..2)
            .map(|cpu| Probe::open(&attr, id(&shell)?, cpu, 256, false))
            .collect::<Result<Vec<_>>>()?;
        if n % 2 == 0 {
            for probe in &probes {
                probe.event.enable()?;
            }
        }
        // This closes the shell's input, so that `read` returns.
        drop(shell.stdin.take());
        ended(shell)?;
        for probe in &probes {
            count += probe.generated()?;
        }
    }
    ensure!(count > 0, "no instruction was counted");
    Ok(format!("{count} instructions in {TIMES} families"))
}

fn everybody() -> Result<String> {
    let probes = (0..2)
        .map(|cpu| Probe::open(&traced()?, -1, cpu, 256, false))
        .collect::<Result<Vec<_>>>()?;

    for probe in &probes {
        probe.event.enable()?;
    }
    for _ in 0..5 {
        let children = (0..3).map(|_| Victim::new()).collect::<Result<Vec<_>>>()?;
        for child in children {
            child.ends()?;
        }
    }
    let mut count = 0;
    for probe in &probes {
        probe.event.disable()?;
        count += probe.generated()?;
    }
    ensure!(count > 0, "no instruction was counted");
    Ok(format!("{count} instructions"))
}

/// Starts a recorder of `child`, and waits until it has recorded something.
fn recorder(child: i32, file: &str) -> Result<Recorder> {
    const RECORD: [&str; 6] = ["record", "-q", "-e", "soft_pt/tsc/u", "-m", "16,16"];
    let mut recorder =
        Recorder::spawn(auxrec(RECORD).args(["-o", file, "-p", &child.to_string()]))?;
    wait_for("trace", || {
        recorder.runs()?;
        Ok(std::fs::metadata(file).map_or(0, |file| file.len()) >= 32 * 1024)
    })?;
    Ok(recorder)
}

fn killed() -> Result<String> {
    let file = "/tmp/killed.data";
    let child = Victim::new()?;
    let recorder = recorder(child.id()?, file)?;

    ensure!(
        module::unload("soft_pt").is_err(),
        "the driver can be unloaded while it traces"
    );
    recorder.kill()?;
    child.ends()?;
    std::fs::remove_file(file).with_context(|| format!("cannot remove {file}"))?;
    Ok("the program went on".to_owned())
}

fn refused() -> Result<String> {
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    let attr = traced()?;
    let cases = [
        (
            "the kernel too",
            attr.flags - Flags::EXCLUDE_KERNEL,
            0,
            EOPNOTSUPP,
        ),
        (
            "the kernel only",
            attr.flags | Flags::EXCLUDE_USER,
            0,
            EOPNOTSUPP,
        ),
        ("a threshold that is none", attr.flags, 13 << 19, EINVAL),
        ("the slower clock", attr.flags, 1 << 9, EINVAL),
        (
            "branches that are not asked for",
            attr.flags,
            1 << 13,
            EINVAL,
        ),
        ("a term that is none", attr.flags, 1 << 2, EINVAL),
        ("a period that is none", attr.flags, 15 << 24, EINVAL),
    ];

    for (what, flags, config, errno) in cases {
        let attr = Attr {
            flags,
            config,
            ..attr.clone()
        };
        match Event::open(&attr, 0, -1) {
            Ok(_) => bail!("{what}: not refused"),
            Err(error) => ensure!(
                error.raw_os_error() == Some(errno),
                "{what}: refused with {error}"
            ),
        }
    }
    Ok(format!("{} cases", cases.len()))
}

/// The user id of `nobody`, a user without privileges.
const NOBODY: u32 = 65534;

/// Runs the recorder as the user `nobody`. Returns the event's count, if the recording succeeded, and the recorder's messages.
pub fn as_nobody(event: &str, arguments: &[&str]) -> Result<(Option<u64>, String)> {
    let file = TraceFile::new("nobody");
    let output = recording::run(
        auxrec(["record", "-q", "-e", event, "-m", "16,64", "-o"])
            .arg(file.path())
            .args(arguments)
            .uid(NOBODY)
            .gid(NOBODY),
    )?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();

    // Exit status 3 reports losses, which are possible here.
    if !matches!(output.status.code(), Some(0 | 3)) {
        return Ok((None, said));
    }
    let bytes = std::fs::read(file.path()).context("cannot read the recording")?;
    let trace = Trace::read(&bytes)?;
    let counts = trace.rings.values().flat_map(|ring| &ring.counts);
    Ok((Some(counts.map(|count| count.value).sum()), said))
}

/// An event that the user `nobody` may open for its own program.
const OWN: &str = "soft_pt/tsc/u";

/// A copy of the program. With the set-user-ID bit, it runs with root's rights for every user.
const SET_UID: &str = "/tmp/set-uid";

fn permission() -> Result<String> {
    let paranoid = Path::new("/proc/sys/kernel/perf_event_paranoid");
    let before = std::fs::read_to_string(paranoid).context("cannot read perf_event_paranoid")?;
    std::fs::copy(PROGRAM, SET_UID).context("cannot copy a program")?;
    let child = Victim::new()?;
    let pid = child.id()?.to_string();

    let tried = || -> Result<String> {
        for level in ["2", "3"] {
            std::fs::write(paranoid, level).context("cannot write perf_event_paranoid")?;
            for arguments in [["-p", &pid].as_slice(), &["-C", "0", "--", "true"]] {
                let (traced, said) = as_nobody(OWN, arguments)?;
                ensure!(
                    traced.is_none(),
                    "level {level}: nobody traces {arguments:?}: {said}"
                );
            }
        }
        // With Debian's patch, level 3 forbids perf even for the user's own programs.
        let own = ["--", SET_UID, "workload", "calls"];
        std::fs::set_permissions(SET_UID, Permissions::from_mode(0o755))?;
        let (traced, said) = as_nobody(OWN, &own)?;
        ensure!(
            traced.is_none(),
            "level 3: nobody traces its own program: {said}"
        );
        std::fs::write(paranoid, "2").context("cannot write perf_event_paranoid")?;
        let (traced, said) = as_nobody(OWN, &own)?;
        let instructions = traced.filter(|n| *n != 0);
        let instructions = instructions
            .with_context(|| format!("nobody does not trace its own program: {said}"))?;
        // perf removes events at an exec that changes credentials.
        std::fs::set_permissions(SET_UID, Permissions::from_mode(0o4755))?;
        let (traced, said) = as_nobody(OWN, &own)?;
        ensure!(
            traced.unwrap_or(0) == 0,
            "nobody traces {traced:?} instructions that have root's rights: {said}"
        );
        Ok(format!(
            "{instructions} instructions of its own, and nobody else's"
        ))
    };
    let outcome = tried();
    std::fs::write(paranoid, before).context("cannot write perf_event_paranoid")?;
    std::fs::remove_file(SET_UID).context("cannot remove a program")?;

    child.ends()?;
    outcome
}

fn hint() -> Result<String> {
    let file = TraceFile::new("hint");
    let tried = |event: &str| {
        recording::run(
            auxrec(["record", "-q", "-e", event, "-o"])
                .arg(file.path())
                .args(["--", "true"]),
        )
    };
    for event in ["soft_pt//", "soft_pt//k"] {
        let output = tried(event)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{event}: not refused");
        ensure!(said.contains("`soft_pt//u`"), "{event}: {said}");
    }
    let output = tried("soft_pt//u")?;
    ensure!(
        output.status.success(),
        "what it says to do is wrong: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok("to write u, and then it records".to_owned())
}
