// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether stock perf shows of the trace unit's trace what a CPU executed, the kernel's code and that of programs.
//!
//! In the guest stock perf records with `trace_unit` under the name `intel_pt`; outside, the same perf decodes. The plugin that is the
//! device logs each instruction while the unit traces.

use super::{end, follow};
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest};
use crate::kernel::Kernel;
use crate::ktap::Case;
use crate::modules::{self, Mode};
use crate::step::Progress;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The case's name.
pub(super) const NAME: &str = "kernel and programs";

/// What restricts the trace of the cases with these names.
const RANGES: [(&str, &str); 2] = [
    (
        "two ranges",
        "--filter 'filter do_sys_openat2 filter vfs_read'",
    ),
    ("an end", "--filter 'tracestop do_sys_openat2'"),
];

/// What is traced, on CPU 1.
const WORK: [(&str, &str); 8] = [
    (
        "processes",
        "for i in 1 2 3; do /bin/busybox true; done; seq 200 | sort -rn | tail -1",
    ),
    (
        "files",
        "head -c 20000 /dev/urandom > /tmp/a; md5sum /tmp/a; rm /tmp/a; ls -l /sys/kernel/slab",
    ),
    (
        "signals and timers",
        "trap : USR1; for i in 1 2 3 4 5; do kill -USR1 $$; usleep 1000; done; sh -c 'kill -SEGV $$'",
    ),
    (
        "network and memory",
        "ping -c 2 -i 0.1 127.0.0.1; awk 'BEGIN { for (i = 0; i < 500; i++) a[i] = i }'",
    ),
    // The kernel patches itself, and tells perf.
    (
        "static keys",
        "cd /sys/kernel/tracing; for i in 1 0 1 0; do echo $i > events/sched/sched_wakeup/enable; usleep 100; done",
    ),
    (
        "a probe",
        "cd /sys/kernel/tracing; echo 'p:here do_sys_openat2' > kprobe_events; echo 1 > events/kprobes/here/enable
		cat /proc/version; echo 0 > events/kprobes/here/enable; echo > kprobe_events",
    ),
    ("two ranges", "cat /proc/version"),
    ("an end", "cat /proc/version"),
];

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let dir = dir.join("exact-device");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let prefix = dir.join("unit");
    let mut guest = Guest::new(kernel, &built.files)?
        .append("vdso=0 vdso32=0")
        .timeout(Duration::from_secs(900))
        .intel()
        .devices(Devices::TraceUnit)
        .logged(&prefix)
        .installed(Path::new("/usr/bin/perf"))?;
    for (name, text) in WORK {
        guest = guest.script(&script(name), &format!("#!/bin/sh\n{text}\n"));
    }
    let mut command =
        "insmod /modules/rust_perf.ko && insmod /modules/trace_unit.ko intel_pt=1 || exit 1\n"
            .to_owned();
    command += "echo 0 > /proc/sys/kernel/kptr_restrict\n";
    for (name, _) in WORK {
        let script = script(name);
        let range = RANGES.iter().find(|(of, _)| *of == name);
        let range = range.map_or("", |(_, option)| option);
        command += &format!(
            "taskset 1 perf record -q --kcore -C 1 -m 1M,64M -e intel_pt// {range} -o /out/{script} -- taskset 2 {script} >/dev/null 2>&1 || echo '# {name} ended badly'\n"
        );
    }
    let outcome = guest.run(cache, &dir.join("guest"), &command, |_| {})?;
    if let Some(fault) = outcome.faults().first() {
        let why = format!("{}: {}", fault.name, fault.reason);
        return Ok(Case::fail(NAME, &why));
    }
    let log = prefix.with_extension("cpu1.log");
    let mut executed = BufReader::new(File::open(&log).on("open", &log)?).lines();
    let mut cases = Vec::new();
    let mut total = 0;
    for (name, _) in WORK {
        let case = match decoded(&outcome.files.join(script(name)), &mut executed)? {
            Ok(0) => Case::fail(name, "nothing was traced"),
            Ok(count) => {
                total += count;
                Case::pass(name).with_log(vec![format!("{count} instructions, each of them")])
            }
            Err(why) => Case::fail(name, &why),
        };
        let failed = !case.reason.is_empty();
        cases.push(case);
        if failed {
            break;
        }
    }
    if let Err(why) = end(&mut executed, total) {
        cases.push(Case::fail("the end", &why));
    }
    // They are large.
    for cpu in ["cpu0.log", "cpu1.log"] {
        let _ = fs::remove_file(prefix.with_extension(cpu));
    }
    progress.end(&format!("{total} instructions"));
    Ok(Case::suite(NAME, cases))
}

fn script(name: &str) -> String {
    name.replace(' ', "-")
}

/// Compares what perf shows of a recording with what was executed.
fn decoded(
    recording: &Path,
    executed: &mut impl Iterator<Item = std::io::Result<String>>,
) -> Result<std::result::Result<u64, String>> {
    let spawned = |source| Error::Spawn {
        program: "perf".to_owned(),
        source,
    };
    let mut perf = Command::new("perf");
    perf.args(["script", "-i"]).arg(recording);
    let errors = perf
        .args(["--itrace=e", "-C", "1"])
        .output()
        .map_err(spawned)?;
    let errors = String::from_utf8_lossy(&errors.stdout).into_owned();
    if let Some(error) = errors.lines().find(|line| line.contains("error")) {
        return Ok(Err(error.to_owned()));
    }
    let mut perf = Command::new("perf");
    perf.args(["script", "-i"]).arg(recording);
    perf.args(["--itrace=i1i", "-C", "1", "-F", "ip"]);
    let mut perf = perf
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(spawned)?;
    let shown = perf.stdout.take().map(|out| BufReader::new(out).lines());
    let same = shown.map_or(Err("perf says nothing".to_owned()), |shown| {
        follow(shown, executed)
    });
    let _ = perf.kill();
    let _ = perf.wait();
    Ok(same)
}
