// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Steps a program by ptrace, with all that it starts.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{bail, Context, Result};
use auxcore::insn::{Far, Insn, Kind, Mode, LEN_MAX};
use nix::errno::Errno;
use nix::libc;
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;

use crate::log::Writer;

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With this status.
    Status(i32),
    /// By the signal of this number.
    Signal(i32),
}

/// The selector of 64-bit user code.
const USER_CS: u64 = 0x33;

/// Becomes the program, traced by the parent from its first instruction on, and without randomised addresses.
///
/// # Errors
///
/// When that is not possible.
pub fn become_traced(program: &[String]) -> Result<()> {
    let (name, arguments) = program.split_first().context("no program given")?;
    let persona = personality::get().context("cannot read the personality")?;
    personality::set(persona | Persona::ADDR_NO_RANDOMIZE)
        .context("cannot turn address randomisation off")?;
    ptrace::traceme().context("cannot be traced")?;

    Err(Command::new(name).args(arguments).exec()).with_context(|| format!("cannot run {name}"))
}

/// What is known of a thread between two stops.
struct Thread {
    /// What it executes next.
    ip: u64,
    /// It has just gone through `execve`.
    execed: bool,
    /// Of its process.
    memory: Option<File>,
}

/// Steps a program.
pub struct Tracer<W: Write> {
    log: Writer<W>,
    threads: HashMap<Pid, Thread>,
}

impl<W: Write> Tracer<W> {
    /// A tracer that writes to `log`.
    pub fn new(log: Writer<W>) -> Self {
        Self {
            log,
            threads: HashMap::new(),
        }
    }

    /// Traces what `child` becomes, which called [`become_traced`]. Answers how it ended, and how many
    /// instructions there were.
    ///
    /// # Errors
    ///
    /// When it cannot be traced, or the log cannot be written.
    pub fn run(mut self, child: Pid) -> Result<(Ended, u64)> {
        // It stops when it has become the program.
        match waitpid(child, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            status => bail!("the program did not start: {status:?}"),
        }
        let options = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACEEXIT
            | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(child, options).context("cannot trace the program")?;
        self.begin(child)?;
        let mut ended = None;

        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Ok(status) => status,
                Err(Errno::ECHILD) => break,
                Err(Errno::EINTR) => continue,
                Err(Errno::EINVAL) => bail!("a real-time signal came: these cannot be passed on"),
                Err(error) => return Err(error).context("cannot wait for the program"),
            };
            match status {
                WaitStatus::Exited(pid, status) => {
                    self.threads.remove(&pid);
                    if pid == child {
                        ended = Some(Ended::Status(status));
                    }
                }
                WaitStatus::Signaled(pid, signal, _) => {
                    self.threads.remove(&pid);
                    if pid == child {
                        // CAST: To its number; nix has no other way.
                        #[allow(clippy::as_conversions)]
                        let number = signal as i32;
                        ended = Some(Ended::Signal(number));
                    }
                }
                WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event)?,
                WaitStatus::Stopped(pid, signal) => self.stopped(pid, signal)?,
                _ => {}
            }
        }
        let count = self.log.finish().context("cannot write the log")?;
        Ok((ended.context("the program's end was not seen")?, count))
    }

    /// Steps a thread from here on.
    fn begin(&mut self, pid: Pid) -> Result<()> {
        if let Ok(ip) = ip(pid) {
            let thread = Thread {
                ip,
                execed: false,
                memory: memory(pid),
            };
            self.threads.insert(pid, thread);
        }
        self.resume(pid, None)
    }

    fn event(&mut self, pid: Pid, event: i32) -> Result<()> {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                // Another thread than the first becomes the first.
                let former = ptrace::getevent(pid)
                    .ok()
                    .and_then(|tid| i32::try_from(tid).ok());
                if let Some(former) = former.map(Pid::from_raw) {
                    if let Some(thread) = self.threads.remove(&former) {
                        self.add(pid, thread.ip)?;
                    }
                }
                let Ok(ip) = ip(pid) else { return Ok(()) };
                let thread = Thread {
                    ip,
                    execed: true,
                    memory: memory(pid),
                };
                self.threads.insert(pid, thread);
            }
            libc::PTRACE_EVENT_EXIT => {
                // Inside a system call; else it was killed before the next instruction.
                if let (Some(thread), Ok(ip)) = (self.threads.get(&pid), ip(pid)) {
                    if thread.ip != ip && thread.is_syscall(pid) {
                        self.add(pid, thread.ip)?;
                    }
                }
            }
            _ => {}
        }
        self.resume(pid, None)
    }

    fn stopped(&mut self, pid: Pid, signal: Signal) -> Result<()> {
        let Some(thread) = self.threads.get_mut(&pid) else {
            // A child that has not executed anything; it comes with a SIGSTOP that nobody sent.
            return self.begin(pid);
        };
        // Whoever is killed meanwhile says so next.
        let Ok(now) = ip(pid) else { return Ok(()) };
        let before = std::mem::replace(&mut thread.ip, now);

        if signal != Signal::SIGTRAP {
            return self.resume(pid, Some(signal));
        }
        let Ok(info) = ptrace::getsiginfo(pid) else {
            return Ok(());
        };
        let (executed, pass) = match info.si_code {
            libc::TRAP_TRACE => {
                thread.execed = false;
                let again = now == before && thread.is_string(pid);
                ((!again).then_some(before), None)
            }
            // On the way out of a system call.
            libc::TRAP_BRKPT => {
                if std::mem::take(&mut thread.execed) {
                    (None, None)
                } else if now != before && thread.was_syscall(pid, before) {
                    (Some(before), None)
                } else {
                    // One that was restarted without a stop.
                    (Some(now.wrapping_sub(2)), None)
                }
            }
            // The first instruction of a signal handler is next.
            libc::SIGTRAP => (None, None),
            // A breakpoint of the program's own.
            libc::SI_KERNEL => (Some(before), Some(signal)),
            _ => (None, Some(signal)),
        };
        if let Some(ip) = executed {
            self.add(pid, ip)?;
        }
        self.resume(pid, pass)
    }

    fn add(&mut self, pid: Pid, ip: u64) -> Result<()> {
        let tid = u32::try_from(pid.as_raw())?;
        self.log.add(tid, ip).context("cannot write the log")
    }

    fn resume(&self, pid: Pid, signal: Option<Signal>) -> Result<()> {
        match ptrace::step(pid, signal) {
            // Killed meanwhile.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).context("cannot go on"),
        }
    }
}

impl Thread {
    fn insn(&self, pid: Pid, ip: u64) -> Option<Insn> {
        let mut text = [0; LEN_MAX];
        let len = self.memory.as_ref()?.read_at(&mut text, ip).ok()?;
        let cs = register(pid, std::mem::offset_of!(libc::user_regs_struct, cs));
        let mode = if cs.is_ok_and(|cs| cs & 0xffff == USER_CS) {
            Mode::Bits64
        } else {
            Mode::Bits32
        };
        Insn::decode(text.get(..len)?, mode)
    }

    fn is_string(&self, pid: Pid) -> bool {
        self.insn(pid, self.ip)
            .is_some_and(|insn| insn.kind == Kind::String)
    }

    fn is_syscall(&self, pid: Pid) -> bool {
        self.was_syscall(pid, self.ip)
    }

    fn was_syscall(&self, pid: Pid, ip: u64) -> bool {
        self.insn(pid, ip).is_some_and(|insn| {
            matches!(
                insn.kind,
                Kind::Far(Far::Syscall | Far::Sysenter | Far::Interrupt(0x80))
            )
        })
    }
}

fn ip(pid: Pid) -> nix::Result<u64> {
    register(pid, std::mem::offset_of!(libc::user_regs_struct, rip))
}

/// The register at this offset of `user_regs_struct`.
fn register(pid: Pid, offset: usize) -> nix::Result<u64> {
    // An offset, which nix takes as a pointer.
    let word = ptrace::read_user(pid, std::ptr::without_provenance_mut(offset))?;
    Ok(u64::from_ne_bytes(word.to_ne_bytes()))
}

fn memory(pid: Pid) -> Option<File> {
    File::open(format!("/proc/{pid}/mem")).ok()
}
