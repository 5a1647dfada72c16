// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Waits for threads and resumes them, with any signal: nix has no names for real-time signals.

use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use rustix::process::{waitpid, WaitOptions};

/// Why a thread does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It has exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// It has reached this ptrace event.
    Event(i32),
    /// It has stopped before it gets this signal.
    Stopped(i32),
}

/// Waits for any thread; [`None`] if there are no threads any more.
///
/// # Errors
///
/// If that fails.
pub fn wait() -> nix::Result<Option<(Pid, Status)>> {
    // Also waits for threads that are not the first of their process.
    let options = WaitOptions::from_bits_retain(u32::from_ne_bytes(libc::__WALL.to_ne_bytes()));

    loop {
        let (pid, status) = match waitpid(None, options) {
            Ok(Some((pid, status))) => (pid.as_raw_nonzero().get(), status.as_raw()),
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::CHILD) => return Ok(None),
            Err(error) => return Err(Errno::from_raw(error.raw_os_error())),
        };
        let status = if libc::WIFEXITED(status) {
            Status::Exited(libc::WEXITSTATUS(status))
        } else if libc::WIFSIGNALED(status) {
            Status::Killed(libc::WTERMSIG(status))
        } else if libc::WIFSTOPPED(status) && status >> 16 != 0 {
            Status::Event(status >> 16)
        } else if libc::WIFSTOPPED(status) {
            Status::Stopped(libc::WSTOPSIG(status))
        } else {
            continue;
        };
        return Ok(Some((Pid::from_raw(pid), status)));
    }
}

/// Lets a thread execute one instruction. If `signal` is not 0, the thread gets that signal first.
///
/// # Errors
///
/// If the thread is not stopped, or has ended.
pub fn step(pid: Pid, signal: i32) -> nix::Result<()> {
    let address = std::ptr::null_mut::<libc::c_void>();
    let signal = libc::c_long::from(signal);

    // SAFETY: The request takes two numbers, and neither reads nor writes memory of ours.
    let result = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid.as_raw(), address, signal) };
    Errno::result(result).map(drop)
}
