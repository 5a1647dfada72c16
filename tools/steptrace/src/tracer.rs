// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Steps a program by ptrace, with everything that it starts.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{bail, Context, Result};
use intel_pt::insn::{Far, Insn, Kind, Mode, LEN_MAX};
use nix::errno::Errno;
use nix::libc;
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use crate::log::Writer;
use crate::sys::{self, Status};

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It has exited with this status.
    Status(i32),
    /// It was killed by the signal of this number.
    Signal(i32),
}

/// The selector of 64-bit user code.
const USER_CS: u64 = 0x33;

/// Becomes the program. The parent traces it from its first instruction on, and its addresses are not randomised.
///
/// # Errors
///
/// If that is not possible.
pub fn become_traced(program: &[String]) -> Result<()> {
    let (name, arguments) = program.split_first().context("no program given")?;
    let persona = personality::get().context("cannot read the personality")?;
    personality::set(persona | Persona::ADDR_NO_RANDOMIZE)
        .context("cannot turn address randomisation off")?;
    ptrace::traceme().context("cannot be traced")?;

    Err(Command::new(name).args(arguments).exec()).with_context(|| format!("cannot run {name}"))
}

/// The state of a thread between two stops.
struct Thread {
    /// The address of the next instruction.
    ip: u64,
    /// Whether it has just executed `execve`.
    execed: bool,
    /// Whether it was resumed with a signal: its next stop may be at the handler.
    signalled: bool,
    /// Addresses of instructions that need no special care. If the program overwrites one of them, the new instruction must not be one that
    /// causes a trap of its own.
    plain: HashSet<u64>,
    /// The memory of its process.
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

    /// Traces `child`, which has called [`become_traced`]. Returns how the program ended, and the number of its instructions.
    ///
    /// # Errors
    ///
    /// If the child cannot be traced, or the log cannot be written.
    pub fn run(mut self, child: Pid) -> Result<(Ended, u64)> {
        // The child stops when it has become the program.
        match sys::wait()? {
            Some((pid, Status::Stopped(libc::SIGTRAP))) if pid == child => {}
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

        while let Some((pid, status)) = sys::wait().context("cannot wait for the program")? {
            let end = match status {
                Status::Exited(status) => Ended::Status(status),
                Status::Killed(signal) => Ended::Signal(signal),
                Status::Event(event) => {
                    self.event(pid, event)?;
                    continue;
                }
                Status::Stopped(signal) => {
                    self.stopped(pid, signal)?;
                    continue;
                }
            };
            self.threads.remove(&pid);
            if pid == child {
                ended = Some(end);
            }
        }
        let count = self.log.finish().context("cannot write the log")?;
        Ok((ended.context("the program's end was not seen")?, count))
    }

    /// Starts to step a thread.
    fn begin(&mut self, pid: Pid) -> Result<()> {
        if let Ok(ip) = ip(pid) {
            self.threads.insert(pid, Thread::new(pid, ip, false));
        }
        resume(pid, 0)
    }

    fn event(&mut self, pid: Pid, event: i32) -> Result<()> {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                // If a thread other than the first calls execve, it takes the place of the first.
                let former = ptrace::getevent(pid)
                    .ok()
                    .and_then(|tid| i32::try_from(tid).ok());
                if let Some(former) = former.map(Pid::from_raw) {
                    if let Some(thread) = self.threads.remove(&former) {
                        self.add(pid, thread.ip)?;
                    }
                }
                let Ok(ip) = ip(pid) else { return Ok(()) };
                self.threads.insert(pid, Thread::new(pid, ip, true));
            }
            libc::PTRACE_EVENT_EXIT => {
                // If the task is inside a system call, that call was executed. Otherwise the task was killed before its next instruction.
                if let (Some(thread), Ok(ip)) = (self.threads.get(&pid), ip(pid)) {
                    if thread.ip != ip && thread.is_syscall(pid) {
                        self.add(pid, thread.ip)?;
                    }
                }
            }
            _ => {}
        }
        resume(pid, 0)
    }

    fn stopped(&mut self, pid: Pid, signal: i32) -> Result<()> {
        let Some(thread) = self.threads.get_mut(&pid) else {
            // A new task that has not executed anything. It starts with a SIGSTOP that no process has sent.
            return self.begin(pid);
        };
        // If the task is killed in the meantime, `waitpid()` reports that next.
        let Ok(now) = ip(pid) else { return Ok(()) };
        let before = std::mem::replace(&mut thread.ip, now);

        if signal != libc::SIGTRAP {
            thread.signalled = true;
            return resume(pid, signal);
        }
        let special = thread.execed | std::mem::take(&mut thread.signalled);
        if !special && now != before && thread.plain.contains(&before) {
            self.add(pid, before)?;
            return resume(pid, 0);
        }
        let insn = thread.insn(pid, before);
        let mut second = None;
        let Ok(info) = ptrace::getsiginfo(pid) else {
            return Ok(());
        };
        let (executed, pass) = match info.si_code {
            libc::TRAP_TRACE => {
                thread.execed = false;
                let again = now == before && insn.is_some_and(|insn| insn.kind == Kind::String);
                match insn {
                    Some(insn) if is_plain(insn.kind) => {
                        thread.plain.insert(before);
                    }
                    // The trap after a load of SS comes one instruction late.
                    Some(insn) if insn.kind == Kind::Shadow && now != insn.next(before) => {
                        second = Some(insn.next(before));
                    }
                    _ => {}
                }
                ((!again).then_some(before), 0)
            }
            // At the exit of a system call.
            libc::TRAP_BRKPT => {
                if std::mem::take(&mut thread.execed) {
                    (None, 0)
                } else if now != before && insn.is_some_and(is_syscall) {
                    (Some(before), 0)
                } else {
                    // A system call that was restarted without a stop.
                    (Some(now.wrapping_sub(2)), 0)
                }
            }
            // The first instruction of a signal handler is next.
            libc::SIGTRAP => (None, 0),
            // The program's own breakpoint.
            libc::SI_KERNEL => (Some(before), signal),
            _ => (None, signal),
        };
        thread.signalled = pass != 0;
        for ip in executed.into_iter().chain(second) {
            self.add(pid, ip)?;
        }
        resume(pid, pass)
    }

    fn add(&mut self, pid: Pid, ip: u64) -> Result<()> {
        let tid = u32::try_from(pid.as_raw())?;
        self.log.add(tid, ip).context("cannot write the log")
    }
}

fn resume(pid: Pid, signal: i32) -> Result<()> {
    match sys::step(pid, signal) {
        // The thread was killed in the meantime.
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).context("cannot go on"),
    }
}

/// Whether a step over an instruction of this kind needs no special care.
fn is_plain(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Far(_) | Kind::Shadow | Kind::String | Kind::Unknown
    )
}

fn is_syscall(insn: Insn) -> bool {
    matches!(
        insn.kind,
        Kind::Far(Far::Syscall | Far::Sysenter | Far::Interrupt(0x80))
    )
}

impl Thread {
    fn new(pid: Pid, ip: u64, execed: bool) -> Self {
        Self {
            ip,
            execed,
            signalled: false,
            plain: HashSet::new(),
            memory: memory(pid),
        }
    }

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

    fn is_syscall(&self, pid: Pid) -> bool {
        self.insn(pid, self.ip).is_some_and(is_syscall)
    }
}

fn ip(pid: Pid) -> nix::Result<u64> {
    register(pid, std::mem::offset_of!(libc::user_regs_struct, rip))
}

/// The register at this offset of `user_regs_struct`.
fn register(pid: Pid, offset: usize) -> nix::Result<u64> {
    // nix takes the offset as a pointer.
    let word = ptrace::read_user(pid, std::ptr::without_provenance_mut(offset))?;
    Ok(u64::from_ne_bytes(word.to_ne_bytes()))
}

fn memory(pid: Pid) -> Option<File> {
    File::open(format!("/proc/{pid}/mem")).ok()
}
