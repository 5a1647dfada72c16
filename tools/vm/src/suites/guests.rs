// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The layers that run `auxe2e` in guests.

use super::{ended, patience, Kernels, Plan};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::guest::vng;
use crate::guest::{Devices, Guest};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::suites::readers;
use crate::tools;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run of `auxe2e` in a guest of each kernel.
struct EndToEnd {
    name: &'static str,
    /// What `auxe2e` is called with, before the names of cases.
    command: &'static str,
    /// Time allowed on one kernel.
    timeout: Duration,
    /// Whether stock perf goes along, and the processor is one where it expects AUX areas.
    perf: bool,
    /// What else stands on the kernel's command line.
    append: &'static str,
    /// Where the guest's device is.
    devices: Devices,
    /// Whether the lean kernel has what its cases need.
    lean: bool,
    /// Whether the guest boots again when it is rebooted.
    reboots: bool,
}

const CASES: EndToEnd = EndToEnd {
    name: "e2e",
    command: "auxe2e",
    timeout: Duration::from_secs(1500),
    perf: false,
    append: "",
    devices: Devices::Plain,
    lean: true,
    reboots: false,
};

/// The cases of a device behind an IOMMU, which is unplugged.
const PLUGGABLE: EndToEnd = EndToEnd {
    name: "e2e-iommu",
    command: "auxe2e device iommu",
    timeout: Duration::from_secs(600),
    append: "intel_iommu=on",
    devices: Devices::Pluggable,
    lean: false,
    ..CASES
};

/// Those where all DMA is bounced.
const SWIOTLB: EndToEnd = EndToEnd {
    name: "e2e-swiotlb",
    command: "auxe2e device swiotlb",
    timeout: Duration::from_secs(300),
    append: "swiotlb=force",
    lean: false,
    ..CASES
};

/// Those of the trace unit.
const TRACE_UNIT: EndToEnd = EndToEnd {
    name: "e2e-trace-unit",
    command: "auxe2e device trace-unit",
    timeout: Duration::from_secs(300),
    devices: Devices::TraceUnit,
    ..CASES
};

/// Those where the trace unit is behind an IOMMU, in a slot. Each mapping ends when the kernel gives it up, and not later:
/// a unit that writes there is refused.
const TRACE_UNIT_IOMMU: EndToEnd = EndToEnd {
    name: "e2e-trace-unit-iommu",
    command: "auxe2e device trace-unit-iommu",
    timeout: Duration::from_secs(600),
    append: "intel_iommu=on iommu.strict=1",
    devices: Devices::TraceUnitIommu,
    lean: false,
    ..CASES
};

/// Those of tracefs in a kernel that is locked down, and that its case locks down further.
const INTEGRITY: EndToEnd = EndToEnd {
    name: "e2e-lockdown-integrity",
    command: "auxe2e boot integrity",
    timeout: Duration::from_secs(300),
    append: "lockdown=integrity",
    lean: false,
    ..CASES
};

/// Those where tracefs has had no file since the boot.
const CONFIDENTIALITY: EndToEnd = EndToEnd {
    name: "e2e-lockdown-confidentiality",
    command: "auxe2e boot confidentiality",
    append: "lockdown=confidentiality",
    ..INTEGRITY
};

/// Those of buffers in memory that keeps what it has when the guest is rebooted. Memory is reserved at the same place each time.
const PERSISTENT: EndToEnd = EndToEnd {
    name: "e2e-persistent",
    command: "auxe2e boot persistent",
    timeout: Duration::from_secs(300),
    append: "nokaslr reserve_mem=1M:4096:trace trace_instance=kept^traceoff@trace trace_instance=copied=kept trace_instance=recorded=kept \
             memmap=1M$0x10000000 trace_instance=placed^traceoff@0x10000000:1M",
    reboots: true,
    ..CASES
};

/// The guests with other devices or other kernel command lines, and what the names of their cases begin with.
const OTHERS: [(&str, &EndToEnd); 7] = [
    ("device, IOMMU:", &PLUGGABLE),
    ("device, swiotlb:", &SWIOTLB),
    ("device, trace unit:", &TRACE_UNIT),
    ("device, trace unit, IOMMU:", &TRACE_UNIT_IOMMU),
    ("tracefs, lockdown=integrity:", &INTEGRITY),
    ("tracefs, lockdown=confidentiality:", &CONFIDENTIALITY),
    ("tracefs, persistent:", &PERSISTENT),
];

const MATRIX: EndToEnd = EndToEnd {
    name: "matrix",
    command: "auxe2e matrix",
    timeout: Duration::from_secs(900),
    ..CASES
};

const BESIDE: EndToEnd = EndToEnd {
    name: "beside",
    command: "auxe2e beside",
    timeout: Duration::from_secs(900),
    perf: true,
    // The suites of the modules would run each time that the driver is loaded anew.
    append: "kunit.enable=0",
    ..CASES
};

/// The same where the kernel does not use the processor's cycle counter.
const NO_TSC: EndToEnd = EndToEnd {
    name: "beside-no-tsc",
    command: "auxe2e beside --no-tsc",
    timeout: Duration::from_secs(300),
    append: "kunit.enable=0 tsc=unstable",
    ..BESIDE
};

/// What the names of its cases begin with.
const NO_TSC_CASES: &str = "no cycle counter";

/// The rows of the matrix.
pub(super) fn matrix(
    cache: &Cache,
    dir: &Path,
    kernels: &mut Kernels<'_>,
    plan: &Plan,
) -> Result<Case> {
    end_to_end(cache, dir, kernels, plan, &MATRIX)
}

fn end_to_end(
    cache: &Cache,
    dir: &Path,
    kernels: &mut Kernels<'_>,
    plan: &Plan,
    what: &EndToEnd,
) -> Result<Case> {
    let programs = tools::build(cache)?;
    if !programs.iter().any(|(name, _)| name == "auxe2e") {
        return Ok(Case::suite(
            what.name,
            vec![Case::skip("all", "tools/e2e is not in this checkout")],
        ));
    }
    let mut ready = Vec::new();
    for kind in &plan.kernels {
        let kernel = kernels.get(*kind)?;
        let built = modules::build(cache, &kernel, Mode::Plain)?;
        ready.push((kernel, built));
    }
    // The guests run side by side; each has two processors, but waits most of the time.
    let suites = std::thread::scope(|scope| {
        let threads: Vec<_> = ready
            .iter()
            .map(|(kernel, built)| {
                scope.spawn(|| on_kernel(cache, dir, kernel, &built.files, &programs, plan, what))
            })
            .collect();
        let results = threads
            .into_iter()
            .zip(&plan.kernels)
            .map(|(thread, kind)| {
                let result = thread.join().unwrap_or_else(|_| {
                    Err(Error::Other("the guest's thread panicked".to_owned()))
                });
                result.unwrap_or_else(|e| {
                    Case::suite(&kind.to_string(), vec![Case::fail("start", &e.to_string())])
                })
            });
        results.collect()
    });
    Ok(Case::suite(what.name, suites))
}

/// The cases, then those of other guests. The lean kernel has neither an IOMMU nor swiotlb nor lockdown.
pub(super) fn cases(
    cache: &Cache,
    dir: &Path,
    kernels: &mut Kernels<'_>,
    plan: &Plan,
) -> Result<Case> {
    let all = plan.cases.is_empty();
    let of =
        |name: &String, prefix: &str| name.starts_with(prefix) || prefix.starts_with(name.as_str());
    // So begin the names of other guests' cases alone.
    let elsewhere = |name: &&String| {
        ["device, ", "tracefs, "]
            .iter()
            .any(|of| name.starts_with(of))
    };
    let mut suites = Vec::new();
    let here: Vec<_> = plan
        .cases
        .iter()
        .filter(|name| !elsewhere(name))
        .cloned()
        .collect();
    if all || !here.is_empty() {
        let plan = Plan {
            cases: here,
            ..plan.clone()
        };
        suites.extend(end_to_end(cache, dir, kernels, &plan, &CASES)?.children);
    }
    for (prefix, what) in OTHERS {
        let plan = Plan {
            cases: plan
                .cases
                .iter()
                .filter(|name| of(name, prefix))
                .cloned()
                .collect(),
            kernels: plan
                .kernels
                .iter()
                .copied()
                .filter(|kind| *kind != Kind::Lean || what.lean)
                .collect(),
            ..plan.clone()
        };
        if (all || !plan.cases.is_empty()) && !plan.kernels.is_empty() && !plan.vng {
            suites.push(end_to_end(cache, dir, kernels, &plan, what)?);
        }
    }
    Ok(Case::suite(CASES.name, suites))
}

/// The cases, then those for a guest without a cycle counter, and then what was recorded in other readers.
pub(super) fn beside(
    cache: &Cache,
    dir: &Path,
    kernels: &mut Kernels<'_>,
    plan: &Plan,
) -> Result<Case> {
    let all = plan.cases.is_empty();
    let names = plan.cases.iter().cloned();
    let (there, here): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with(NO_TSC_CASES));
    let mut run = |cases: Vec<String>, what| {
        let plan = Plan {
            cases,
            ..plan.clone()
        };
        end_to_end(cache, dir, kernels, &plan, what)
    };
    let mut suites = Vec::new();
    if all || !here.is_empty() {
        suites.extend(run(here, &BESIDE)?.children);
    }
    if all || !there.is_empty() {
        suites.push(run(there, &NO_TSC)?);
    }
    // That is where recordings are left.
    let kind = Kind::Lean;
    if all && plan.kernels.contains(&kind) {
        let folder = dir.join(format!("{}-{kind}/out", BESIDE.name));
        suites.push(readers::run(cache, dir, &folder)?);
    }
    Ok(Case::suite(BESIDE.name, suites))
}

fn on_kernel(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    programs: &[(String, PathBuf)],
    plan: &Plan,
    what: &EndToEnd,
) -> Result<Case> {
    let name = kernel.kind.to_string();
    let progress = Progress::begin(&format!("{} on {name}", what.name));
    let dir = dir.join(format!("{}-{name}", what.name));
    let quoted: Vec<String> = plan
        .cases
        .iter()
        .map(|c| format!("'{}'", c.replace('\'', "'\\''")))
        .collect();
    // A name may be that of a subcommand.
    let command = format!("{} -- {}", what.command, quoted.join(" "));
    let timeout = patience(kernel, what.timeout);
    // There a driver is loaded some hundred times, and its suites would run each time.
    let quiet = match kernel.kind {
        Kind::Stock | Kind::Lean | Kind::Rt => "",
        Kind::Debug => "kunit.enable=0",
    };
    let live = |line: &str| {
        if line.trim_start().starts_with("not ok") {
            println!("{name}: {}", line.trim());
        }
    };
    if plan.vng && !what.perf && kernel.kind == Kind::Stock {
        let reason = "virtme-ng wants overlay and 9p built in, and Debian's cloud kernel has them as modules";
        progress.end(reason);
        return Ok(Case::suite(&name, vec![Case::skip("all", reason)]));
    }
    let outcome = if plan.vng && !what.perf {
        vng::run(&dir, kernel, modules, programs, &command, timeout)?
    } else {
        let mut guest = Guest::new(kernel, modules)?
            .timeout(timeout)
            .append(what.append)
            .append(quiet)
            .devices(what.devices)
            .installed(Path::new("/usr/bin/trace-cmd"))?
            .shared();
        for (program, path) in programs {
            guest = guest.program(program, path)?;
        }
        if what.reboots {
            guest = guest.reboots();
        }
        if what.perf {
            guest = guest.intel().installed(Path::new("/usr/bin/perf"))?;
        }
        guest.run(cache, &dir, &command, live)?
    };
    let suite = outcome.suite(&name);
    progress.end(&ended(&suite, &outcome));
    Ok(suite)
}
