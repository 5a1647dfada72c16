// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The system layer: the only module with `unsafe`. Its API is safe to use in any order.
//!
//! It is public for tests, which use events in ways that the recorder does not. Sessions and recordings use the trait [`System`]. Unit
//! tests have an implementation of it, `fake`, that can refuse any call.

mod event;
#[cfg(test)]
pub(crate) mod fake;
mod mapping;
mod process;
mod system;

pub(crate) use event::Kernel;
pub use event::{probe_call, Event};
pub use mapping::{Field, Mapping};
pub use process::Workload;
pub use system::Count;
pub(crate) use system::{Of, System};

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The length of a page.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// The number of the clock of all events and of the recorder, as `perf_event_attr.clockid` takes it.
pub const CLOCK: i32 = libc::CLOCK_MONOTONIC;

/// The current time of this clock, ns.
pub fn now() -> u64 {
    nanoseconds(rustix::time::clock_gettime(
        rustix::time::ClockId::Monotonic,
    ))
}

/// The current value of the counter on which perf's clock is based: the time stamp counter on x86-64, the virtual counter on 64-bit Arm;
/// [`None`] on other processors.
pub fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Each x86-64 processor has the instruction. Linux lets a program execute it unless the program has disabled it with
    // `PR_SET_TSC`, which this program does not.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(target_arch = "aarch64")]
    {
        let count;
        // SAFETY: The instruction reads a register, and touches neither memory nor flags. Linux lets a program read this register unless
        // the program has disabled that with `PR_SET_TSC`, which this program does not. The barrier keeps the processor from reading it
        // earlier.
        unsafe {
            std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack, preserves_flags));
        }
        Some(count)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

/// The time of day, ns.
pub fn wall() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
}

/// The resolution of [`now`], ns.
pub fn clock_resolution() -> u64 {
    nanoseconds(rustix::time::clock_getres(rustix::time::ClockId::Monotonic))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    Duration::try_from(time)
        .ok()
        .and_then(|time| u64::try_from(time.as_nanos()).ok())
        .unwrap_or(0)
}

/// Sets the scheduling policy of this thread, and of threads that it starts later, to `SCHED_FIFO` with this priority.
///
/// # Errors
/// The error that the kernel returns, for example if the process lacks the permission.
pub fn set_realtime(priority: i32) -> std::io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };

    // SAFETY: The pointer is to parameters that live until the call has returned; the kernel only reads them.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Reads a number from a file of proc or sysfs.
pub fn number(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether this process has this capability in the initial user namespace. There the kernel requires it to open and map events.
pub fn capable(capability: u32) -> bool {
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let namespace = fs::metadata("/proc/self/ns/user").map(|meta| meta.ino());
    holds(&status, namespace.ok(), capability)
}

/// Whether this process is in a user namespace other than the initial one.
pub fn is_contained() -> bool {
    fs::metadata("/proc/self/ns/user").is_ok_and(|meta| meta.ino() != INITIAL)
}

/// Number of the initial user namespace, `PROC_USER_INIT_INO` of `include/linux/proc_ns.h`.
const INITIAL: u64 = 0xefff_fffd;

/// Whether this content of `/proc/PID/status` shows the capability in the initial user namespace. Capabilities in another `namespace` do
/// not count. [`None`]: the kernel has no namespaces.
fn holds(status: &str, namespace: Option<u64>, capability: u32) -> bool {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    namespace.is_none_or(|number| number == INITIAL)
        && effective.is_some_and(|set| set & 1 << capability != 0)
}

/// `PERF_TYPE_TRACEPOINT`.
pub const TRACEPOINT: u32 = 2;

/// Allows locking memory without limit.
pub const CAP_IPC_LOCK: u32 = 14;
/// Allows administration. The kernel accepts it instead of several other capabilities.
pub const CAP_SYS_ADMIN: u32 = 21;
/// Allows raising hard limits.
pub const CAP_SYS_RESOURCE: u32 = 24;
/// Allows using perf without restriction.
pub const CAP_PERFMON: u32 = 38;

/// Duplicates an open descriptor that this process knows by its number.
///
/// # Errors
/// If the descriptor is not open.
pub fn duplicate(fd: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: The call takes numbers only.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: The kernel has just made this descriptor, and only this function has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_a_container() {
        let full = "Name:\tauxrec\nCapEff:\t000001ffffffffff\n";
        let none = "CapEff:\t0000000000000000\n";
        for (status, namespace, held) in [
            (full, Some(0xefff_fffd), true),
            (full, None, true),
            // All capabilities, but in the namespace of a rootless container.
            (full, Some(0xf000_0042), false),
            (none, Some(0xefff_fffd), false),
            ("", Some(0xefff_fffd), false),
        ] {
            let found = holds(status, namespace, CAP_IPC_LOCK);
            assert_eq!(found, held, "{status} {namespace:x?}");
        }
    }
}
