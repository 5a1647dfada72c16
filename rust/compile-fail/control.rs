// SPDX-License-Identifier: GPL-2.0

//! The positive control: it does correctly what the other cases do wrong.
//!
//! compiles

include!("common/driver.rs");

register!();

perf::format! {
    /// The terms.
    struct Config {
        /// The lower half of a word.
        low: config[0..=31],
        /// The upper half of the same word.
        high: config[32..=63],
    }
}

struct Driver;

#[vtable]
impl Pmu for Driver {
    type Config = Config;
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, Config>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Driver {
    usual!(setup_aux);

    type Buffer = ();
    type Trace = u64;

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<u64> {
        transaction.set_timer(kernel::time::Delta::from_millis(1));
        Ok(0)
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, run: &mut u64) -> aux::Next {
        let mut region = transaction.region();

        if let Ok(mut writer) = region.reserve(8) {
            if writer.put(&run.to_le_bytes()).is_ok() {
                writer.commit();
            }
        }
        *run = region.written();
        aux::Next::Flush
    }

    fn pause(&self, _transaction: &mut aux::Transaction<'_, Self>, _run: &mut u64) {}

    fn resume(&self, _transaction: &mut aux::Transaction<'_, Self>, _run: &mut u64) {}

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, run: u64) -> aux::Commit {
        let loss = aux::Loss::Gap { bytes: Some(run) };

        aux::Commit::new(transaction.region().written(), loss)
    }
}
