// SPDX-License-Identifier: GPL-2.0

//! Trace state that owns memory: it may be dropped in NMI.
//!
//! error: AuxPmu::Trace must be plain data: it may be dropped in NMI

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(setup_aux, quiesce);

    type Buffer = ();
    type Trace = KVec<u8>;

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result<KVec<u8>> {
        Ok(KVec::new())
    }
}
