// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the registers and the IDT of a CPU.

use crate::flow::State;
use crate::idt;
use intel_pt::Event;
use qemuplugin::registers::{Kept, Register, Registers};
use std::collections::HashMap;
use std::sync::OnceLock;

/// `IF` in `EFLAGS`.
const IF: u64 = 1 << 9;

/// The vector of a page fault.
const PAGE_FAULT: u8 = 14;

/// QEMU's handles of the registers, and the vectors of the IDT.
pub(super) struct Places {
    cr2: OnceLock<Option<Register>>,
    cr3: OnceLock<Option<Register>>,
    flags: Kept,
    rip: Kept,
    /// The vectors of interrupts and exceptions, by the addresses of their handlers.
    vectors: OnceLock<HashMap<u64, u8>>,
}

impl Places {
    pub(super) const fn new() -> Self {
        Self {
            cr2: OnceLock::new(),
            cr3: OnceLock::new(),
            flags: Kept::new("eflags"),
            rip: Kept::new("rip"),
            vectors: OnceLock::new(),
        }
    }
}

/// The state of the calling CPU.
pub(super) struct Now<'a> {
    pub(super) places: &'a Places,
    pub(super) registers: &'a Registers<'a>,
}

impl Now<'_> {
    fn register(&self, known: &OnceLock<Option<Register>>, name: &str) -> Option<u64> {
        let register = known.get_or_init(|| self.registers.find(name));
        self.registers.read((*register)?)
    }

    /// The vectors, by the addresses of their handlers. Reads the IDT at the first call.
    fn vectors(&self) -> Option<&HashMap<u64, u8>> {
        let vectors = &self.places.vectors;
        if vectors.get().is_none() {
            let table = self.registers.memory(idt::ADDRESS, idt::LEN)?;
            let _ = vectors.set(idt::handlers(&table));
        }
        vectors.get()
    }
}

impl State for Now<'_> {
    fn pc(&self) -> Option<u64> {
        self.places.rip.read(self.registers)
    }

    fn cr3(&self) -> Option<u64> {
        self.register(&self.places.cr3, "cr3")
    }

    fn interrupts(&self) -> Option<bool> {
        Some(self.places.flags.read(self.registers)? & IF != 0)
    }

    fn event(&self, handler: u64) -> Option<Event> {
        let vector = *self.vectors()?.get(&handler)?;
        let page_fault = (vector == PAGE_FAULT).then(|| self.register(&self.places.cr2, "cr2"));
        Some(Event {
            vector,
            page_fault: page_fault.flatten(),
        })
    }
}
