// SPDX-License-Identifier: GPL-2.0

//! The pages of an AUX area, kept beyond setup_aux().
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
    usual!(start, quiesce);

    type Buffer = &'static aux::Pages;
    type Trace = ();

    fn setup_aux(
        &self,
        _event: &Event<'_, Self>,
        pages: &aux::Pages,
    ) -> Result<&'static aux::Pages> {
        Ok(pages)
    }
}
