// SPDX-License-Identifier: GPL-2.0

//! A tracer that callbacks on several CPUs cannot share safely.
//!
//! error: cannot be shared between threads safely

use core::cell::Cell;
use kernel::{
    interrupt::LocalInterruptDisabled,
    prelude::*, //
};
use stepping::{
    Current,
    Tracer,
    Transition,
    Trap, //
};

module! {
    type: Module,
    name: "compile_fail",
    authors: ["The auxpmu authors"],
    description: "Does not compile",
    license: "GPL",
}

struct Module;

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

struct Counts(Cell<u64>);

#[vtable]
impl Tracer for Counts {
    fn single_step(&self, _task: &mut Current<'_>, _irq: &LocalInterruptDisabled) -> Trap {
        self.0.set(self.0.get() + 1);
        Trap::Claimed
    }

    fn transition(
        &self,
        _task: Option<Current<'_>>,
        _transition: Transition<'_>,
        _irq: &LocalInterruptDisabled,
    ) {
    }
}
