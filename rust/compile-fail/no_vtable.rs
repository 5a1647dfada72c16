// SPDX-License-Identifier: GPL-2.0

//! A driver without `#[vtable]`: the framework does not know its module, and cannot pin its code.
//!
//! error: missing: `USE_VTABLE_ATTR`, `OwnerModule`

include!("common/driver.rs");

no_pmu!();

struct Driver;

impl Pmu for Driver {
    usual!(types, event_init);
}
