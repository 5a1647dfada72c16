// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Debian's stress-ng, unmodified, with all our modules loaded. With `--perf` it counts events of perf in each of its processes.
//!
//! It runs alone, and then under the recorder, once for each of our units. So its events and ours are in the contexts of the same tasks.
//! The runs are bounded by operations. The modules are unloaded in the end.

use crate::archive::{mirror, Archive};
use crate::cache::{hash, Cache};
use crate::error::{OnFile, Result};
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use crate::suites::patience;
use crate::tools;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The suite that the build root is made from.
const SUITE: &str = "trixie";

/// stress-ng, and those of its libraries that the build root lacks.
const PACKAGES: [&str; 10] = [
    "stress-ng",
    "libapparmor1",
    "libdrm2",
    "libegl1",
    "libgbm1",
    "libgles2",
    "libglvnd0",
    "libipsec-mb2",
    "libjudydebian1",
    "libsctp1",
];

/// The files of these packages that are used, in [`LIBRARIES`] those below it.
const PROGRAM: &str = "usr/bin/stress-ng";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const FILES: [&str; 9] = [
    "libEGL.so.1",
    "libGLESv2.so.2",
    "libGLdispatch.so.0",
    "libIPSec_MB.so.2",
    "libJudy.so.1",
    "libapparmor.so.1",
    "libdrm.so.2",
    "libgbm.so.1",
    "libsctp.so.1",
];

/// Stressors, and how many operations each does. They switch tasks, make and end them, and move them to other CPUs. Those that stress-ng
/// refuses to root, or calls pathological, are not among them.
const STRESSORS: [(&str, u32); 5] = [
    ("switch", 500),
    ("fork", 50),
    ("vfork", 50),
    ("pthread", 50),
    ("affinity", 50),
];

/// How many of the [`STRESSORS`] run on a unit that slows down the traced program.
const FEW: usize = 1;

/// The run without a recorder.
const ALONE: &str = "alone";

/// The other runs: the PMU, the event, and the stressors.
const UNITS: [(&str, &str, usize); 5] = [
    ("pattern", "pattern/rate=64/", STRESSORS.len()),
    ("minimal", "minimal/interval=1000/", STRESSORS.len()),
    ("ramp", "ramp//", STRESSORS.len()),
    ("soft_pt", "soft_pt//u", FEW),
    ("trace_unit", "trace_unit//u", FEW),
];

/// What perf counts of each stressor, by stress-ng's names.
const COUNTERS: [&str; 3] = ["Task Clock", "Page Faults Total", "Context Switches"];

type Verdict = std::result::Result<String, String>;

/// Runs stress-ng on a kernel.
///
/// # Errors
///
/// When a module or tool cannot be built, or the archive cannot be reached.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let debian = fetch(cache)?;
    let progress = Progress::begin("stress-ng with our modules");
    let mut guest = Guest::new(kernel, &built.files)?
        .append("kunit.enable=0")
        .timeout(patience(kernel, Duration::from_secs(1200)))
        .devices(Devices::TraceUnit)
        .more_memory(256)
        .script("load", include_str!("../../guest/stress.sh"))
        .installed_with(&debian.join(PROGRAM), &debian.join(LIBRARIES))?
        .variable("STRESS_NG", &debian.join(PROGRAM).to_string_lossy());
    for (program, path) in &programs {
        guest = guest.program(program, path)?;
    }
    let outcome = guest.run(cache, &dir.join("stress"), &command(), |_| {})?;
    let read = |file: &str| fs::read_to_string(outcome.files.join(file)).unwrap_or_default();
    let of_stress_ng = |name: &str, stressors: &[(&str, u32)]| {
        let file = format!("{name}.said");
        let path = outcome.files.join(&file);
        all_ran(&read(&file), stressors).map_err(|why| format!("{why}; see {}", path.display()))
    };
    let mut cases = vec![Case::judged(ALONE, of_stress_ng(ALONE, &STRESSORS))];
    for (pmu, _, count) in UNITS {
        let stressors = STRESSORS.get(..count).unwrap_or(&STRESSORS);
        let recorded = recorded(&read(&format!("{pmu}.json")))
            .map_err(|why| format!("{why}: {}", read(&format!("{pmu}.recorder"))));
        let verdict =
            of_stress_ng(pmu, stressors).and_then(|counts| Ok(format!("{}; {counts}", recorded?)));
        cases.push(Case::judged(&format!("traced by {pmu}"), verdict));
    }
    cases.push(Case::judged("the modules are unloaded", unloaded(&outcome)));
    cases.extend(outcome.faults());
    let suite = Case::suite("stress", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Fetches the packages into the cache, and keeps only the files that are used.
fn fetch(cache: &Cache) -> Result<PathBuf> {
    let mirror = mirror()?;
    let parts = [mirror.as_str(), SUITE, "1"].into_iter();
    let name = hash(parts.chain(PACKAGES).chain(FILES));
    cache.entry(&format!("stress-ng-{name}"), |temporary, _| {
        let progress = Progress::begin("fetching stress-ng");
        let log = Log::create(&cache.log("stress-ng.log"))?;
        let work = temporary.join("apt");
        let archive = Archive::new(work.clone(), SUITE)?;
        archive.update(&log, true)?;
        archive.fetch(&log, &PACKAGES, &work)?;
        let files = FILES.map(|file| format!("{LIBRARIES}/{file}"));
        for name in files.iter().map(String::as_str).chain([PROGRAM]) {
            let (from, to) = (work.join(name), temporary.join(name));
            let folder = to.parent().unwrap_or(temporary);
            fs::create_dir_all(folder).on("make", folder)?;
            // The name of a library is a link to its file.
            fs::copy(&from, &to).on("copy", &from)?;
        }
        fs::remove_dir_all(&work).on("remove", &work)?;
        progress.end("ready");
        Ok(())
    })
}

/// The command for the guest. A run leaves `NAME.said`; a recorder leaves `PMU.json` and `PMU.recorder`.
fn command() -> String {
    let load = |name: &str, count: usize| {
        let stressors = STRESSORS.iter().take(count);
        let options = stressors.map(|(name, ops)| format!(" --{name} 1 --{name}-ops {ops}"));
        format!("load {name}{}", options.collect::<String>())
    };
    let mut lines = vec!["auxload || exit 1".to_owned(), load(ALONE, STRESSORS.len())];
    for (pmu, event, count) in UNITS {
        let load = load(pmu, count);
        lines.push(format!(
            "auxrec record --json /out/{pmu}.json -e {event} -o /tmp/trace.data -- {load} >/out/{pmu}.recorder 2>&1
rm -f /tmp/trace.data"
        ));
    }
    lines.push(
        "for module in $(tac /modules/order); do rmmod ${module%.ko} || exit 1; done\nexit 0"
            .to_owned(),
    );
    lines.join("\n")
}

/// stress-ng must report that all stressors have passed, and perf must have counted each of them.
fn all_ran(said: &str, stressors: &[(&str, u32)]) -> Verdict {
    let passed = format!(" passed: {}: ", stressors.len());
    let ends = [&*passed, " failed: 0\n", " skipped: 0\n", "\nstatus 0\n"];
    if let Some(missing) = ends.iter().find(|end| !said.contains(**end)) {
        return Err(format!("stress-ng does not say \"{}\"", missing.trim()));
    }
    let mut counts = Vec::new();
    for (stressor, _) in stressors {
        for counter in COUNTERS {
            match counted(said, stressor, counter) {
                Some(count) if count > 0 => counts.push(format!("{stressor}: {count} {counter}")),
                Some(_) => return Err(format!("perf has counted no {counter} of {stressor}")),
                None => return Err(format!("there is no {counter} of {stressor}")),
            }
        }
    }
    Ok(counts.join("; "))
}

/// What perf has counted of a stressor. The stressor's name has a line of its own. A line for each counter follows: value, name, rate.
fn counted(said: &str, stressor: &str, counter: &str) -> Option<u64> {
    let text = said
        .lines()
        .filter_map(|line| Some(line.split_once("] ")?.1.trim()));
    let of_it = text
        .skip_while(|text| text.strip_suffix(':') != Some(stressor))
        .skip(1);
    let mut of_it = of_it.take_while(|text| !text.ends_with(':'));
    of_it.find_map(|text| {
        let (value, rest) = text.split_once(' ')?;
        rest.trim_start()
            .starts_with(counter)
            .then(|| value.parse().ok())?
    })
}

/// The recorder must have recorded trace, and the command must have succeeded.
fn recorded(json: &str) -> Verdict {
    let report: Value = serde_json::from_str(json).map_err(|e| format!("no report: {e}"))?;
    let field = |name: &str| report.get(name).and_then(Value::as_u64);
    match (field("bytes"), field("status")) {
        (Some(bytes), Some(0)) if bytes > 0 => Ok(format!("{bytes} bytes of trace")),
        (bytes, status) => Err(format!(
            "{bytes:?} bytes, the command's status is {status:?}"
        )),
    }
}

fn unloaded(outcome: &Outcome) -> Verdict {
    match outcome.status {
        Some(0) => Ok("no event is left".to_owned()),
        status => Err(format!("status {status:?}: {}", outcome.said)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "stress-ng: info:  [7] dispatching hogs: 1 switch, 1 fork
stress-ng: info:  [7] switch:
stress-ng: info:  [7]        6042713 Task Clock                0.164 B/sec
stress-ng: info:  [7]             37 Page Faults Total         1.006 K/sec
stress-ng: info:  [7]            501 Context Switches         54.414 K/sec
stress-ng: info:  [7] fork:
stress-ng: info:  [7]              2 Task Clock                0.164 B/sec
stress-ng: info:  [7]              3 Page Faults Total         1.006 K/sec
stress-ng: info:  [7]              0 Context Switches         54.414 K/sec
stress-ng: info:  [7] skipped: 0
stress-ng: info:  [7] passed: 1: switch (1)
stress-ng: info:  [7] failed: 0
status 0
";

    #[test]
    fn each_stressor_is_counted() {
        assert_eq!(counted(SAID, "switch", "Context Switches"), Some(501));
        assert_eq!(counted(SAID, "fork", "Task Clock"), Some(2));
        assert_eq!(counted(SAID, "exec", "Task Clock"), None);
        assert_eq!(counted(SAID, "switch", "CPU Migrations"), None);

        let one = &STRESSORS[..1];
        assert!(all_ran(SAID, one).is_ok());
        let two = SAID.replace("passed: 1", "passed: 2");
        assert!(all_ran(&two, &STRESSORS[..2]).is_err());
        for (right, wrong) in [
            ("passed: 1", "passed: 0"),
            ("failed: 0", "failed: 1"),
            ("skipped: 0", "skipped: 1"),
            ("status 0", "status 2"),
            ("501 Context", "0 Context"),
            ("37 Page Faults Total", "Cannot read perf counters"),
        ] {
            assert!(
                all_ran(&SAID.replace(right, wrong), one).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn trace_must_be_recorded() {
        assert!(recorded(r#"{"bytes": 1, "status": 0}"#).is_ok());
        for wrong in [
            r#"{"bytes": 0, "status": 0}"#,
            r#"{"bytes": 1, "status": 2}"#,
            "{}",
            "",
        ] {
            assert!(recorded(wrong).is_err(), "{wrong}");
        }
    }
}
