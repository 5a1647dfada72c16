// SPDX-License-Identifier: GPL-2.0

//! A PMU that has no AUX area and does not count either.
//!
//! error: a PMU without an AUX area counts: it has count_start() and count_stop()

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

/// Registers the PMU.
pub fn register() -> Result<perf::Registration<Driver>> {
    perf::Registration::new(perf::pmu::Description::new(c"driver"), Driver)
}
