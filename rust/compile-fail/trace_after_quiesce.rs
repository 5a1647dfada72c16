// SPDX-License-Identifier: GPL-2.0

//! Trace state that is used after `quiesce()`.
//!
//! error: cannot move out of `*trace`

include!("common/driver.rs");

no_pmu!();

/// A unit that runs.
struct Unit(u64);

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(setup_aux, quiesce);

    type Buffer = ();
    type Trace = Unit;

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result<Unit> {
        Ok(Unit(0))
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Unit) -> aux::Next {
        let _ = self.quiesce(transaction, *trace);
        trace.0 = 1;
        aux::Next::Continue
    }
}
