// SPDX-License-Identifier: GPL-2.0

//! Turns single steps, and transitions between user code and the kernel, into packets.
//!
//! After a return from the kernel, the trace of a task begins only when its first instruction has
//! been executed. Before that its address is not certain: a signal, or the restart of a system
//! call, may change it.
//!
//! ```text
//!              enter                 step                 step
//!   Outside ──────────► Entering ──────────► Inside ◄──────────┐
//!      ▲                    │                   │ └────────────┘
//!      └────────────────────┴───────────────────┘
//!               system call, signal, off the CPU
//! ```
//!
//! In code that the filters exclude, the task is `Passing` instead of `Inside`: each step only
//! compares the address with the ranges. If the next instruction can show or load the trap flag,
//! the task is `Inside` there too.
//!
//! In the trap after a step, the tracer interprets the task's next instructions and passes them to
//! the encoder, until there is one that the processor must execute.

use crate::{
    code::{
        executed,
        hide_trap_flag,
        mode,
        mode_of,
        read,
        read_and_report,
        registers,
        taken_in_place, //
    },
    ranges::Ranges,
    ring::Ring,
    unit::Unit, //
};
use intel_pt::{
    insn::{
        Far,
        Insn,
        Kind,
        Mode, //
    },
    Branch,
    Cause,
    Encoder,
    Full,
    Step, //
};
use perf::context::Cpu;
use stepping::{
    Current,
    Reason,
    Regs, //
};

mod interpret;
mod transitions;

/// Where the current task is.
#[derive(Clone, Copy)]
enum Place {
    /// Not in user code, or in code that is not traced.
    Outside,
    /// About to run user code.
    Entering {
        /// At this address.
        ip: u64,
        /// Whether the task returns from a system call that a debugger has stepped: its registers
        /// show the trap flag of that call ([`shows_trap_flag`](Regs::shows_trap_flag)).
        shown: bool,
    },
    /// In user code that is stepped through, with this instruction the next.
    Inside {
        ip: u64,
        /// [`None`] if it could not be read yet.
        insn: Option<Insn>,
    },
    /// In user code that is stepped through and not traced. The next instruction is at this
    /// address, and neither shows nor loads the trap flag.
    Passing(u64),
}

/// Trace state of the task on a CPU.
pub(crate) struct Tracer {
    ranges: Ranges,
    place: Place,
    /// Whether the tracer has set the current task's trap flag.
    armed: bool,
    /// Whether a debugger has set the trap flag to step the task. It gets the traps, too.
    shared: bool,
    /// Whether the trace has begun: the AUX area has the `PSB` at which a decoder begins.
    begun: bool,
    /// Whether packets found no space.
    full: bool,
    /// Whether tracing is paused.
    paused: bool,
    /// Why the task's next instruction is stepped and not interpreted.
    reason: Reason,
    /// Instructions interpreted and traced since the last report of a step.
    pub(crate) interpreted: u64,
}

impl Tracer {
    /// A paused tracer. `interpreted`: instructions that are not yet reported.
    pub(crate) fn new(ranges: Ranges, interpreted: u64) -> Self {
        Self {
            ranges,
            place: Place::Outside,
            armed: false,
            shared: false,
            begun: false,
            full: false,
            paused: true,
            reason: Reason::First,
            interpreted,
        }
    }

    /// Whether the tracer claims the traps of the current task.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Whether the encoder gets the traps of the current task.
    pub(crate) fn is_stepping(&self) -> bool {
        self.armed || self.shared
    }

    /// Whether packets found no space.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Starts to step a task that is on the CPU, or about to be. These are its registers.
    pub(crate) fn enter(&mut self, regs: &mut Regs<'_>) {
        // In the middle of a system call or of a signal, the transition at its end arms the task.
        // Until then the kernel may copy the registers, by clone() or into the signal's frame.
        if !regs.will_transition() {
            self.arm(regs);
        }
    }

    /// Sets the trap flag and enters user code. A program that has set the flag itself is not
    /// traced. If a debugger has set it, the debugger's steps are traced.
    fn arm(&mut self, regs: &mut Regs<'_>) {
        if self.set_trap_flag(regs) {
            self.place = entering(regs);
            self.reason = Reason::First;
        }
    }

    /// Sets the trap flag as [`arm`](Self::arm) does. Returns whether the task is stepped.
    fn set_trap_flag(&mut self, regs: &mut Regs<'_>) -> bool {
        if self.paused {
            return false;
        }
        self.shared = !self.armed && regs.debugger_steps();
        if !self.armed {
            self.armed = !regs.trap_flag() && regs.code().is_some();
        }
        if self.armed {
            // Also if the task was armed before: exec() and signals clear the flag.
            regs.set_trap_flag(true);
        }
        self.is_stepping()
    }

    /// Resumes tracing. In an NMI, the task is only armed at its next return from the kernel: the
    /// NMI may have interrupted the code that saves the registers.
    pub(crate) fn resume(&mut self, task: Option<Current<'_>>, cpu: &Cpu) {
        self.paused = false;
        if let (Some(mut task), false) = (task, cpu.is_nmi()) {
            self.enter(&mut task);
        }
    }

    /// Pauses tracing; in an NMI, this takes effect at the next step. Returns the number of
    /// instructions that the task has executed.
    pub(crate) fn pause(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: Option<Current<'_>>,
        cpu: &Cpu,
    ) -> u64 {
        self.paused = true;
        if cpu.is_nmi() {
            return 0;
        }
        self.leave(encoder, ring, task)
    }

    /// Clears the trap flag if the tracer has set it.
    fn disarm(&mut self, regs: &mut Regs<'_>) {
        self.shared = false;
        if core::mem::take(&mut self.armed) {
            regs.set_trap_flag(false);
        }
    }

    /// Traces the instruction that the task has executed, and interprets the next ones. Returns the
    /// number of traced instructions.
    pub(crate) fn step(
        &mut self,
        unit: &mut Unit,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
    ) -> u64 {
        let Ok(steps) = self.try_step(&mut unit.encoder, ring, task) else {
            self.full = true;
            return 0;
        };
        let more = interpret::interpret(self, unit, ring, task);

        self.read_next(&mut unit.encoder, ring, task);
        steps.saturating_add(more)
    }

    /// Reads the next instruction before it is stepped: it can make itself unreadable.
    fn read_next(&mut self, encoder: &mut Encoder, ring: &mut Ring<'_>, task: &Current<'_>) {
        let Place::Inside { ip, insn } = &mut self.place else {
            return;
        };
        match executed(*insn, *ip, encoder, ring, task) {
            Ok(read) => *insn = read,
            Err(Full) => self.full = true,
        }
    }

    fn try_step(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
    ) -> Result<u64, Full> {
        let to = task.ip();
        let traced = self.ranges.has(to) && !task.is_trampoline(to);

        if let (Place::Passing(ip), false) = (self.place, self.paused) {
            if let (false, Some(code)) = (traced, task.code()) {
                self.report(task, ip, 0);
                self.place = pass(task, to, mode_of(code));
                return Ok(0);
            }
        }
        let (from, insn) = match self.place {
            _ if self.paused && !self.is_inside() => {
                self.disarm(task);
                self.place = Place::Outside;
                return Ok(0);
            }
            Place::Outside => {
                self.place = entering(task);
                self.reason = Reason::First;
                return Ok(0);
            }
            Place::Entering { ip, .. } => {
                // The trace begins after this, so its time is later than that of the tracepoint.
                let insn = if self.ranges.has(ip) {
                    read_and_report(task, ip).0
                } else {
                    read(task, ip)
                };

                // On some returns to user code the trap comes before the first instruction.
                if ip == to && !insn.is_some_and(|insn| can_go_to_itself(&insn, ip)) {
                    return Ok(0);
                }
                (ip, insn)
            }
            Place::Inside { ip, insn } => (ip, insn),
            Place::Passing(ip) => (ip, None),
        };
        self.begin_at(encoder, ring, from, task)?;
        let insn = executed(insn, from, encoder, ring, task)?.unwrap_or(Insn::UNKNOWN);
        let mut steps = 1;

        self.place = Place::Inside {
            ip: from,
            insn: Some(insn),
        };
        let Some(mode) = task.code().map(mode_of) else {
            // The task is in a code segment of its own, where `ip` is not an address.
            ring.advance(steps);
            self.count(encoder, ring, task, (from, steps), false);
            encoder.far(ring)?;
            self.report(task, from, steps);
            self.disarm(task);
            self.place = Place::Outside;
            return Ok(steps);
        };
        let mut step = Step {
            insn,
            from,
            to,
            mode,
        };

        // The trap after a load of SS comes one instruction late.
        if insn.kind == Kind::Shadow && to != insn.next(from) {
            if let Some(second) = read(task, insn.next(from)) {
                step = Step {
                    insn: second,
                    from: insn.next(from),
                    ..step
                };
                steps = 2;
            }
        }
        // Another thread may have changed the instruction after it was read.
        let is_next = to == step.insn.next(step.from);

        // Even if the packets find no space.
        if step.insn.kind == Kind::PushFlags && is_next && self.armed {
            hide_trap_flag(task);
        }
        if step.insn.kind == Kind::PtWrite && encoder.config().ptw && encoder.is_on() {
            if let Some((operand, width)) = task.ptwrite(step.from) {
                encoder.ptwrite(step.from, interpret::payload(operand, width), ring)?;
            }
        }
        if !encoder.is_on() || step.insn.kind == Kind::String && to == step.from {
            // The instruction is not traced, or repeats: it counts once, after its last round.
            steps = 0;
        }
        ring.advance(steps);
        match taken_in_place(task, &step.insn, step.from) {
            Some(taken) => {
                encoder.branch(Branch::Conditional { taken }, to, to, mode, ring)?;
            }
            None => {
                // The instruction that was executed is unknown then, and not in the trace.
                if encoder.step(&step, ring)? == Cause::Elsewhere {
                    steps = steps.saturating_sub(1);
                }
            }
        }
        self.count(encoder, ring, task, (step.from, steps), true);
        self.report(task, from, steps);
        self.place = if traced {
            // The instruction is read only when it is certain that it is stepped.
            Place::Inside { ip: to, insn: None }
        } else {
            encoder.disable(to, ring)?;
            pass(task, to, mode)
        };

        match step.insn.kind {
            Kind::PopFlags if !is_next => {}
            Kind::PopFlags | Kind::Far(Far::InterruptReturn) if !self.shared => {
                self.flags_loaded(encoder, ring, task)?;
            }
            _ => {}
        }
        if self.paused {
            encoder.disable(to, ring)?;
            self.disarm(task);
            self.place = Place::Outside;
        }
        Ok(steps)
    }

    /// Counts instructions for the sampler. Samples the last one, at `ip`, if that is due.
    /// `follows`: whether the trace continues with the next instruction.
    fn count(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
        (ip, instructions): (u64, u64),
        follows: bool,
    ) {
        if !ring.sampler.executed(instructions) {
            return;
        }
        let sample = registers(task, ip, self.armed);

        // Without space for the sample, the instructions are in the trace all the same.
        self.full |= encoder.sample(&sample, mode(task), follows, ring).is_err();
    }

    /// The task has loaded its flags from memory, where the tracer's trap flag is hidden. If the
    /// program has set the flag itself, it is not traced until it returns from the kernel with the
    /// flag clear.
    fn flags_loaded(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        task: &mut Current<'_>,
    ) -> Result<(), Full> {
        if task.trap_flag() {
            encoder.disable(task.ip(), ring)?;
            self.armed = false;
            self.place = Place::Outside;
        } else {
            task.set_trap_flag(true);
        }
        Ok(())
    }

    fn is_inside(&self) -> bool {
        matches!(self.place, Place::Inside { .. } | Place::Passing(_))
    }

    /// Stops stepping the task. Returns the number of instructions that it has executed.
    pub(crate) fn leave(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        mut task: Option<Current<'_>>,
    ) -> u64 {
        let steps = match &mut task {
            Some(task) if self.has_called(task) => self.called(encoder, ring, task),
            _ => 0,
        };
        self.leave_place(encoder, ring);

        match task {
            Some(mut task) => self.disarm(&mut task),
            None => (self.armed, self.shared) = (false, false),
        }
        steps
    }

    /// Ends the trace in front of the task's next instruction.
    fn leave_place(&mut self, encoder: &mut Encoder, ring: &mut Ring<'_>) {
        if let Place::Inside { ip, .. } = self.place {
            if encoder.disable(ip, ring).is_err() {
                self.full = true;
            }
        }
        self.place = Place::Outside;
    }

    /// Begins the trace at `ip`, if it has not begun and the code there is traced.
    fn begin_at(
        &mut self,
        encoder: &mut Encoder,
        ring: &mut Ring<'_>,
        ip: u64,
        task: &Current<'_>,
    ) -> Result<(), Full> {
        if !self.ranges.has(ip) || task.is_trampoline(ip) {
            return Ok(());
        }
        if !self.begun {
            encoder.begin(false, ring)?;
            self.begun = true;
        }
        encoder.enable(ip, mode(task), ring)
    }
}

/// The place in front of the user code to which these registers lead.
fn entering(regs: &Regs<'_>) -> Place {
    Place::Entering {
        ip: regs.ip(),
        shown: regs.entered_by_syscall() && regs.shows_trap_flag(),
    }
}

/// Bytes of an instruction that show whether it shows or loads the trap flag. They suffice for
/// nearly all instructions, and are one load.
const PEEK: usize = 8;

/// The place in user code that is not traced. The next instruction is at `ip`.
fn pass(task: &Current<'_>, ip: u64, mode: Mode) -> Place {
    let mut text = [0; PEEK];
    let len = task.read(ip, &mut text);

    match text.get(..len) {
        Some(text) if Insn::is_plain(text, mode) => Place::Passing(ip),
        _ => Place::Inside {
            ip,
            insn: read(task, ip),
        },
    }
}

/// Whether `insn`, at `ip`, can be executed and be the next one again.
fn can_go_to_itself(insn: &Insn, ip: u64) -> bool {
    match insn.kind {
        Kind::IndirectJump | Kind::IndirectCall | Kind::Return | Kind::String => true,
        _ => insn.target(ip) == Some(ip),
    }
}
