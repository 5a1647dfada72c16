// SPDX-License-Identifier: GPL-2.0

//! Interprets a task's instructions without a trap for each, and traces them.

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

/// Maximum number of instructions interpreted in a trap, whatever the module parameter allows.
/// Interrupts are off meanwhile.
const LIMIT: u32 = 4096;

/// Passes branches to the encoder. Stops the interpreter where traced code begins or ends.
struct Watch<'a, 'b> {
    encoder: &'a mut Encoder,
    ring: &'a mut Ring<'b>,
    ranges: &'a Ranges,
    /// Whether the code that is interpreted is traced.
    traced: bool,
    /// Cycles before the interpreter began.
    cycles: u64,
    /// Whether packets other than those of a branch found no space.
    full: bool,
    /// First and last address of code that agrees with `traced`.
    known: (u64, u64),
}

impl Watch<'_, '_> {
    /// Whether all code from `first` to `last` agrees with `traced`.
    fn look(&mut self, first: u64, last: u64) -> bool {
        let (from, to, traced) = self.ranges.around(first);

        self.known = (from, to);
        traced == self.traced && last <= to
    }

    /// Sets the number of instructions that the interpreter has executed, all of them traced.
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

    fn wants_code(&self) -> bool {
        self.traced
    }

    fn code(&mut self, first: u64, _text: &[u8], executed: u64) -> ControlFlow<()> {
        self.executes(executed);
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
        // Without `ptw` the processor executes the instruction, or raises an exception.
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

/// The payload of a `PTW` packet for this operand.
pub(super) fn payload(operand: u64, width: Width) -> Payload {
    match (width, u32::try_from(operand)) {
        (Width::B4, Ok(operand)) => Payload::Bits32(operand),
        _ => Payload::Bits64(operand),
    }
}

impl Tracer {
    /// Reports a single step of the instruction at `ip`, which counts as `steps` instructions.
    #[inline]
    pub(super) fn report(&mut self, task: &Current<'_>, ip: u64, steps: u64) {
        task.report_step(ip, self.reason, steps, self.interpreted);
        self.interpreted = 0;
    }
}

/// Minimum number of instructions that a pass of the interpreter is counted as: it can execute 64
/// rounds of a string instruction.
const PASS: u64 = 64;

/// Interprets the task's next instructions after a step. Returns the number of traced instructions.
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
        // A sampled instruction has a pass of its own, so that its address and the registers after
        // it are known. Code that is not traced has no samples.
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
        // The pass has executed `limit` instructions, or fewer and a part of a string instruction.
        rest = rest.saturating_sub(limit.max(PASS));
        if ran.ended != Ended::Limit || tracer.full {
            break;
        }
    }
    tracer.interpreted = tracer.interpreted.saturating_add(executed);
    executed
}

/// Interprets at most `limit` of the task's next instructions. Returns the outcome, in which only
/// traced instructions count; [`None`] if nothing can be interpreted.
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

    // Interpreting must not skip a trap that the program or its debugger expects.
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
        // An empty range.
        known: (u64::MAX, 0),
    };
    let limit = u32::try_from(limit).unwrap_or(LIMIT);
    let ran = task.interpret(&mut unit.decoded, &mut watch, limit);
    tracer.reason = Reason::after(ran.as_ref());
    let ran = ran?;

    tracer.full |= watch.full;
    let executed = match ran.ended {
        _ if !traced => 0,
        // The packets of the branch found no space: the trace ends in front of it.
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
