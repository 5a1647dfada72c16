// SPDX-License-Identifier: GPL-2.0

//! A run that is used after it was quiesced.
//!
//! error: cannot move out of `*run`

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, quiesce);

    type Run = KBox<u64>;

    fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result<KBox<u64>> {
        Ok(KBox::new(0, GFP_ATOMIC)?)
    }

    fn tick(&self, session: &mut aux::Session<'_, Self>, run: &mut KBox<u64>) -> aux::Next {
        let _ = self.quiesce(session, *run);
        **run = 1;
        aux::Next::Continue
    }
}
