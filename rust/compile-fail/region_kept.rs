// SPDX-License-Identifier: GPL-2.0

//! A region that is kept beyond the callback.
//!
//! error: lifetime may not live long enough

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(setup_aux, quiesce);

    type Buffer = ();
    type Trace = &'static aux::Region<'static>;

    fn start(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
    ) -> Result<&'static aux::Region<'static>> {
        Ok(&transaction.region())
    }
}
