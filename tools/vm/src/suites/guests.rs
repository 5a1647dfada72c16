// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The suites that run `auxe2e` in guests.

use super::{ended, patience, Kernels, Plan};
use crate::cache::Cache;
use crate::error::Result;
use crate::guest::{Devices, Guest};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::parallel;
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::suites::readers;
use crate::tools;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run of `auxe2e` in a guest of each kernel.
struct EndToEnd {
    name: &'static str,
    /// The command that runs `auxe2e`, without the names of cases.
    command: &'static str,
    /// Time allowed on one kernel.
    timeout: Duration,
    /// Whether the guest has stock perf, and a processor on which perf supports AUX areas.
    perf: bool,
    /// More options for the kernel's command line.
    append: &'static str,
    /// The guest's devices.
    devices: Devices,
    /// The kernels that lack what its cases need.
    lacking: &'static [Kind],
    /// Whether the guest can reboot.
    reboots: bool,
    /// The number of processors, if it is not the default.
    processors: Option<u32>,
    /// The number of guests that run its cases in parallel, each a part of them: the cases wait most of the time.
    parts: usize,
    /// The only kernel it runs on if there are other suites: two kernels take twice as long.
    usual: Kind,
    /// The cases that run on the other kernels even then: they need something that the `usual` kernel lacks.
    elsewhere: &'static [&'static str],
}

/// The defaults.
const GUEST: EndToEnd = EndToEnd {
    name: "e2e",
    command: "auxe2e",
    timeout: Duration::from_secs(1500),
    perf: false,
    append: "",
    devices: Devices::Plain,
    lacking: &[],
    reboots: false,
    processors: None,
    parts: 1,
    usual: Kind::Stock,
    elsewhere: &[],
};

const CASES: EndToEnd = EndToEnd {
    parts: 3,
    elsewhere: &[
        "hostile driver:",
        "AUX samples",
        "tracefs latency tracers",
        "a file system that wants memory of its own",
    ],
    ..GUEST
};

/// The cases of a device behind an IOMMU. They unplug the device.
const PLUGGABLE: EndToEnd = EndToEnd {
    name: "e2e-iommu",
    command: "auxe2e device iommu",
    timeout: Duration::from_secs(600),
    append: "intel_iommu=on",
    devices: Devices::Pluggable,
    lacking: &[Kind::Lean],
    ..GUEST
};

/// The cases of a kernel that bounces all DMA.
const SWIOTLB: EndToEnd = EndToEnd {
    name: "e2e-swiotlb",
    command: "auxe2e device swiotlb",
    timeout: Duration::from_secs(300),
    append: "swiotlb=force",
    lacking: &[Kind::Lean],
    ..GUEST
};

/// The cases of the trace unit.
const TRACE_UNIT: EndToEnd = EndToEnd {
    name: "e2e-trace-unit",
    command: "auxe2e device trace-unit",
    timeout: Duration::from_secs(300),
    devices: Devices::TraceUnit,
    ..GUEST
};

/// The cases of a trace unit that is behind an IOMMU, in a slot. The IOMMU is strict: when the kernel unmaps memory, it immediately blocks
/// writes of the unit to this memory.
const TRACE_UNIT_IOMMU: EndToEnd = EndToEnd {
    name: "e2e-trace-unit-iommu",
    command: "auxe2e device trace-unit-iommu",
    timeout: Duration::from_secs(600),
    append: "intel_iommu=on iommu.strict=1",
    devices: Devices::TraceUnitIommu,
    lacking: &[Kind::Lean],
    ..GUEST
};

/// The cases of tracefs in a kernel that is locked down. They lock it down further.
const INTEGRITY: EndToEnd = EndToEnd {
    name: "e2e-lockdown-integrity",
    command: "auxe2e boot integrity",
    timeout: Duration::from_secs(300),
    append: "lockdown=integrity",
    lacking: &[Kind::Lean, Kind::Debug],
    ..GUEST
};

/// The cases of a kernel that is locked down so far that tracefs has had no files since the boot.
const CONFIDENTIALITY: EndToEnd = EndToEnd {
    name: "e2e-lockdown-confidentiality",
    command: "auxe2e boot confidentiality",
    append: "lockdown=confidentiality",
    ..INTEGRITY
};

/// The cases of trace buffers in memory that keeps its content over a reboot. Each boot reserves the memory at the same address.
const PERSISTENT: EndToEnd = EndToEnd {
    name: "e2e-persistent",
    command: "auxe2e boot persistent",
    timeout: Duration::from_secs(300),
    append: "nokaslr reserve_mem=1M:4096:trace trace_instance=kept^traceoff@trace trace_instance=copied=kept trace_instance=recorded=kept \
             memmap=1M$0x10000000 trace_instance=placed^traceoff@0x10000000:1M",
    reboots: true,
    ..GUEST
};

/// The cases with many processors. By default, they run only if there is no other suite, as the guest takes long to boot.
const MANY: EndToEnd = EndToEnd {
    name: "e2e-many",
    command: "auxe2e boot many-cpus",
    timeout: Duration::from_secs(600),
    lacking: &[Kind::Lean, Kind::Debug],
    processors: Some(64),
    ..GUEST
};

/// The guests with other devices, command lines or numbers of processors, each with the prefix of the names of its cases.
const OTHERS: [(&str, &EndToEnd); 8] = [
    ("device, IOMMU:", &PLUGGABLE),
    ("device, swiotlb:", &SWIOTLB),
    ("device, trace unit:", &TRACE_UNIT),
    ("device, trace unit, IOMMU:", &TRACE_UNIT_IOMMU),
    ("tracefs, lockdown=integrity:", &INTEGRITY),
    ("tracefs, lockdown=confidentiality:", &CONFIDENTIALITY),
    ("tracefs, persistent:", &PERSISTENT),
    ("many CPUs:", &MANY),
];

const MATRIX: EndToEnd = EndToEnd {
    name: "matrix",
    command: "auxe2e matrix",
    timeout: Duration::from_secs(900),
    usual: Kind::Lean,
    ..GUEST
};

const BESIDE: EndToEnd = EndToEnd {
    name: "beside",
    command: "auxe2e beside",
    timeout: Duration::from_secs(900),
    perf: true,
    // There the cases about differences between the two recorders run, too.
    usual: Kind::Lean,
    ..GUEST
};

/// The cases of [`BESIDE`] for a kernel that does not use the processor's cycle counter.
const NO_TSC: EndToEnd = EndToEnd {
    name: "beside-no-tsc",
    command: "auxe2e beside --no-tsc",
    timeout: Duration::from_secs(300),
    append: "tsc=unstable",
    ..BESIDE
};

/// The prefix of the names of the cases of [`NO_TSC`].
const NO_TSC_CASES: &str = "no cycle counter";

/// A guest to run: with which kernel, and which cases. Without `cases`, it runs all.
struct Job {
    what: &'static EndToEnd,
    kind: Kind,
    cases: Vec<String>,
    /// The number of the part to run, and how many parts there are. `None`: all.
    part: Option<(usize, usize)>,
}

/// The guests that run `what` for this plan.
fn jobs(plan: &Plan, what: &'static EndToEnd, cases: &[String]) -> Vec<Job> {
    let is_part = plan.suites.len() > 1 && plan.kernels.contains(&what.usual);
    let mut jobs = Vec::new();

    for &kind in &plan.kernels {
        let mut cases = cases.to_vec();

        if what.lacking.contains(&kind) {
            continue;
        }
        if is_part && kind != what.usual && cases.is_empty() {
            if what.elsewhere.is_empty() {
                continue;
            }
            cases.extend(what.elsewhere.iter().copied().map(str::to_owned));
        }
        let parts = if cases.is_empty() { what.parts } else { 1 };
        for part in 1..=parts {
            jobs.push(Job {
                what,
                kind,
                cases: cases.clone(),
                part: (parts > 1).then_some((part, parts)),
            });
        }
    }
    jobs
}

/// How many guests run in parallel. Each has two processors, but waits most of the time.
const SIDE_BY_SIDE: usize = 3;

/// Runs the guests, some of them in parallel. Returns a suite for each name, with the cases of each kernel, in the order of `jobs`.
fn run(cache: &Cache, dir: &Path, kernels: &Kernels<'_>, jobs: &[Job]) -> Result<Vec<Case>> {
    let programs = tools::build(cache)?;
    let mut ready = Vec::new();

    for job in jobs {
        let kernel = kernels.get(job.kind)?;
        let built = modules::build(cache, &kernel, Mode::Plain)?;
        ready.push((job, kernel, built.files));
    }
    let done = parallel::each(SIDE_BY_SIDE, &ready, |_, (job, kernel, files)| {
        on_kernel(cache, dir, kernel, files, &programs, job)
    });
    let mut suites: Vec<Case> = Vec::new();

    for (case, job) in done.into_iter().zip(jobs) {
        let kind = job.kind.to_string();
        let case =
            case.unwrap_or_else(|e| Case::suite(&kind, vec![Case::fail("start", &e.to_string())]));
        match suites
            .last_mut()
            .filter(|suite| suite.name == job.what.name)
        {
            Some(suite) => add(suite, case),
            None => suites.push(Case::suite(job.what.name, vec![case])),
        }
    }
    Ok(suites)
}

/// Adds the cases of a kernel to a suite. If the suite already has another part of this kernel's cases, merges both.
fn add(suite: &mut Case, kernel: Case) {
    let mut kernels = std::mem::take(&mut suite.children);

    match kernels.last_mut().filter(|part| part.name == kernel.name) {
        Some(part) => {
            let cases = std::mem::take(&mut part.children);
            let both = cases.into_iter().chain(kernel.children).collect();
            *part = Case::suite(&kernel.name, both);
        }
        None => kernels.push(kernel),
    }
    *suite = Case::suite(&suite.name, kernels);
}

/// The suite `name`: first the results of its own guests, then those of the other guests.
fn layer(name: &str, suites: Vec<Case>) -> Case {
    let (own, others): (Vec<_>, Vec<_>) = suites.into_iter().partition(|case| case.name == name);
    let own = own.into_iter().flat_map(|suite| suite.children);

    Case::suite(name, own.chain(others).collect())
}

/// Runs the rows of the matrix.
pub(super) fn matrix(
    cache: &Cache,
    dir: &Path,
    kernels: &Kernels<'_>,
    plan: &Plan,
) -> Result<Case> {
    let jobs = jobs(plan, &MATRIX, &plan.cases);

    Ok(layer(MATRIX.name, run(cache, dir, kernels, &jobs)?))
}

/// Runs the cases, also those of the special guests.
pub(super) fn cases(cache: &Cache, dir: &Path, kernels: &Kernels<'_>, plan: &Plan) -> Result<Case> {
    let all = plan.cases.is_empty();
    let of =
        |name: &String, prefix: &str| name.starts_with(prefix) || prefix.starts_with(name.as_str());
    // Only names of the special guests' cases begin so.
    let elsewhere = |name: &&String| {
        ["device, ", "tracefs, ", "many CPUs"]
            .iter()
            .any(|of| name.starts_with(of))
    };
    let here: Vec<_> = plan
        .cases
        .iter()
        .filter(|name| !elsewhere(name))
        .cloned()
        .collect();
    let mut wanted = Vec::new();

    if all || !here.is_empty() {
        wanted.extend(jobs(plan, &CASES, &here));
    }
    for (prefix, what) in OTHERS {
        let there = plan.cases.iter().filter(|name| of(name, prefix));
        let there: Vec<_> = there.cloned().collect();
        let usual = all && (what.processors.is_none() || plan.suites.len() == 1);

        if usual || !there.is_empty() {
            wanted.extend(jobs(plan, what, &there));
        }
    }
    Ok(layer(CASES.name, run(cache, dir, kernels, &wanted)?))
}

/// Runs the cases, also those for a kernel without a cycle counter. Then runs other readers on the recordings.
pub(super) fn beside(
    cache: &Cache,
    dir: &Path,
    kernels: &Kernels<'_>,
    plan: &Plan,
) -> Result<Case> {
    let all = plan.cases.is_empty();
    let names = plan.cases.iter().cloned();
    let (there, here): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with(NO_TSC_CASES));
    let mut wanted = Vec::new();

    if all || !here.is_empty() {
        wanted.extend(jobs(plan, &BESIDE, &here));
    }
    if all || !there.is_empty() {
        wanted.extend(jobs(plan, &NO_TSC, &there));
    }
    let mut suites = run(cache, dir, kernels, &wanted)?;
    // Only the guest with this kernel stores its recordings.
    let kind = Kind::Lean;
    if all && plan.kernels.contains(&kind) {
        let folder = dir.join(format!("{}-{kind}/out", BESIDE.name));
        suites.push(readers::run(cache, dir, &folder)?);
    }
    Ok(layer(BESIDE.name, suites))
}

fn on_kernel(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    programs: &[(String, PathBuf)],
    job: &Job,
) -> Result<Case> {
    let what = job.what;
    let name = kernel.kind.to_string();
    let (part, place) = match job.part {
        Some((part, parts)) => (format!(", part {part} of {parts}"), format!("-{part}")),
        None => (String::new(), String::new()),
    };
    let progress = Progress::begin(&format!("{} on {name}{part}", what.name));
    let dir = dir.join(format!("{}-{name}{place}", what.name));
    let quoted: Vec<String> = job
        .cases
        .iter()
        .map(|c| format!("'{}'", c.replace('\'', "'\\''")))
        .collect();
    // `--`, as the name of a case may also be that of a subcommand.
    let part = job.part.map_or(String::new(), |(part, parts)| {
        format!(" --part {part}/{parts}")
    });
    let command = format!("{}{part} -- {}", what.command, quoted.join(" "));
    let timeout = patience(kernel, what.timeout);
    // The output of a case precedes the line with its result. The first line of the output has the reason of a failure.
    let mut reason = None;
    let live = |line: &str| {
        let line = line.trim();
        if let Some(said) = line.strip_prefix("# ") {
            reason.get_or_insert_with(|| said.to_owned());
            return;
        }
        let reason = reason.take();
        if line.starts_with("not ok") {
            crate::out!("{name}: {line}: {}", reason.unwrap_or_default());
        }
    };
    let mut guest = Guest::new(kernel, modules)?
        .timeout(timeout)
        .append(what.append)
        // The cases load drivers some hundred times. Each time, the driver's KUnit suites would run.
        .append("kunit.enable=0")
        .devices(what.devices)
        .installed(Path::new("/usr/bin/trace-cmd"))?
        .shared();
    for (program, path) in programs {
        guest = guest.program(program, path)?;
    }
    if what.reboots {
        guest = guest.reboots();
    }
    if let Some(processors) = what.processors {
        guest = guest.processors(processors);
    }
    if what.perf {
        guest = guest.intel().installed(Path::new("/usr/bin/perf"))?;
    }
    let outcome = guest.run(cache, &dir, &command, live)?;
    let suite = outcome.suite(&name);
    progress.end(&ended(&suite, &outcome));
    Ok(suite)
}
