// SPDX-License-Identifier: GPL-2.0

//! Transitions of a task between user code and the kernel: system calls, probes, signals and
//! switches.

use super::{
    Place,
    Tracer, //
};
use crate::{
    code::{
        executed,
        mode,
        read,
        BREAKPOINT, //
    },
    ring::Ring, //
};
use intel_pt::{
    insn::{
        Insn,
        Kind, //
    },
    Encoder,
    Full, //
};
use stepping::{
    Current,
    Reason,
    Transition, //
};

/// The length of `syscall`, and of `int 0x80`.
const SYSCALL_LEN: u64 = 2;

impl Tracer {
    /// Traces a transition of the current task. Returns the number of traced instructions.
    pub(crate) fn transition(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: Option<Current<'_>>,
        transition: Transition<'_>,
    ) -> u64 {
        let mut steps = 0;

        match (transition, task) {
            (Transition::Syscall, Some(mut task)) => steps = self.called(encoder, ring, &mut task),
            (Transition::Return, Some(mut task)) => {
                // seccomp or a debugger has refused the system call, so there was no `Syscall`.
                if self.has_executed(&task) {
                    steps = self.called(encoder, ring, &mut task);
                }
                self.arm(&mut task);
            }
            (Transition::Handler, Some(mut task)) if !self.is_inside() => self.arm(&mut task),
            // Keep the place: the kernel executes the probed instruction there.
            (Transition::Breakpoint, Some(mut task)) => self.disarm(&mut task),
            (Transition::Probed { from, text }, Some(mut task)) => {
                let probed = self.probed(encoder, ring, &mut task, from, text);

                self.full |= probed.is_err();
                self.reason = Reason::First;
                steps = probed.unwrap_or(0);
            }
            // The task has executed no instruction in the vsyscall page.
            (Transition::Emulated, Some(mut task)) => {
                self.leave_place(encoder, ring);
                self.arm(&mut task);
            }
            (Transition::Redirected, Some(task)) => {
                if let Place::Entering { ip, .. } = &mut self.place {
                    *ip = task.ip();
                }
            }
            (Transition::Signal | Transition::SwitchOut, task) => {
                steps = self.leave(encoder, ring, task);
            }
            (Transition::SwitchIn, Some(mut task)) => self.enter(&mut task),
            _ => {}
        }
        steps
    }

    /// The kernel has handled a breakpoint of the task at `from`, where its file has `text`.
    /// Returns the number of traced instructions.
    fn probed(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
        from: u64,
        text: &[u8],
    ) -> Result<u64, Full> {
        let insn = Insn::decode(text, mode(task)).filter(|_| text.first() != Some(&BREAKPOINT));

        if self.paused {
            return Ok(0);
        }
        match insn {
            // The kernel has executed the probed instruction: trace it like a single step.
            Some(probed) if task.ip() != from => {
                self.place = Place::Inside { ip: from, insn };
                // A set trap flag is the debugger's, unless the program has just loaded it.
                self.armed = !task.trap_flag() || probed.kind == Kind::PopFlags;
                let steps = self.try_step(encoder, ring, task);

                self.read_next(encoder, ring, task);
                if (self.armed || self.is_inside()) && !self.set_trap_flag(task) {
                    self.leave_place(encoder, ring);
                }
                steps
            }
            // The task executes the instruction again. Or the breakpoint is the program's own, and
            // its signal follows.
            _ if self.is_inside() && task.ip().wrapping_sub(from) <= 1 => {
                self.place = Place::Inside {
                    ip: from,
                    insn: None,
                };
                if !self.set_trap_flag(task) {
                    self.leave_place(encoder, ring);
                }
                Ok(0)
            }
            _ => {
                self.leave_place(encoder, ring);
                self.arm(task);
                Ok(0)
            }
        }
    }

    /// Traces the instruction by which the task has made a system call. Returns the number of
    /// traced instructions: 0 or 1.
    pub(super) fn called(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
    ) -> u64 {
        let executed = self.syscall(encoder, ring, task);

        self.full |= executed.is_err();
        self.place = Place::Outside;
        if self.armed {
            task.hide_trap_flag();
            self.disarm(task);
        }
        executed.unwrap_or(0)
    }

    /// Whether the task has made a system call without a transition so far. The kernel enables
    /// interrupts before the transition, and has none for calls that are dispatched to user code.
    pub(super) fn has_called(&self, task: &Current<'_>) -> bool {
        match self.place {
            Place::Outside => false,
            Place::Inside { .. } | Place::Passing(_) => task.entered_by_syscall(),
            // Otherwise the registers may be those of the call from which the task returns.
            Place::Entering { .. } => {
                self.has_executed(task)
                    && (task.has_no_result() || task.entered_by_syscall() && task.shows_trap_flag())
            }
        }
    }

    /// Whether the task has executed an instruction since the last step or transition.
    fn has_executed(&self, task: &Current<'_>) -> bool {
        match self.place {
            Place::Outside => false,
            Place::Inside { .. } | Place::Passing(_) => true,
            // Otherwise the task returns from a system call with the result `ENOSYS`, which looks
            // like one that has no result yet.
            Place::Entering { ip, shown } => task.ip() != ip || task.shows_trap_flag() && !shown,
        }
    }

    /// [`called`](Self::called), up to the first packets without space.
    fn syscall(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
    ) -> Result<u64, Full> {
        let (ip, insn) = match self.place {
            Place::Outside | Place::Passing(_) => return Ok(0),
            Place::Inside { ip, insn } => (ip, insn),
            Place::Entering { ip, .. } => {
                let is_far = |insn: &Insn| matches!(insn.kind, Kind::Far(_));
                // A restarted system call is in front of `ip`, where the task was to continue.
                let ip = match read(task, ip).filter(is_far) {
                    Some(_) => ip,
                    None => task.ip().wrapping_sub(SYSCALL_LEN),
                };

                self.begin_at(encoder, ring, ip, task)?;
                (ip, None)
            }
        };

        match executed(insn, ip, encoder, ring, task)?.map(|insn| insn.kind) {
            Some(Kind::Far(_)) => {
                let steps = u64::from(encoder.is_on());

                ring.advance(steps);
                self.count(encoder, ring, task, (ip, steps), false);
                encoder.far(ring)?;
                self.report(task, ip, steps);
                Ok(steps)
            }
            _ => encoder.disable(ip, ring).map(|()| 0),
        }
    }
}
