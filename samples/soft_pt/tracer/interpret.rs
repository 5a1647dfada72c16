// SPDX-License-Identifier: GPL-2.0

//! What a task executes without a trap, and its trace.

use super::{
    pass,
    Place,
    Tracer, //
};
use crate::{
    code::{
        cut,
        mode, //
    },
    module_parameters,
    ranges::Ranges,
    ring::Ring,
    unit::Unit, //
};
use core::{
    num::NonZero,
    ops::ControlFlow, //
};
use intel_pt::{
    insn::Mode,
    Encoder,
    Full,
    Payload, //
};
use stepping::{
    Branch,
    Current,
    Ended,
    Observer,
    Ran,
    Reason,
    Width, //
};

/// Instructions in a trap, however many are wanted: interrupts are off meanwhile.
const LIMIT: u32 = 4096;

/// Tells the encoder of branches, as long as all code is traced, or none is.
struct Watch<'a, 'b> {
    encoder: &'a mut Encoder,
    ring: &'a mut Ring<'b>,
    ranges: &'a Ranges,
    traced: bool,
    /// The cycles before it.
    cycles: u64,
    /// Whether something found no room, that was no branch.
    full: bool,
    /// Where code is that is known to be traced, or not: first and last address.
    known: (u64, u64),
}

impl Watch<'_, '_> {
    /// Whether all code from `first` to `last` is traced, or none.
    fn look(&mut self, first: u64, last: u64) -> bool {
        let (from, to, traced) = self.ranges.around(first);

        self.known = (from, to);
        traced == self.traced && last <= to
    }

    /// So many instructions have been executed, and are traced.
    #[inline]
    fn executes(&mut self, instructions: u64) {
        self.ring.cycles = self.cycles.wrapping_add(instructions);
    }
}

impl Observer for Watch<'_, '_> {
    #[inline]
    fn enters(&mut self, first: u64, end: u64) -> ControlFlow<()> {
        let (from, to) = self.known;
        let last = end.wrapping_sub(1);

        if first >= from && last <= to || self.look(first, last) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    fn code(&mut self, first: u64, text: &[u8], executed: u64) -> ControlFlow<()> {
        if !self.traced {
            return ControlFlow::Continue(());
        }
        self.executes(executed);
        stepping::report_code(first, text);
        match cut(self.encoder, self.ring, first, Mode::Bits64) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Full) => {
                self.full = true;
                ControlFlow::Break(())
            }
        }
    }

    #[inline]
    fn branches(
        &mut self,
        branch: Branch,
        _from: u64,
        next: u64,
        to: u64,
        executed: u64,
    ) -> ControlFlow<()> {
        if !self.traced {
            return ControlFlow::Continue(());
        }
        self.executes(executed);
        let branch = match branch {
            Branch::Conditional { taken } => intel_pt::Branch::Conditional { taken },
            Branch::Jump => intel_pt::Branch::Jump,
            Branch::Call => intel_pt::Branch::Call,
            Branch::IndirectJump => intel_pt::Branch::IndirectJump,
            Branch::IndirectCall => intel_pt::Branch::IndirectCall,
            Branch::Return => intel_pt::Branch::Return,
        };

        match self
            .encoder
            .branch(branch, next, to, Mode::Bits64, self.ring)
        {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn ptwrite(&mut self, from: u64, operand: u64, width: Width, executed: u64) -> bool {
        // Else the processor shows whether it knows the instruction.
        if !self.encoder.config().ptw {
            return false;
        }
        if !self.traced {
            return true;
        }
        self.executes(executed);
        let written = self
            .encoder
            .ptwrite(from, payload(operand, width), self.ring);

        self.full |= written.is_err();
        written.is_ok()
    }
}

/// What a `PTW` has of an operand.
pub(super) fn payload(operand: u64, width: Width) -> Payload {
    match (width, u32::try_from(operand)) {
        (Width::B4, Ok(operand)) => Payload::Bits32(operand),
        _ => Payload::Bits64(operand),
    }
}

impl Tracer {
    /// Reports that the task has executed the instruction at `ip` itself, which counts as so many.
    #[inline]
    pub(super) fn report(&mut self, task: &Current<'_>, ip: u64, steps: u64) {
        task.report_step(ip, self.reason, steps, self.interpreted);
        self.interpreted = 0;
    }
}

/// What a pass of the interpreter counts as at least: it can execute 64 rounds of a string instruction.
const PASS: u64 = 64;

/// The task is where the tracer has placed it after a step, and executes more; how many instructions that
/// are traced.
pub(super) fn interpret(
    tracer: &mut Tracer,
    unit: &mut Unit,
    ring: &mut Ring<'_>,
    task: &mut Current<'_>,
) -> u64 {
    let mut rest = u64::from(LIMIT.min(module_parameters::interpret.value()));
    let mut executed = 0_u64;

    tracer.reason = Reason::Off;
    while rest != 0 {
        // A sampled instruction has a pass of its own: then its address is known, and the registers behind it. Code
        // that is not traced has no samples.
        let is_traced = !matches!(tracer.place, Place::Passing(_));
        let left = ring.sampler.left().filter(|_| is_traced);
        let limit = match left.map(NonZero::get) {
            None => rest,
            Some(1) => 1,
            Some(left) => rest.min(left.wrapping_sub(1)),
        };
        let Some(ran) = pass_of(tracer, unit, ring, task, limit) else {
            break;
        };

        executed = executed.wrapping_add(ran.executed);
        // It has executed `limit`, or less and a part of a string instruction.
        rest = rest.saturating_sub(limit.max(PASS));
        if ran.ended != Ended::Limit || tracer.full {
            break;
        }
    }
    tracer.interpreted = tracer.interpreted.saturating_add(executed);
    executed
}

/// Has the task's next instructions interpreted, `limit` at most: what became of it, with the instructions that are
/// traced.
fn pass_of(
    tracer: &mut Tracer,
    unit: &mut Unit,
    ring: &mut Ring<'_>,
    task: &mut Current<'_>,
    limit: u64,
) -> Option<Ran> {
    let traced = match tracer.place {
        Place::Inside { insn: None, .. } if unit.encoder.is_on() => true,
        Place::Passing(_) => false,
        _ => return None,
    };

    // A trap that is the program's or its debugger's must not be missed.
    if !tracer.armed || tracer.shared || tracer.paused || tracer.full {
        return None;
    }
    let from = task.ip();
    let cycles = ring.cycles;
    let mut watch = Watch {
        encoder: &mut unit.encoder,
        ring,
        ranges: &tracer.ranges,
        traced,
        cycles,
        full: false,
        // Nothing.
        known: (u64::MAX, 0),
    };
    let limit = u32::try_from(limit).unwrap_or(LIMIT);
    let ran = task.interpret(&mut unit.decoded, &mut watch, limit);
    tracer.reason = Reason::after(ran.as_ref());
    let ran = ran?;

    tracer.full |= watch.full;
    let executed = match ran.ended {
        _ if !traced => 0,
        // The branch found no room: the trace ends in front of it.
        Ended::Stopped { .. } => ran.executed.saturating_sub(1),
        _ => ran.executed,
    };
    ring.cycles = cycles.wrapping_add(executed);
    tracer.count(&mut unit.encoder, ring, task, (from, executed), true);
    let ran = Ran { executed, ..ran };
    if let Ended::Stopped { from } = ran.ended {
        tracer.full = true;
        tracer.place = Place::Inside {
            ip: from,
            insn: None,
        };
        return Some(ran);
    }
    let ip = task.ip();

    tracer.place = if tracer.ranges.has(ip) {
        Place::Inside { ip, insn: None }
    } else {
        tracer.full |= unit.encoder.disable(ip, ring).is_err();
        pass(task, ip, mode(task))
    };
    Some(ran)
}
