// SPDX-License-Identifier: GPL-2.0

//! From single steps, and from transitions between user code and the kernel, to packets.
//!
//! A task is traced from the first instruction that is seen to be executed: where user code goes on
//! is certain only then, since a signal or another try of a system call may still come in between.
//!
//! ```text
//!              enter                 step                 step
//!   Outside ──────────► Entering ──────────► Inside ◄──────────┐
//!      ▲                    │                   │ └────────────┘
//!      └────────────────────┴───────────────────┘
//!               system call, signal, off the CPU
//! ```
//!
//! Where filters leave code out, the task is `Passing` instead of `Inside`: each step is compared with
//! the ranges, and no more, unless the next instruction can show or load the trap flag.
//!
//! In the trap after a step, the task's next instructions are interpreted, and passed to the encoder, until
//! there is one that the processor must execute.

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
    /// About to run user code at this address.
    Entering(u64),
    /// In user code that is stepped through, with this instruction the next.
    Inside {
        ip: u64,
        /// [`None`] if it could not be read yet.
        insn: Option<Insn>,
    },
    /// In user code that is stepped through and not traced, with an instruction at this address the
    /// next that has nothing to do with the trap flag.
    Passing(u64),
}

/// What the unit of a CPU knows of the current task.
pub(crate) struct Tracer {
    ranges: Ranges,
    place: Place,
    /// Whether the current task's trap flag is set, by us.
    armed: bool,
    /// Whether it is set, by a debugger that steps the task: its traps are the debugger's, too.
    shared: bool,
    /// Whether the ring has been given something to begin with.
    begun: bool,
    /// Whether something found no room.
    full: bool,
    /// Whether nothing is to be traced for the time being.
    paused: bool,
    /// Why the task's next instruction is stepped.
    reason: Reason,
    /// Instructions that were interpreted, and traced, since a step was last reported.
    pub(crate) interpreted: u64,
}

impl Tracer {
    /// One that is paused, after so many instructions that are yet to be reported.
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

    /// Whether traps of the current task are ours.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Whether the encoder gets the traps of the current task.
    pub(crate) fn is_stepping(&self) -> bool {
        self.armed || self.shared
    }

    /// Whether something found no room.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// A task with these registers is on the CPU, or about to be.
    pub(crate) fn enter(&mut self, regs: &mut Regs<'_>) {
        // What is in the middle of a system call or of a signal comes by its end. Till then its
        // registers can be copied, by clone() or into the signal's frame.
        if !regs.will_transition() {
            self.arm(regs);
        }
    }

    /// Sets the trap flag. If the program has, it is left to the program; if its debugger has, steps
    /// are traced without it.
    fn arm(&mut self, regs: &mut Regs<'_>) {
        if self.set_trap_flag(regs) {
            self.place = Place::Entering(regs.ip());
            self.reason = Reason::First;
        }
    }

    /// As [`arm`](Self::arm), in the same place; whether the task steps.
    fn set_trap_flag(&mut self, regs: &mut Regs<'_>) -> bool {
        if self.paused {
            return false;
        }
        self.shared = !self.armed && regs.debugger_steps();
        if !self.armed {
            self.armed = !regs.trap_flag() && regs.code().is_some();
        }
        if self.armed {
            // Also if it was set before: exec() and signals take it away.
            regs.set_trap_flag(true);
        }
        self.is_stepping()
    }

    /// Traces from now on; after an NMI, from when the task next comes back from the kernel: an NMI
    /// may have broken in where the registers are being saved.
    pub(crate) fn resume(&mut self, task: Option<Current<'_>>, cpu: &Cpu) {
        self.paused = false;
        if let (Some(mut task), false) = (task, cpu.is_nmi()) {
            self.enter(&mut task);
        }
    }

    /// Traces nothing from now on, or, after an NMI, from the next step on; how many instructions the
    /// task has executed.
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

    /// Takes the trap flag away.
    fn disarm(&mut self, regs: &mut Regs<'_>) {
        self.shared = false;
        if core::mem::take(&mut self.armed) {
            regs.set_trap_flag(false);
        }
    }

    /// The task has executed an instruction, and executes more; how many.
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

    /// Reads the instruction that is stepped next: what it does can make it unreadable.
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
                self.place = Place::Entering(to);
                self.reason = Reason::First;
                return Ok(0);
            }
            Place::Entering(ip) => {
                // Its time is that of the trace, which begins behind this.
                let insn = if self.ranges.has(ip) {
                    read_and_report(task, ip).0
                } else {
                    read(task, ip)
                };

                // Some ways back to user code trap before the first instruction.
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
            // A segment of the program's own.
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
        // Whatever becomes of the trace.
        if step.insn.kind == Kind::PushFlags && self.armed {
            hide_trap_flag(task);
        }
        if step.insn.kind == Kind::PtWrite && encoder.config().ptw && encoder.is_on() {
            if let Some((operand, width)) = task.ptwrite(step.from) {
                encoder.ptwrite(step.from, interpret::payload(operand, width), ring)?;
            }
        }
        if !encoder.is_on() || step.insn.kind == Kind::String && to == step.from {
            // Not traced; or a round of an instruction, which counts when it is left.
            steps = 0;
        }
        ring.advance(steps);
        match taken_in_place(task, &step.insn, step.from) {
            Some(taken) => {
                encoder.branch(Branch::Conditional { taken }, to, to, mode, ring)?;
            }
            None => {
                encoder.step(&step, ring)?;
            }
        }
        self.count(encoder, ring, task, (step.from, steps), true);
        self.report(task, from, steps);
        self.place = if traced {
            // Read when it is certain that it is stepped.
            Place::Inside { ip: to, insn: None }
        } else {
            encoder.disable(to, ring)?;
            pass(task, to, mode)
        };

        match step.insn.kind {
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

    /// So many instructions are in the trace, the last one of them at this address: samples it if that is due.
    /// `follows`: whether the trace follows the task to the next one.
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

        // The instructions are still in the trace.
        self.full |= encoder.sample(&sample, mode(task), follows, ring).is_err();
    }

    /// The task has loaded its flags from memory, where ours is hidden. A program that has set
    /// the flag itself is left to itself, until it has no such flag on its way back from the
    /// kernel.
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

    /// The task gets out of our hands; how many instructions it has executed.
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

    /// The task is not traced from here on.
    fn leave_place(&mut self, encoder: &mut Encoder, ring: &mut Ring<'_>) {
        if let Place::Inside { ip, .. } = self.place {
            if encoder.disable(ip, ring).is_err() {
                self.full = true;
            }
        }
        self.place = Place::Outside;
    }

    /// Trace begins at `ip`, if it has not begun and the code there is traced.
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

/// So many bytes say of nearly all instructions whether they have to do with the trap flag; they are
/// one load.
const PEEK: usize = 8;

/// In user code that is not traced, with the instruction at `ip` the next.
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
