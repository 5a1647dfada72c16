// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The limits of this system, and explanations of its errors.

use std::ffi::CStr;
use std::io;

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::error::{Error, Result};
use crate::pmu::EventSpec;
use crate::sys;
use auxview::size::bytes;

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
const MLOCK: &str = "/proc/sys/kernel/perf_event_mlock_kb";

/// The limits that apply to rings and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `perf_event_paranoid`.
    pub paranoid: i64,
    /// `perf_event_mlock_kb`, for each CPU that is online.
    pub mlock_kb: u64,
    /// CPUs that are online.
    pub cpus: u64,
    /// `RLIMIT_MEMLOCK`; [`None`]: no limit.
    pub memlock: Option<u64>,
    /// Whether memory may be locked without limit (`CAP_IPC_LOCK`).
    pub may_lock: bool,
    /// Whether perf may be used without restriction (`CAP_PERFMON`).
    pub may_perf: bool,
    /// `RLIMIT_NOFILE`; [`None`]: no limit.
    pub nofile: Option<u64>,
    /// Number of files that the recording has open.
    pub files: u64,
    /// Whether a seccomp filter keeps `perf_event_open()` from the kernel.
    pub filtered: bool,
}

/// The values for `RLIMIT_NOFILE` to try for `need` files, one after the other until the system takes one. Raising the hard limit takes
/// CAP_SYS_RESOURCE; any process may raise the soft limit to the hard limit.
fn raises(now: Rlimit, need: u64) -> Vec<Rlimit> {
    let fits = |limit: Option<u64>| limit.is_none_or(|limit| limit >= need);
    if fits(now.current) {
        return Vec::new();
    }
    let soft = Rlimit {
        current: now.maximum.or(Some(need)),
        maximum: now.maximum,
    };
    let hard = Rlimit {
        current: Some(need),
        maximum: Some(need),
    };
    if fits(now.maximum) {
        vec![soft]
    } else {
        vec![hard, soft]
    }
}

impl Limits {
    /// Reads the limits of this process.
    #[must_use]
    pub fn read(cpus: usize) -> Self {
        Self {
            paranoid: sys::number(PARANOID).unwrap_or(2),
            mlock_kb: sys::number(MLOCK)
                .and_then(|kb| u64::try_from(kb).ok())
                .unwrap_or(516),
            cpus: u64::try_from(cpus).unwrap_or(1),
            memlock: getrlimit(Resource::Memlock).current,
            may_lock: sys::capable(sys::CAP_IPC_LOCK),
            may_perf: sys::capable(sys::CAP_PERFMON) || sys::capable(sys::CAP_SYS_ADMIN),
            nofile: getrlimit(Resource::Nofile).current,
            files: 0,
            filtered: sys::number(PARANOID).is_some() && sys::probe_call() != Errno::INVAL,
        }
    }

    /// For a recording that opens `files` files. Raises `RLIMIT_NOFILE` of this process for them, as
    /// perf does. A command that was forked before keeps its limit.
    pub(crate) fn with_files(self, files: usize) -> Self {
        let files = u64::try_from(files).unwrap_or(u64::MAX);
        let raises = raises(getrlimit(Resource::Nofile), files);
        let _ = raises
            .into_iter()
            .find(|limit| setrlimit(Resource::Nofile, *limit).is_ok());
        Self {
            nofile: getrlimit(Resource::Nofile).current,
            files,
            ..self
        }
    }

    /// Whether rings of any size are allowed.
    #[must_use]
    pub fn unlimited(&self) -> bool {
        self.paranoid <= -1 || self.may_lock
    }

    /// How much memory all rings together may have, in bytes: `perf_event_mlock_kb` for each CPU that is online, which all processes of a
    /// user share, plus `RLIMIT_MEMLOCK`; [`None`]: no limit.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        if self.unlimited() {
            return None;
        }
        Some((self.mlock_kb * 1024 * self.cpus).saturating_add(self.memlock?))
    }

    pub(crate) fn how_to_raise(&self, need: u64) -> String {
        let kb = need.div_ceil(1024).div_ceil(self.cpus);
        format!(
            "Make the rings smaller with -m or --shrink, record fewer CPUs with -C, or raise a limit: `sysctl kernel.perf_event_mlock_kb={kb}`, \
             or `ulimit -l {}`, or the capability CAP_IPC_LOCK",
            need.div_ceil(1024),
        )
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "kernel.perf_event_mlock_kb is {} for each of {} CPUs, for all programs of this user together, and RLIMIT_MEMLOCK is {}: {} \
             together",
            self.mlock_kb,
            self.cpus,
            self.memlock.map_or("unlimited".to_owned(), bytes),
            self.budget().map_or("unlimited".to_owned(), bytes),
        )
    }

    /// How a process may do what `perf_event_paranoid` forbids, as the end of a sentence.
    pub(crate) fn how_to_permit() -> &'static str {
        "lower the limit (`sysctl kernel.perf_event_paranoid=-1`), or give auxrec the capability CAP_PERFMON (`setcap cap_perfmon+ep \
         $(command -v auxrec)`; a container: `--cap-add PERFMON`)"
    }

    /// How to be allowed this number of open files, as a sentence.
    pub(crate) fn how_to_open(need: u64) -> String {
        format!(
            "Record fewer CPUs with -C, or fewer threads or events, or raise the limit (`ulimit -n {need}` as root, or LimitNOFILE= of a \
             systemd unit)"
        )
    }

    /// Why the system call does not reach perf in the kernel, and what to do.
    pub(crate) fn no_call(&self) -> &'static str {
        if self.filtered {
            "a seccomp filter forbids perf_event_open(), as containers have it, or an emulator lacks it: start the container with \
             `--cap-add PERFMON`, or with `--security-opt seccomp=unconfined`, or record outside of it"
        } else {
            "this kernel is built without perf events (CONFIG_PERF_EVENTS)"
        }
    }

    /// Why a process is denied an event, and what to do.
    fn denied(&self, event: &str, what: &str) -> String {
        if self.filtered {
            return self.no_call().to_owned();
        }
        if self.may_perf {
            return format!(
                "{what} may not be recorded, although auxrec has CAP_PERFMON: a security module of the kernel forbids it. See its log \
                 (`dmesg | grep -i denied`); /sys/kernel/security/lsm lists the modules"
            );
        }
        let permit = Self::how_to_permit();
        // Some distributions have a level 3: without the capability nothing is allowed.
        let remedy = match self.paranoid {
            ..3 => format!(
                "Record only user space of your own command (modifier u, as in `{}`), or {permit}",
                with_modifier(event)
            ),
            _ => format!("To record anything, {permit}"),
        };
        format!(
            "{what} may not be recorded: kernel.perf_event_paranoid is {}. {remedy}",
            self.paranoid
        )
    }

    /// Checks, before anything is opened, that the limits allow `rings` rings of `each` bytes.
    ///
    /// # Errors
    /// If they do not: which limit, its value, and how to raise it.
    pub fn preflight(&self, rings: usize, each: u64) -> Result<()> {
        let need = each.saturating_mul(u64::try_from(rings).unwrap_or(u64::MAX));
        match self.budget() {
            Some(budget) if need > budget => Err(Error::failed(format!(
                "{rings} x {} of rings need more locked memory than is allowed: {}. {}",
                bytes(each),
                self.describe(),
                self.how_to_raise(need),
            ))),
            _ => Ok(()),
        }
    }

    /// The largest sizes of data rings and AUX area, at most these, that the limits allow for `rings` areas with `beside` data rings each.
    /// The area is made smaller before the data rings are. [`None`] if even the smallest sizes are too large.
    #[must_use]
    pub fn fit(
        &self,
        rings: usize,
        beside: usize,
        mut data: usize,
        mut aux: usize,
        page: usize,
    ) -> Option<(usize, usize)> {
        // In a smaller area a driver cannot wake its reader before it stops.
        let least = (2 * page).min(aux);
        loop {
            let each = u64::try_from(beside * (page + data) + aux).unwrap_or(u64::MAX);
            if self.preflight(rings, each).is_ok() {
                return Some((data, aux));
            }
            if aux > least {
                aux /= 2;
            } else if data > page {
                data /= 2;
            } else {
                return None;
            }
        }
    }

    /// Explains a refusal to open an event.
    #[must_use]
    pub fn explain_open(&self, error: &io::Error, event: &str, what: &str) -> Error {
        let text = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => self.denied(event, what),
            Some(Errno::INVAL) => "the PMU refuses this set of terms, or this target; its driver may say more in the kernel log (dmesg). \
                 A PMU that is not of a CPU wants -a or -C, and one that cannot leave out user space or the kernel takes no modifier".to_owned(),
            Some(Errno::OPNOTSUPP) if with_modifier(event) != event => format!(
                "the PMU's driver does not support this: the kernel too (one that traces programs only wants the modifier u, as in `{}`), \
                 a value of a term, or recording with an AUX area at all",
                with_modifier(event)
            ),
            Some(Errno::OPNOTSUPP) => "the PMU's driver does not support this: a value of a term, a modifier, or recording with an AUX area at all".to_owned(),
            Some(Errno::NODEV | Errno::NXIO) => "this PMU does not work on that CPU, or is not there any more".to_owned(),
            Some(Errno::NOENT) => "the PMU does not know this event, or is not there any more".to_owned(),
            Some(Errno::BUSY) => "the PMU is taken by another program, or by another event that wants it alone".to_owned(),
            Some(Errno::SRCH) => "the process or thread has ended".to_owned(),
            Some(Errno::MFILE) => format!(
                "the recording has {} files open, one for each event on each CPU and thread, and RLIMIT_NOFILE is {}. {}",
                self.files,
                self.nofile.map_or("unlimited".to_owned(), |limit| limit.to_string()),
                Self::how_to_open(self.files),
            ),
            Some(Errno::NFILE) => "the system has too many open files; raise `sysctl fs.file-max`".to_owned(),
            Some(Errno::NOMEM) => "the kernel has no memory for it".to_owned(),
            Some(Errno::TOOBIG) => "this kernel is too old for what the event asks for".to_owned(),
            Some(Errno::NOSYS) => self.no_call().to_owned(),
            _ => "the kernel gives no reason that is known here".to_owned(),
        };
        Error::failed(format!(
            "cannot open `{event}` for {what}: {text} ({error})"
        ))
    }

    /// Explains a refusal to open an event for a control group.
    #[must_use]
    pub fn explain_cgroup(&self, error: &io::Error, event: &str, what: &str) -> Error {
        let why = match Errno::from_io_error(error) {
            // `cgroup_propagate_control()` computes the controllers of the root's children when a controller is enabled. Before that they
            // have none, although perf_event needs no enabling itself.
            Some(Errno::NOENT) => {
                "perf does not know this control group. In the unified hierarchy it does from when a controller is enabled for the \
                 groups beside it (`echo +pids >/sys/fs/cgroup/cgroup.subtree_control`); where the kernel has no controller, or \
                 perf_event has a hierarchy of its own, name a group of that (`mount -t cgroup -o perf_event none DIRECTORY`)"
            }
            Some(Errno::BADF) => "this is no directory of a control group",
            _ => return self.explain_open(error, event, what),
        };
        Error::failed(format!(
            "cannot open `{event}` for a control group on {what}: {why} ({error})"
        ))
    }

    /// Explains a refusal to open the event of a trigger.
    #[must_use]
    pub fn explain_trigger(&self, error: &io::Error, event: &str, what: &str) -> Error {
        /// The kernel's `ENOTSUPP`, for which user space has no name.
        const ENOTSUPP: i32 = 524;
        let errno = Errno::from_io_error(error);
        let refused = matches!(errno, Some(Errno::INVAL | Errno::IO));
        if !refused && error.raw_os_error() != Some(ENOTSUPP) {
            return self.explain_open(error, event, what);
        }
        Error::failed(format!(
            "cannot open `{event}` for {what}: the kernel can put no uprobe there. The place may be outside of the file, or have no \
             instruction that can be probed: give another one, ADDRESS@FILE ({error})"
        ))
    }

    /// Explains a refusal to open an event in the group of an event of `pmu` that writes trace.
    #[must_use]
    pub fn explain_member(
        &self,
        error: &io::Error,
        event: &EventSpec,
        pmu: &str,
        what: &str,
    ) -> Error {
        let refused = matches!(
            Errno::from_io_error(error),
            Some(Errno::INVAL | Errno::OPNOTSUPP)
        );
        let name = &event.text;
        let why = match (refused, event.aux_sample, event.action) {
            (true, Some(_), _) => format!(
                "the driver of PMU `{pmu}` cannot put trace into samples (it has no `snapshot_aux`; drivers of rust_perf have it only on \
                 kernels that export `perf_output_copy_aux()`). Record without --aux-sample and aux-sample-size, or take snapshots with -S"
            ),
            (true, None, Some(_)) => format!(
                "the driver of PMU `{pmu}` cannot pause and resume its trace. Record without aux-action, or switch with --control"
            ),
            _ => return self.explain_open(error, name, what),
        };
        Error::failed(format!(
            "cannot open `{name}` for {what} in the group of `{pmu}`: {why} ({error})"
        ))
    }

    /// Explains a refusal of a filter.
    #[must_use]
    pub fn explain_filter(&self, error: &io::Error, filter: &CStr, event: &str) -> Error {
        let why = match Errno::from_io_error(error) {
            Some(Errno::OPNOTSUPP) => "the driver cannot filter by address in this way",
            Some(Errno::INVAL) => {
                "the driver of this PMU does not filter by address, or the filter is not of the form \
                 `filter|start|stop START[/SIZE][@FILE]`, with numbers, of which several may follow each other after commas"
            }
            Some(Errno::NOENT) => "there is no such file",
            Some(Errno::BUSY) => "the unit has not so many filters",
            Some(Errno::ACCESS | Errno::PERM) => "it may not be set without CAP_PERFMON",
            _ => "the kernel gives no reason that is known here",
        };
        Error::failed(format!(
            "cannot set the filter `{}` of `{event}`: {why} ({error})",
            filter.to_string_lossy()
        ))
    }

    /// Explains a refusal to map a ring.
    #[must_use]
    pub fn explain_mmap(&self, error: &io::Error, ring: &str, each: u64, all: u64) -> Error {
        let text = match Errno::from_io_error(error) {
            Some(Errno::PERM) => format!(
                "all rings together ({}) are more locked memory than is allowed: {}. Other programs that use perf count too. {}",
                bytes(all),
                self.describe(),
                self.how_to_raise(all),
            ),
            Some(Errno::NOMEM) => {
                "the kernel has no memory for it, or the PMU's driver cannot work with an area of this size; try another with -m, \
                 and see the kernel log (dmesg)"
                    .to_owned()
            }
            Some(Errno::INVAL) => {
                "the kernel takes no ring of this size here, or the PMU has no AUX area, or none of this kind (-S e)".to_owned()
            }
            Some(Errno::OPNOTSUPP) => "this PMU has no AUX area".to_owned(),
            Some(Errno::NODEV) => "the PMU is not there any more".to_owned(),
            Some(Errno::BUSY) => "another program has this event's ring".to_owned(),
            Some(Errno::ACCESS) => "the system's security policy forbids it".to_owned(),
            _ => "the kernel gives no reason that is known here".to_owned(),
        };
        Error::failed(format!(
            "cannot map the {ring} of {}: {text} ({error})",
            bytes(each)
        ))
    }
}

/// The event with modifier u only.
fn with_modifier(event: &str) -> String {
    match event.rsplit_once('/') {
        Some((front, _)) => format!("{front}/u"),
        None => event.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Limits = Limits {
        paranoid: 2,
        mlock_kb: 516,
        cpus: 2,
        memlock: Some(65536),
        may_lock: false,
        may_perf: false,
        nofile: Some(1024),
        files: 1500,
        filtered: false,
    };

    #[test]
    fn open_files() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let soft = limit(Some(4096), Some(4096));
        let hard = limit(Some(9000), Some(9000));
        for (now, need, raises_to) in [
            (limit(Some(1024), Some(4096)), 1024, vec![]),
            (limit(None, None), 9000, vec![]),
            (limit(Some(1024), Some(4096)), 1025, vec![soft]),
            (limit(Some(1024), Some(4096)), 9000, vec![hard, soft]),
            (limit(Some(1024), None), 9000, vec![limit(Some(9000), None)]),
        ] {
            assert_eq!(raises(now, need), raises_to, "{now:?} {need}");
        }
        let text = USER
            .explain_open(&io::Error::from_raw_os_error(24), "pattern//", "CPU 150")
            .to_string();
        for says in [
            "has 1500 files open",
            "RLIMIT_NOFILE is 1024",
            "with -C",
            "`ulimit -n 1500`",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn preflight() {
        assert_eq!(USER.budget(), Some(516 * 2048 + 65536));
        assert!(USER.preflight(2, 256 * 1024).is_ok());
        let text = USER
            .preflight(2, 5 << 20)
            .map_or_else(|e| e.to_string(), |()| String::new());
        for says in [
            "2 x 5 MiB of rings",
            "perf_event_mlock_kb is 516 for each of 2 CPUs",
            "RLIMIT_MEMLOCK is 64 KiB",
            "sysctl kernel.perf_event_mlock_kb=5120",
            "ulimit -l 10240",
            "CAP_IPC_LOCK",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        for free in [
            Limits {
                paranoid: -1,
                ..USER
            },
            Limits {
                may_lock: true,
                ..USER
            },
            Limits {
                memlock: None,
                ..USER
            },
        ] {
            assert!(free.preflight(1000, 1 << 40).is_ok());
        }
    }

    #[test]
    fn rings_that_are_as_large_as_they_may_be() {
        // 1120 KiB are allowed; each pair has 4 KiB more than its two rings.
        for (rings, data, aux, fits) in [
            (2, 256, 128, Some((256, 128))),
            (2, 256, 65536, Some((256, 256))),
            (1, 512, 4096, Some((512, 512))),
            (4, 512, 4096, Some((256, 8))),
            (20, 512, 4096, Some((32, 8))),
            (100, 4, 4, None),
        ] {
            let found = USER.fit(rings, 1, data << 10, aux << 10, 4096);
            let fits = fits.map(|(data, aux)| (data << 10, aux << 10));
            assert_eq!(found, fits, "{rings} x {data} and {aux} KiB");
            if let Some((data, aux)) = found {
                let each = u64::try_from(4096 + data + aux).unwrap_or(0);
                assert!(USER.preflight(rings, each).is_ok());
            }
        }
    }

    #[test]
    fn no_errno_stands_alone() {
        for errno in 1..134 {
            let error = io::Error::from_raw_os_error(errno);
            for text in [
                USER.explain_open(&error, "pattern//", "CPU 0").to_string(),
                USER.explain_mmap(&error, "AUX area", 8192, 16384)
                    .to_string(),
            ] {
                // A sentence comes before the kernel's own words, which are in brackets at the end.
                assert!(
                    text.ends_with(&format!("({error})")) && text.len() > 60,
                    "{text}"
                );
            }
        }
        let denied = io::Error::from_raw_os_error(13);
        let text = USER
            .explain_open(&denied, "pattern/rate=1/", "all of CPU 0")
            .to_string();
        assert!(
            text.contains("perf_event_paranoid is 2")
                && text.contains("`pattern/rate=1/u`")
                && text.contains("CAP_PERFMON")
        );
        let unsupported = io::Error::from_raw_os_error(95);
        for (event, hint) in [("unit/a=1/", true), ("unit//k", true), ("unit//u", false)] {
            let text = USER.explain_open(&unsupported, event, "CPU 0").to_string();
            assert_eq!(text.contains("/u`)"), hint, "{text}");
        }
        let limit = io::Error::from_raw_os_error(1);
        let text = USER
            .explain_mmap(&limit, "AUX area", 4 << 20, 8 << 20)
            .to_string();
        assert!(
            text.contains("RLIMIT_MEMLOCK is 64 KiB") && text.contains("AUX area of 4 MiB"),
            "{text}"
        );
    }
}
