// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What files and system calls show of this machine, its kernel and this process.

use std::collections::BTreeSet;
use std::fs;

use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};

use crate::host::cpuinfo;
use crate::limits::Limits;
use crate::pmu::Pmus;
use crate::sys;

/// The state from which the findings are derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The limits of perf and of this process.
    pub limits: Limits,
    /// The value that `RLIMIT_NOFILE` may be raised to; [`None`]: no limit.
    pub hard_files: Option<u64>,
    /// The errno of `perf_event_open()` for flags that no kernel knows. A kernel with perf events returns `EINVAL` before it examines
    /// anything else, so another errno is that of a seccomp filter.
    pub call: Errno,
    /// Whether the process is in a user namespace of its own, as in a rootless container.
    pub contained: bool,
    /// How far the kernel is locked down.
    pub lockdown: Lockdown,
    /// The processor.
    pub processor: Processor,
    /// Whether a hypervisor runs this kernel.
    pub guest: bool,
    /// The names of the PMUs.
    pub pmus: Vec<String>,
    /// The modules of this kernel that are installed and not loaded.
    pub unloaded: BTreeSet<String>,
}

/// How far the kernel is locked down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lockdown {
    /// Not at all.
    None,
    /// It loads signed modules only.
    Integrity,
    /// It also hides its data from root.
    Confidentiality,
}

/// The processors whose trace perf knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    /// Intel's. `pt`: the flag `intel_pt` of `/proc/cpuinfo`.
    Intel {
        /// Whether the kernel shows the flag.
        pt: bool,
    },
    /// Arm's.
    Arm,
    /// Any other.
    Other,
}

impl Processor {
    fn parse(cpuinfo_text: &str) -> Self {
        match cpuinfo(cpuinfo_text, "vendor_id").as_deref() {
            Some("GenuineIntel") => Self::Intel {
                pt: has_flag(cpuinfo_text, "intel_pt"),
            },
            _ if cpuinfo(cpuinfo_text, "CPU implementer").is_some() => Self::Arm,
            _ => Self::Other,
        }
    }
}

fn has_flag(cpuinfo_text: &str, flag: &str) -> bool {
    let flags = cpuinfo(cpuinfo_text, "flags");
    flags.is_some_and(|flags| flags.split(' ').any(|known| known == flag))
}

impl Lockdown {
    /// Parses a text such as `none [integrity] confidentiality`.
    fn parse(text: &str) -> Self {
        if text.contains("[confidentiality]") {
            Self::Confidentiality
        } else if text.contains("[integrity]") {
            Self::Integrity
        } else {
            Self::None
        }
    }
}

/// The names of the modules in `modules.dep`.
fn modules(dep: &str) -> impl Iterator<Item = String> + '_ {
    dep.lines().filter_map(|line| {
        let (path, _) = line.split_once(':')?;
        let (_, file) = path.rsplit_once('/')?;
        Some(file.split('.').next()?.replace('-', "_"))
    })
}

impl Host {
    /// Reads the state for this process.
    #[must_use]
    pub fn read(pmus: &Pmus, online: usize) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let cpuinfo_text = read("/proc/cpuinfo");
        let dep = read(&format!("/lib/modules/{release}/modules.dep"));
        // Some processors have no flag for a hypervisor: the firmware's tables show it.
        let vendor = read("/sys/class/dmi/id/sys_vendor");
        Self {
            limits: Limits::read(online),
            hard_files: match sys::capable(sys::CAP_SYS_RESOURCE) {
                true => None,
                false => getrlimit(Resource::Nofile).maximum,
            },
            call: sys::probe_call(),
            contained: sys::is_contained(),
            lockdown: Lockdown::parse(&read("/sys/kernel/security/lockdown")),
            processor: Processor::parse(&cpuinfo_text),
            guest: has_flag(&cpuinfo_text, "hypervisor") || vendor.trim() == "QEMU",
            pmus: pmus.names(),
            unloaded: modules(&dep)
                .filter(|name| !fs::exists(format!("/sys/module/{name}")).unwrap_or(false))
                .collect(),
            release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors() {
        let intel = "vendor_id\t: GenuineIntel\nflags\t\t: fpu intel_pt hypervisor\n";
        let old = "vendor_id\t: GenuineIntel\nflags\t\t: fpu intel_ptx\n";
        for (text, processor, guest) in [
            (intel, Processor::Intel { pt: true }, true),
            (old, Processor::Intel { pt: false }, false),
            (
                "vendor_id : AuthenticAMD\nflags : hypervisor\n",
                Processor::Other,
                true,
            ),
            ("CPU implementer\t: 0x41\n", Processor::Arm, false),
            ("", Processor::Other, false),
        ] {
            assert_eq!(Processor::parse(text), processor, "{text}");
            assert_eq!(has_flag(text, "hypervisor"), guest, "{text}");
        }
    }

    #[test]
    fn files() {
        let parsed = |text| Lockdown::parse(text);
        assert_eq!(parsed("[none] integrity confidentiality\n"), Lockdown::None);
        assert_eq!(
            parsed("none [integrity] confidentiality\n"),
            Lockdown::Integrity
        );
        assert_eq!(
            parsed("none integrity [confidentiality]\n"),
            Lockdown::Confidentiality
        );
        assert_eq!(parsed(""), Lockdown::None);
        let dep = "kernel/drivers/perf/arm_spe_pmu.ko.xz:\nextra/coresight-etm4x.ko: a.ko\nbad\n";
        let names: Vec<_> = modules(dep).collect();
        assert_eq!(names, ["arm_spe_pmu", "coresight_etm4x"]);
    }
}
