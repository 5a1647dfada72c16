// SPDX-License-Identifier: GPL-2.0

//! One object for each CPU that may ever come online.

use crate::{
    bindings,
    context, //
};
use kernel::prelude::*;

/// A pinned `S` for each possible CPU.
pub(crate) struct PerCpu<S> {
    slots: KVec<Pin<KBox<S>>>,
}

impl<S> PerCpu<S> {
    /// Makes the objects; `init` gets the number of the CPU.
    pub(crate) fn new<I: PinInit<S, Error>>(init: impl Fn(u32) -> I) -> Result<Self> {
        // SAFETY: `nr_cpu_ids` is written at boot only, before modules are loaded.
        let count = unsafe { bindings::nr_cpu_ids };
        let mut slots = KVec::new();

        for cpu in 0..count {
            slots.push(KBox::try_pin_init(init(cpu), GFP_KERNEL)?, GFP_KERNEL)?;
        }

        Ok(Self { slots })
    }

    /// The object of the CPU that this runs on.
    ///
    /// [`None`] cannot happen: CPU numbers are below `nr_cpu_ids`.
    #[inline]
    pub(crate) fn this(&self, cpu: &context::Cpu) -> Option<Pin<&S>> {
        let id = usize::try_from(cpu.id()).ok()?;

        self.slots.get(id).map(|slot| slot.as_ref())
    }

    /// All objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Pin<&S>> {
        self.slots.iter().map(|slot| slot.as_ref())
    }
}
