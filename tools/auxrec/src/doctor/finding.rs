// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What prevents recording, or a part of it, on a [`Host`].

use rustix::io::Errno;

use super::host::{Host, Lockdown, Processor};
use crate::limits::Limits;
use crate::session::max_files;
use crate::sys::page_size;
use auxview::size::bytes;

/// Something that prevents recording, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name in JSON.
    pub name: &'static str,
    /// The cause.
    pub is: String,
    /// What cannot be done because of it.
    pub prevents: Vec<String>,
    /// What to do about it.
    pub remedy: String,
}

impl Finding {
    fn new(
        name: &'static str,
        is: impl Into<String>,
        prevents: &[&str],
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            is: is.into(),
            prevents: prevents.iter().map(ToString::to_string).collect(),
            remedy: remedy.into(),
        }
    }
}

/// All findings, those that prevent most first.
pub(super) fn all(host: &Host) -> Vec<Finding> {
    let rules = [
        call,
        paranoid,
        unit,
        lockdown,
        locked_memory,
        open_files,
        kernel,
    ];
    let findings = rules.iter().filter_map(|rule| rule(host));
    findings.chain(modules(host)).collect()
}

/// Whether the system call reaches the kernel.
fn call(host: &Host) -> Option<Finding> {
    if host.call == Errno::INVAL {
        return None;
    }
    let is = match (host.call, host.limits.filtered) {
        (Errno::NOSYS, false) => "perf_event_open() is not there".to_owned(),
        (errno, _) => format!("perf_event_open() does not reach the kernel ({errno})"),
    };
    Some(Finding::new(
        "perf_event_open",
        is,
        &["all recording"],
        host.limits.no_call(),
    ))
}

/// What the kernel allows processes without CAP_PERFMON.
fn paranoid(host: &Host) -> Option<Finding> {
    let Limits {
        paranoid, may_perf, ..
    } = host.limits;
    if may_perf {
        return None;
    }
    let prevents: &[&str] = match paranoid {
        ..=0 => return None,
        1 => &["recording CPUs (-a, -C)"],
        2 => &[
            "recording CPUs (-a, -C)",
            "tracing the kernel (events without modifier u)",
        ],
        3.. => &["all recording, with Debian's and Ubuntu's kernels; others take the value for 2"],
    };
    let contained = match host.contained {
        true => "; a capability in the user namespace of a container does not count",
        false => "",
    };
    let is = format!(
        "kernel.perf_event_paranoid is {paranoid}, and auxrec has no CAP_PERFMON{contained}"
    );
    Some(Finding::new(
        "perf_event_paranoid",
        is,
        prevents,
        Limits::how_to_permit(),
    ))
}

/// How to trace without a trace unit in the processor.
const SOFTWARE: &str = "record the PMU soft_pt, which traces user space in software (README.md, \"On your own kernel\")";

/// Whether the processor's trace unit has a PMU.
fn unit(host: &Host) -> Option<Finding> {
    let has = |prefix: &str| host.pmus.iter().any(|name| name.starts_with(prefix));
    let (name, prefix, what) = match host.processor {
        Processor::Intel { .. } => ("intel_pt", "intel_pt", "Intel PT"),
        Processor::Arm => ("arm_spe", "arm_spe_", "Arm SPE"),
        Processor::Other => return None,
    };
    if has(prefix) {
        return None;
    }
    let (is, remedy) = match (host.processor, host.guest) {
        (_, true) => (
            format!("this is a virtual machine, and there is no PMU {name}: a hypervisor shows its guests no {what} unless it is told to, and KVM cannot"),
            format!("record on the host, or {SOFTWARE}"),
        ),
        (Processor::Intel { pt: true }, _) => (
            "the processor has Intel PT, and its driver registered no PMU".to_owned(),
            "see why: `dmesg | grep -iw pt`. A firmware that traces itself keeps the unit: turn its trace off in the setup".to_owned(),
        ),
        (Processor::Intel { pt: false }, _) => (
            "the kernel finds no Intel PT in this processor".to_owned(),
            format!("turn it on in the firmware's setup if it is there, or {SOFTWARE}"),
        ),
        _ if host.unloaded.contains("arm_spe_pmu") => return None,
        _ => (
            "there is no PMU arm_spe_0".to_owned(),
            "see why: `dmesg | grep arm_spe`. The firmware must describe the unit, and a kernel that hides itself from user space \
             needs `kpti=off` on its command line".to_owned(),
        ),
    };
    Some(Finding::new(
        name,
        is,
        &[&format!("recording {what}")],
        remedy,
    ))
}

/// What a kernel in lockdown refuses to root.
fn lockdown(host: &Host) -> Option<Finding> {
    let modules = "loading modules that are not signed, such as soft_pt of your own build";
    let (level, prevents): (_, &[&str]) = match host.lockdown {
        Lockdown::None => return None,
        Lockdown::Integrity => ("integrity", &[modules]),
        Lockdown::Confidentiality => ("confidentiality", &[modules, "events of tracefs (--trace)"]),
    };
    Some(Finding::new(
        "lockdown",
        format!("the kernel is locked down ({level}), as Secure Boot or lockdown= on its command line have it"),
        prevents,
        "sign modules with a key that the kernel trusts (`mokutil --import KEY`), or boot without Secure Boot and lockdown=",
    ))
}

/// The sizes of perf's own rings for root.
const DATA: usize = 512 << 10;
const AUX: usize = 4 << 20;

/// How large the rings of all CPUs can be.
fn locked_memory(host: &Host) -> Option<Finding> {
    let limits = &host.limits;
    let page = page_size();
    let cpus = usize::try_from(limits.cpus).unwrap_or(usize::MAX);
    let prevents = match limits.fit(cpus, 1, DATA, AUX, page) {
        Some((DATA, AUX)) => return None,
        Some((data, aux)) => {
            let text = |size| bytes(u64::try_from(size).unwrap_or(u64::MAX));
            format!(
                "rings larger than {} and {} on each CPU (-m)",
                text(data),
                text(aux)
            )
        }
        None => "recording all CPUs, with rings of any size".to_owned(),
    };
    let each = u64::try_from(page + DATA + AUX).unwrap_or(u64::MAX);
    let remedy = limits.how_to_raise(each.saturating_mul(limits.cpus));
    Some(Finding::new(
        "locked_memory",
        limits.describe(),
        &[&prevents],
        remedy,
    ))
}

/// Whether all CPUs can be recorded with one event.
fn open_files(host: &Host) -> Option<Finding> {
    let cpus = usize::try_from(host.limits.cpus).unwrap_or(usize::MAX);
    let need = u64::try_from(max_files(2, 1, cpus)).unwrap_or(u64::MAX);
    let max = host.hard_files.filter(|max| *max < need)?;
    let is = format!("RLIMIT_NOFILE can be raised to {max} only, and a recording of {cpus} CPUs may have {need} files open");
    let prevents = [
        "recording all CPUs",
        "recording a command without --per-thread",
    ];
    Some(Finding::new(
        "open_files",
        is,
        &prevents,
        Limits::how_to_open(need),
    ))
}

/// The kernel version from which on something is possible.
const SINCE: [((u32, u32), &str); 6] = [
    ((5, 5), "trace in samples (--aux-sample)"),
    ((5, 8), "recording with CAP_PERFMON, without CAP_SYS_ADMIN"),
    ((5, 12), "build-ids of mappings"),
    (
        (6, 9),
        "waiting for the end of a thread (-t) without looking in /proc",
    ),
    ((6, 13), "pausing trace (aux-action)"),
    ((7, 3), "loading the modules of auxpmu, such as soft_pt"),
];

fn kernel(host: &Host) -> Option<Finding> {
    let mut numbers = host.release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = (number()?, number()?);
    let newer = SINCE.iter().filter(|(since, _)| *since > version);
    let prevents: Vec<_> = newer
        .map(|((major, minor), what)| format!("{what}: since {major}.{minor}"))
        .collect();
    let prevents: Vec<_> = prevents.iter().map(String::as_str).collect();
    let is = format!("the kernel is {}", host.release);
    (!prevents.is_empty()).then(|| Finding::new("kernel", is, &prevents, "install a newer kernel"))
}

/// Modules of PMUs with an AUX area: the module, the prefix of its PMUs' names, and what they record.
const MODULES: [(&str, &str, &str); 4] = [
    ("arm_spe_pmu", "arm_spe_", "Arm SPE"),
    ("coresight_etm4x", "cs_etm", "Arm CoreSight"),
    ("hisi_ptt", "hisi_ptt", "HiSilicon's trace of PCIe"),
    ("soft_pt", "soft_pt", "programs in software, as Intel PT"),
];

/// The [`MODULES`] that are installed and not loaded.
fn modules(host: &Host) -> impl Iterator<Item = Finding> + '_ {
    let missing = |prefix: &str| !host.pmus.iter().any(|name| name.starts_with(prefix));
    let modules = MODULES.into_iter();
    modules
        .filter(move |(module, prefix, _)| host.unloaded.contains(*module) && missing(prefix))
        .map(|(module, _, what)| {
            let is = format!("the module {module} is installed, and not loaded");
            let prevents = format!("recording {what}, if the machine has it");
            Finding::new(
                "module",
                is,
                &[&prevents],
                format!("`modprobe {module}`, as root"),
            )
        })
}
