// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of targets: a control group, lists of threads and of processes; and recordings with sideband records only.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use perfdata::{Event, RecordType};

use crate::recorder::{accounted, end, pieces, with, Commander, Steps};
use crate::recording::{
    auxrec, released, said, wait_for_trace, Reader, Recorder, Seen, TraceFile, PAGE,
};
use crate::wait::wait_for;
use crate::workload;

/// The cases, with their names.
pub const ALL: [(&str, Steps); 6] = [
    // The kernel moves `perf_event` to the other hierarchy when that is mounted, so this case comes first.
    ("control group, unified hierarchy", |name| {
        in_cgroup(name, &["-t", "cgroup2"])
    }),
    ("control group, of perf alone", |name| {
        in_cgroup(name, &["-t", "cgroup", "-o", "perf_event"])
    }),
    ("list of threads", |name| listed(name, "-t")),
    ("list of processes", |name| listed(name, "-p")),
    ("all CPUs, no trace", |name| sideband(name, &["-a"])),
    ("a command, no trace", |name| sideband(name, &[])),
];

/// A program that computes until the end of the case.
struct Spin(Child);

impl Spin {
    fn start() -> Result<Self> {
        let child = Command::new("auxe2e")
            .args(["workload", "spin", "--ms", "600000"])
            .spawn();
        Ok(Self(child.context("cannot start a workload")?))
    }

    fn end(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        // If it has ended, both calls have no effect.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mounted cgroup hierarchy with one group in it.
struct Group;

impl Group {
    const MOUNT: &str = "/tmp/cgroup";
    const NAME: &str = "/tmp/cgroup/traced";

    fn new(mount: &[&str]) -> Result<Self> {
        fs::create_dir_all(Self::MOUNT)?;
        let mut command = Command::new("mount");
        let status = command.args(mount).args(["cgroup", Self::MOUNT]).status();
        if !status.context("cannot start mount")?.success() {
            bail!(crate::ktap::Skip("this kernel has no such control groups"));
        }
        let group = Self;
        fs::create_dir_all(Self::NAME)?;
        Ok(group)
    }

    /// Enables or disables a controller for the group.
    fn control(&self, what: &str) -> Result<()> {
        let control = Path::new(Self::MOUNT).join("cgroup.subtree_control");
        fs::write(control, what).with_context(|| format!("cannot set {what}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // This fails while the group has a process that was not waited for. Then group and mount stay until the guest ends.
        let _ = self.control("-pids");
        let _ = fs::remove_dir(Self::NAME);
        let _ = Command::new("umount").arg(Self::MOUNT).status();
    }
}

/// Only tasks of the group may be traced. If perf does not know the group yet, the recorder must say how to change that.
fn in_cgroup(name: &str, mount: &[&str]) -> Result<String> {
    let group = Group::new(mount)?;
    let file = TraceFile::new(name);
    let arguments = with("rate=512", 16, &["-a", "-G", Group::NAME]);
    let controllers = fs::read_to_string(Path::new(Group::MOUNT).join("cgroup.controllers"));
    if let Ok(controllers) = controllers {
        // The unified hierarchy. Its groups exist for perf only when some controller is enabled for them.
        let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "10"].map(String::from);
        let ended = Recorder::start(file.path(), &[&arguments[..], &sleep].concat())?
            .wait(Reader::KeepsUp)?;
        let refused = (ended.status == 1).then_some(ended.errors);
        if let Some(text) = &refused {
            ensure!(
                text.contains("cgroup.subtree_control") && text.contains("-t cgroup -o perf_event"),
                "not what to do: {text}"
            );
        }
        if !controllers.split_whitespace().any(|name| name == "pids") {
            let text = refused.context("a group without any controller was recorded")?;
            return Ok(format!("refused: {}", text.trim()));
        }
        group.control("+pids")?;
    }

    let mut commander = Commander::new(name)?;
    let more = commander.arguments();
    let recorder = Recorder::start(file.path(), &[arguments, more.to_vec()].concat())?;
    commander.ask("ping")?;
    // This program is not in the group, and is busy.
    workload::spin(Duration::from_millis(300));
    let before = pieces(file.path());
    let child = Spin::start()?;
    fs::write(
        Path::new(Group::NAME).join("cgroup.procs"),
        child.0.id().to_string(),
    )?;
    let waited = wait_for_trace(file.path(), 6 * 16 * PAGE);
    child.end()?;
    let ended = end(recorder)?;
    waited.with_context(|| ended.errors.clone())?;
    ensure!(
        before?.iter().all(Vec::is_empty),
        "trace of what is not in the group"
    );
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    drop(group);
    Ok(seen.to_string())
}

/// Records two processes, each with its own ring, until both have ended.
fn listed(name: &str, option: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let (one, other) = (Spin::start()?, Spin::start()?);
    let list = format!("{},{}", one.0.id(), other.0.id());
    let more = ["--per-thread", option, &list];
    let recorder = Recorder::start(file.path(), &with("rate=512", 16, &more))?;
    let waited = wait_for("trace of both", || {
        // The recorder writes the file at this moment, so it may be incomplete.
        let rings = pieces(file.path()).unwrap_or_default();
        Ok(rings.len() == 2 && rings.iter().all(|pieces| !pieces.is_empty()))
    });
    one.end()?;
    other.end()?;
    // The recorder ends by itself when both processes have ended.
    let ended = recorder.wait(Reader::KeepsUp)?;
    waited.with_context(|| ended.errors.clone())?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(seen.to_string())
}

/// Without trace, the file must have everything that a decoder of a separate trace needs: tasks, times, mapped code, and the clock.
fn sideband(name: &str, more: &[&str]) -> Result<String> {
    let file = TraceFile::new(name);
    let command = ["--", "auxe2e", "workload", "sleep", "--ms", "50"];
    let arguments = [&["--sideband"], more, &command].concat();
    let arguments: Vec<_> = arguments.into_iter().map(String::from).collect();
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    let bytes = fs::read(file.path())?;
    let recording = perfdata::File::parse(&bytes)?;
    let (mut clocks, mut switches, mut mapped, mut last) = (0, 0, false, 0);
    let mut execed = None;
    for record in recording.records() {
        let record = record?;
        ensure!(
            ![RecordType::AUX, RecordType::AUXTRACE].contains(&record.kind),
            "a record of trace"
        );
        let (event, id) = recording.decode(&record)?;
        let id = id.unwrap_or_default();
        last = last.max(id.time.unwrap_or(0));
        match event {
            Event::TimeConv(_) => clocks += 1,
            Event::Comm(comm) if comm.exec && comm.comm == b"auxe2e" => execed = Some(comm.pid),
            Event::Mmap2(mmap) if execed == Some(mmap.pid) => {
                mapped |= mmap.filename.ends_with(b"/auxe2e");
            }
            _ if [RecordType::SWITCH, RecordType::SWITCH_CPU_WIDE].contains(&record.kind) => {
                switches += u64::from(execed.is_some() && id.pid == execed);
            }
            _ => {}
        }
    }
    ensure!(clocks == 1, "{clocks} clocks");
    ensure!(
        mapped,
        "where the program of {execed:?} is mapped is missing"
    );
    ensure!(switches != 0, "when it runs is missing");
    ensure!(last != 0, "no record has a time");
    said(auxrec(["check"]).arg(file.path()))?;
    Ok(format!("{switches} switches of the program"))
}
