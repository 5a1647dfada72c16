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
use core::ops::ControlFlow;
use intel_pt::{
    insn::Mode,
    Encoder,
    Full, //
};
use stepping::{
    Block,
    Branch,
    Current,
    Ended,
    Observer,
    Reason, //
};

/// Instructions in a trap, however many are wanted: interrupts are off meanwhile.
const LIMIT: u32 = 4096;

/// Tells the encoder of branches, as long as all code is traced, or none is.
struct Watch<'a, 'b> {
    encoder: &'a mut Encoder,
    ring: &'a mut Ring<'b>,
    ranges: &'a Ranges,
    traced: bool,
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

    fn code(&mut self, first: u64, text: &[u8]) -> ControlFlow<()> {
        if !self.traced {
            return ControlFlow::Continue(());
        }
        stepping::tell(first, text);
        match cut(self.encoder, self.ring, first, Mode::Bits64) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Full) => {
                self.full = true;
                ControlFlow::Break(())
            }
        }
    }

    #[inline]
    fn branches(&mut self, branch: Branch, _from: u64, next: u64, to: u64) -> ControlFlow<()> {
        if !self.traced {
            return ControlFlow::Continue(());
        }
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
}

impl Tracer {
    /// Reports that the task has executed the instruction at `ip` itself, which counts as so many.
    #[inline]
    pub(super) fn report(&mut self, task: &Current<'_>, ip: u64, steps: u64) {
        task.report_step(ip, self.reason, steps, self.interpreted);
        self.interpreted = 0;
    }
}

/// The task is where the tracer has placed it after a step, and executes more; how many instructions that
/// are traced.
pub(super) fn interpret(
    tracer: &mut Tracer,
    unit: &mut Unit,
    ring: &mut Ring<'_>,
    task: &mut Current<'_>,
) -> u64 {
    tracer.reason = Reason::Off;
    let traced = match tracer.place {
        Place::Inside { insn: None, .. } if unit.encoder.is_on() => true,
        Place::Passing(_) => false,
        _ => return 0,
    };

    let limit = LIMIT.min(module_parameters::interpret.value());

    // A trap that is the program's or its debugger's must not be missed.
    if limit == 0 || !tracer.armed || tracer.shared || tracer.paused || tracer.full {
        return 0;
    }
    let mut watch = Watch {
        encoder: &mut unit.encoder,
        ring,
        ranges: &tracer.ranges,
        traced,
        full: false,
        // Nothing.
        known: (u64::MAX, 0),
    };
    if task.space() != unit.space {
        unit.space = task.space();
        unit.blocks.iter_mut().for_each(Block::forget_told);
    }
    let ran = task.interpret(&mut unit.blocks, &mut watch, limit);
    tracer.reason = Reason::after(ran.as_ref());
    let Some(ran) = ran else {
        return 0;
    };

    tracer.full |= watch.full;
    if let Ended::Stopped { from } = ran.ended {
        // The branch found no room: the trace ends in front of it.
        tracer.full = true;
        tracer.place = Place::Inside {
            ip: from,
            insn: None,
        };
        return ran.executed.saturating_sub(1);
    }
    let ip = task.ip();

    tracer.place = if tracer.ranges.has(ip) {
        Place::Inside { ip, insn: None }
    } else {
        tracer.full |= unit.encoder.disable(ip, ring).is_err();
        pass(task, ip, mode(task))
    };
    if traced {
        ran.executed
    } else {
        0
    }
}
