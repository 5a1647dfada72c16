// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A command whose exec waits until the recorder is ready.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

/// A child that waits before its exec until [`start`](Self::start) is called. If this is dropped before that, the child ends without having
/// run anything.
#[derive(Debug)]
pub struct Workload {
    pid: Pid,
    /// Writing a byte starts the exec; closing it ends the child.
    go: Option<OwnedFd>,
    /// The child writes its errno here when exec fails; exec closes it.
    failed: OwnedFd,
    exited: Option<i32>,
}

/// Exit status of the child if the command cannot be executed.
const CANNOT_RUN: i32 = 127;

impl Workload {
    /// Forks a child for the command.
    ///
    /// # Errors
    /// If no process can be created, or an argument contains a NUL.
    pub fn prepare(command: &[OsString]) -> io::Result<Self> {
        let args: Vec<CString> = command
            .iter()
            .map(|arg| CString::new(arg.as_bytes()))
            .collect::<Result<_, _>>()?;
        let mut argv: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
        argv.push(std::ptr::null());
        if args.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (failed, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;

        // SAFETY: The child calls nothing but what a signal handler may call (read, close, signal, execvp without changing
        // the environment, write, _exit), so it does not matter what other threads were doing.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            // The parent's end must not keep the pipe open in the child.
            drop(go);
            if matches!(rustix::io::read(&wait, &mut [0]), Ok(1)) {
                // Rust ignores SIGPIPE; a command expects the default.
                // SAFETY: Setting a signal's default action touches no memory.
                unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
                // SAFETY: `argv` is an array of C strings with a null pointer at its end; both live until the exec.
                unsafe { libc::execvp(argv[0], argv.as_ptr()) };
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                let _ = rustix::io::write(&report, &errno.to_le_bytes());
            }
            // SAFETY: Ends the child at once, without the exit handlers that the parent has registered.
            unsafe { libc::_exit(CANNOT_RUN) };
        }
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            pid,
            go: Some(go),
            failed,
            exited: None,
        })
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Lets the command run.
    ///
    /// # Errors
    /// The error of the exec.
    pub fn start(&mut self) -> io::Result<()> {
        let Some(go) = self.go.take() else {
            return Ok(());
        };
        rustix::io::write(&go, &[1])?;
        drop(go);
        let mut errno = [0; 4];
        // The exec closes the other end, so a read that returns nothing means success.
        loop {
            match rustix::io::read(self.failed.as_fd(), &mut errno) {
                Ok(4) => return Err(io::Error::from_raw_os_error(i32::from_le_bytes(errno))),
                Err(e) if e == rustix::io::Errno::INTR => {}
                _ => return Ok(()),
            }
        }
    }

    /// The exit status, once the command has ended; 128 and the signal's number if one ended it.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn try_wait(&mut self) -> io::Result<Option<i32>> {
        self.wait_with(WaitOptions::NOHANG)
    }

    fn wait_with(&mut self, options: WaitOptions) -> io::Result<Option<i32>> {
        if self.exited.is_none() {
            if let Some((_, status)) = rustix::process::waitpid(Some(self.pid), options)? {
                self.exited = status
                    .exit_status()
                    .or_else(|| status.terminating_signal().map(|signal| 128 + signal));
            }
        }
        Ok(self.exited)
    }

    /// Terminates the command if it still runs. Called when the recording ends.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.go = None;
        if self.try_wait()?.is_none() {
            rustix::process::kill_process(self.pid, Signal::TERM)?;
        }
        Ok(())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // Closing the pipe ends a child that was never started, so this waits for it. A command that runs continues to run.
        if self.go.take().is_some() {
            let _ = self.wait_with(WaitOptions::empty());
        }
    }
}
