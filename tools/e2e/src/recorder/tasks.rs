// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Targets that live only briefly, and targets with many tasks.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use perfdata::Event;

use crate::pattern;
use crate::recorder::{accounted, with, Steps};
use crate::recording::{released, Seen};
use crate::recording::{Reader, Recorder, TraceFile};

/// The cases, with their names.
pub const ALL: [(&str, Steps); 4] = [
    ("commands that end at once", at_once),
    ("commands that cannot be run", cannot_run),
    ("a thousand forks, one after the other", forks_in_turn),
    ("a thousand forks, all alive at once", forks_at_once),
];

/// The trace may be empty or nearly empty. The file must say so.
fn at_once(_name: &str) -> Result<String> {
    const TIMES: usize = 10;
    let mut generated = [0, 0];
    for (sum, target) in generated.iter_mut().zip([&[][..], &["--per-thread"]]) {
        for n in 0..TIMES {
            let file = TraceFile::new("at-once");
            // Every second command lives longer, for a tick or two of the unit.
            let program = if n % 2 == 0 { "true" } else { "/bin/auxrec" };
            let more = [target, &["--", program, "--version"]].concat();
            let arguments = with("rate=16384", 64, &more);
            let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
            let findings = pattern::check(&std::fs::read(file.path())?)?;
            ensure!(findings.problems.is_empty(), "{findings}");
            let content = findings.content().context("no counter in the file")?;
            ensure!(
                content.mismatches == 0 && content.generated == content.recorded + content.lost,
                "{findings}"
            );
            ensure!(
                ended.status == if findings.lost() { 3 } else { 0 },
                "exit status {}: {}: {findings}",
                ended.status,
                ended.errors
            );
            *sum += content.generated;
            released()?;
        }
    }
    ensure!(
        generated.iter().all(|bytes| *bytes != 0),
        "no command lived long enough for any trace: {generated:?}"
    );
    Ok(format!("{TIMES} times each, {generated:?} bytes in all"))
}

/// A recorder whose command cannot run must not leave a file, a reference or a process.
fn cannot_run(name: &str) -> Result<String> {
    let path = Path::new("/tmp/cannot-run");
    let run = |text: &str, mode: u32, says: &str| -> Result<()> {
        use std::os::unix::fs::PermissionsExt;

        std::fs::write(path, text)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        for target in [&[][..], &["--per-thread"], &["-a"]] {
            let file = TraceFile::new(name);
            let more = [target, &["--", "/tmp/cannot-run"]].concat();
            let ended = Recorder::start(file.path(), &with("rate=512", 16, &more))?
                .wait(Reader::KeepsUp)?;
            ensure!(
                ended.status == 1
                    && ended.errors.contains("/tmp/cannot-run")
                    && ended.errors.contains(says),
                "{more:?}: exit status {}: {}",
                ended.status,
                ended.errors
            );
            ensure!(!file.path().exists(), "{more:?}: it left a file");
            released()?;
        }
        Ok(())
    };
    let table = [
        ("", 0o600, "ermission denied"),
        ("#!/no/such/interpreter\n", 0o700, "No such file"),
    ];
    let outcome = table
        .iter()
        .try_for_each(|(text, mode, says)| run(text, *mode, says));
    std::fs::remove_file(path)?;
    outcome?;
    Ok(format!("{} kinds, three targets each", table.len()))
}

/// The number of children, without those that the shell needs for itself.
const FORKS: usize = 1000;

fn forks_in_turn(name: &str) -> Result<String> {
    // Each child computes for a while, in its own process.
    let script = format!(
        "i=0; while [ $i -lt {FORKS} ]; do (j=0; while [ $j -lt 50 ]; do j=$((j+1)); done); i=$((i+1)); done"
    );
    let (alive, out) = forks(name, &script)?;
    ensure!(alive < 10, "{alive} at once");
    Ok(out)
}

fn forks_at_once(name: &str) -> Result<String> {
    // Each child waits for a line. The lines come after all children have started.
    let times = |what: &str| format!("i=0; while [ $i -lt {FORKS} ]; do {what} i=$((i+1)); done");
    let script = format!(
        "mkfifo /tmp/gate; exec 3<>/tmp/gate; rm /tmp/gate; {}; {}; wait",
        times("(read line <&3) &"),
        times("echo >&3;")
    );
    let (alive, out) = forks(name, &script)?;
    ensure!(alive >= FORKS, "{alive} at once");
    Ok(out)
}

/// Records a shell that forks. Returns how many processes were alive at once, and a note about the recording.
fn forks(name: &str, script: &str) -> Result<(usize, String)> {
    let file = TraceFile::new(name);
    // The data ring has space for the records of so many processes.
    let arguments = [
        "-e",
        "pattern/rate=512,packet=3/",
        "-m",
        "512,64",
        "--",
        "sh",
        "-c",
        script,
    ];
    let arguments = arguments.map(String::from);
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut times = Vec::new();
    for record in parsed.records() {
        let record = record?;
        let (event, id) = parsed.decode(&record)?;
        let time = id.and_then(|id| id.time).unwrap_or(0);
        match event {
            Event::Fork(task) => times.push((time, true, task.tid)),
            Event::Exit(task) => times.push((time, false, task.tid)),
            _ => {}
        }
    }
    times.sort_unstable();
    let forks: BTreeSet<u32> = times.iter().filter(|t| t.1).map(|t| t.2).collect();
    ensure!(forks.len() >= FORKS, "{} forks: {seen}", forks.len());
    // The trace of the children is in the file, each in a stream of its own. The shell has one stream for each CPU. Some children live
    // shorter than a tick of the unit.
    ensure!(
        seen.content.streams > 10,
        "of {} forks: {seen}",
        forks.len()
    );
    let (mut alive, mut max) = (0_usize, 0);
    for (_, fork, _) in times {
        alive = if fork {
            alive + 1
        } else {
            alive.saturating_sub(1)
        };
        max = max.max(alive);
    }
    released()?;
    Ok((max, format!("{} forks, {max} at once: {seen}", forks.len())))
}
