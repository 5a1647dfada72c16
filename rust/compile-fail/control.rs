// SPDX-License-Identifier: GPL-2.0

//! The positive control: all that the other cases do, but right.
//!
//! compiles

use kernel::prelude::*;
use perf::{
    aux,
    Attr,
    Event,
    Pmu, //
};

perf::module_pmu! {
    type: Driver,
    pmu: c"driver",
    driver: Driver,
    name: "compile_fail",
    authors: ["The auxpmu authors"],
    description: "Does not compile",
    license: "GPL",
}

perf::format! {
    /// The terms.
    struct Config {
        /// Of one word.
        low: config[0..=31],
        /// Beside it.
        high: config[32..=63],
    }
}

struct Driver;

#[vtable]
impl Pmu for Driver {
    type Config = Config;
    type Event = ();
    type Buffer = ();
    type Run = u64;

    fn event_init(&self, _attr: &Attr<'_, Config>) -> Result {
        Ok(())
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<u64> {
        session.set_timer(kernel::time::Delta::from_millis(1));
        Ok(0)
    }

    fn tick(&self, session: &mut aux::Session<'_, Self>, run: &mut u64) -> aux::Next {
        if let Ok(mut writer) = session.window.reserve(8) {
            if writer.put(&run.to_le_bytes()).is_ok() {
                writer.commit();
            }
        }
        *run = session.window.written();
        aux::Next::Commit
    }

    fn pause(&self, _session: &mut aux::Session<'_, Self>, _run: &mut u64) {}

    fn resume(&self, _session: &mut aux::Session<'_, Self>, _run: &mut u64) {}

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, run: u64) -> aux::Written {
        let loss = aux::Loss::Gap { bytes: Some(run) };

        aux::Written::new(session.window.written(), aux::Published::cpu_stores(), loss)
    }
}
