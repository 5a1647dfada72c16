// SPDX-License-Identifier: GPL-2.0

//! A driver that validates address filters, but has none.
//!
//! error: a driver with address filters says how many, and validates them

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, start, quiesce);

    fn filters_validate(_filters: &[perf::filter::Wanted]) -> Result {
        Ok(())
    }
}
