// SPDX-License-Identifier: GPL-2.0

//! `ramp`: a driver with its tests.
//!
//! The driver writes increasing numbers. A filter can select a range of them, and the event can be
//! paused. The KUnit suite below shows how to test a driver on the bench of [`perf::testing`],
//! without perf and user space. It tests refused configurations, the trace, a full AUX area,
//! pauses, NMIs, a wrong tail, and unmapping of the area.
//!
//! The suite runs when the module is loaded. It is compiled only if the kernel has KUnit built in.
//!
//! ```text
//! # insmod rust_perf.ko; insmod pmu_kunit.ko
//! # cat /sys/kernel/debug/kunit/pmu_kunit/results
//! ```

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};
use perf::{
    aux,
    filter,
    pmu::Description,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

perf::module_pmu! {
    type: Ramp,
    pmu: Description::new(c"ramp").filters(1),
    driver: Ramp,
    name: "pmu_kunit",
    authors: ["The auxpmu authors"],
    description: "A perf PMU that comes with its KUnit suite",
    license: "GPL",
}

perf::format! {
    /// Configuration of an event.
    struct Config {
        /// Numbers per tick; 0: 1.
        burst: config[0..=7],
    }
}

/// Length of a number, in bytes.
const WORD: u64 = 8;

/// State of the unit.
struct Unit {
    paused: bool,
    /// Bytes that found no space.
    lost: u64,
}

struct Ramp;

#[vtable]
impl Pmu for Ramp {
    type Config = Config;
    /// The next number.
    type Event = Atomic<u64>;
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, Config>) -> Result<Atomic<u64>> {
        Ok(Atomic::new(0))
    }

    /// A filter is a range of numbers. The driver writes only the numbers in the range.
    fn filters_validate(filters: &[filter::AddrFilter]) -> Result {
        match filters {
            [] => Ok(()),
            [one] if one.action == filter::Action::Filter && !one.in_file => Ok(()),
            _ => Err(EOPNOTSUPP),
        }
    }
}

#[vtable]
impl AuxPmu for Ramp {
    type Buffer = ();
    type Trace = Unit;

    fn setup_aux(&self, event: &Event<'_, Self>, pages: &aux::Pages) -> Result {
        // A burst must fit, and perf keeps one byte free.
        if pages.size().len() <= burst(event).saturating_mul(WORD) {
            return Err(EINVAL);
        }
        Ok(())
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Unit> {
        transaction.set_timer(Delta::from_millis(1));
        Ok(Unit {
            paused: true,
            lost: 0,
        })
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, unit: &mut Unit) -> aux::Next {
        if unit.paused {
            return aux::Next::Continue;
        }

        for _ in 0..burst(transaction.event()) {
            let number = transaction.event().fetch_add(1, Relaxed);
            let mut filters = transaction.filters().iter();
            let passes = |range: Option<(u64, u64)>| {
                range.is_some_and(|(first, last)| (first..=last).contains(&number))
            };

            transaction.count(1);
            if !filters.all(|filter| passes(filter.range)) {
                continue;
            }
            let written = transaction.region().reserve(8).and_then(|mut writer| {
                writer.put(&number.to_le_bytes())?;
                writer.commit();
                Ok(())
            });
            if written.is_err() {
                unit.lost = unit.lost.saturating_add(WORD);
            }
        }

        if unit.lost > 0 || transaction.region().wakeup_due() {
            aux::Next::Flush
        } else {
            aux::Next::Continue
        }
    }

    fn pause(&self, _transaction: &mut aux::Transaction<'_, Self>, unit: &mut Unit) {
        unit.paused = true;
    }

    fn resume(&self, _transaction: &mut aux::Transaction<'_, Self>, unit: &mut Unit) {
        unit.paused = false;
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, unit: Unit) -> aux::Commit {
        let loss = match unit.lost {
            0 => aux::Loss::None,
            bytes => aux::Loss::NoSpace { bytes: Some(bytes) },
        };

        aux::Commit::written(transaction, loss)
    }
}

/// Numbers per tick of this event.
fn burst(event: &Event<'_, Ramp>) -> u64 {
    event.config().burst().max(1)
}

#[cfg(CONFIG_RUST_PERF_TESTING)]
#[kunit_tests(pmu_kunit)]
mod tests {
    use super::*;
    use perf::testing::{
        Bench,
        Nmi,
        Setup, //
    };

    const PAGE: u64 = 4096;

    /// An event with bursts of this many numbers.
    fn setup(burst: u64) -> Setup {
        Setup {
            config: [burst, 0, 0, 0],
            pages: 1,
            watermark: 64,
            filters: 1,
            ..Setup::default()
        }
    }

    /// The numbers in `bytes`.
    fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
        let word = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);

        bytes.chunks_exact(8).map(word)
    }

    #[test]
    fn only_what_it_can_do_is_accepted() {
        let none = Setup::default();
        // The event, and the expected error.
        let table = [
            (setup(0), None),
            (setup(255), None),
            (setup(256), Some(EINVAL)),
            (
                Setup {
                    config: [0, 1, 0, 0],
                    ..none
                },
                Some(EINVAL),
            ),
            // Recorders ask for a period. The event never overflows.
            (Setup { period: 1, ..none }, None),
            (
                Setup {
                    frequency: true,
                    ..none
                },
                Some(EINVAL),
            ),
            // The bench accepts only powers of two, as perf does.
            (Setup { pages: 3, ..none }, Some(EINVAL)),
        ];

        for (setup, error) in table {
            assert!(Bench::new(Ramp, &setup).err() == error);
        }
    }

    /// Many transactions, and many wraps of the AUX area, with a reader that keeps up.
    #[test]
    fn all_numbers_come_out_in_order() -> Result {
        let mut bench = Bench::new(Ramp, &setup(3))?;
        let mut next = 0;

        bench.add()?;
        for i in 0..1000 {
            assert!(bench.tick());
            if i % 50 == 0 {
                // perf stops and starts the event when the task is scheduled.
                bench.stop();
                bench.start();
            }
            for number in numbers(&bench.read()?) {
                assert_eq!(number, next);
                next += 1;
            }
        }
        bench.del();
        next += u64::try_from(numbers(&bench.read()?).count())?;

        assert_eq!(next, 3000);
        assert_eq!(bench.head(), 3000 * WORD);
        assert_eq!(bench.counter(), 3000);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn full_ring_loses_what_the_counter_tells() -> Result {
        let mut bench = Bench::new(Ramp, &setup(1))?;

        bench.add()?;
        for _ in 0..PAGE / WORD {
            bench.tick();
        }
        assert!(bench.is_disabled());
        // perf keeps one byte free, so the area holds one number less.
        let fits = PAGE / WORD - 1;
        assert_eq!(bench.head(), fits * WORD);
        assert!(bench.records().last().is_some_and(|r| r.is_truncated()));

        // The reader makes space. The stream continues with the number after the lost one.
        bench.read()?;
        bench.tick();
        bench.del();
        assert!(numbers(&bench.read()?).eq([fits + 1]));
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn newest_numbers_survive_in_overwrite_mode() -> Result {
        let mut bench = Bench::new(
            Ramp,
            &Setup {
                mode: aux::Mode::Overwrite,
                ..setup(100)
            },
        )?;

        bench.add()?;
        for _ in 0..50 {
            assert!(bench.tick());
        }
        bench.del();

        assert!(numbers(&bench.read()?).eq(5000 - PAGE / WORD..5000));
        assert!(bench.records().iter().all(|r| r.is_overwrite()));
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn paused_it_is_silent() -> Result {
        let mut bench = Bench::new(Ramp, &setup(1))?;

        // Paused before it starts, as with `aux-action=start-paused`.
        bench.pause()?;
        bench.add()?;
        bench.tick();
        assert_eq!(bench.counter(), 0);

        bench.resume()?;
        bench.tick();
        bench.pause()?;
        bench.tick();
        bench.del();
        assert_eq!(bench.head(), WORD);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn filter_lets_its_numbers_through() -> Result {
        let mut bench = Bench::new(Ramp, &setup(10))?;
        let filter = filter::AddrFilter {
            action: filter::Action::Filter,
            in_file: false,
            offset: 25,
            size: 10,
        };
        let in_file = filter::AddrFilter {
            in_file: true,
            ..filter
        };

        // The filter is set while the event runs: perf stops and starts the event.
        bench.add()?;
        bench.tick();
        bench.set_filters(&[filter], None)?;
        for wanted in [&[in_file][..], &[filter, filter]] {
            assert!(bench.set_filters(wanted, None) == Err(EOPNOTSUPP));
        }
        for _ in 0..9 {
            assert!(bench.tick());
        }
        bench.del();

        assert!(numbers(&bench.read()?).eq(Iterator::chain(0..10, 25..35)));
        assert_eq!(bench.counter(), 100);
        assert!(bench.violation().is_none());
        Ok(())
    }

    /// perf may stop, pause and resume the event from an NMI, in any callback.
    #[test]
    fn nmi_breaks_into_every_callback() -> Result {
        type Call = fn(&mut Bench<Ramp>);
        let calls: [Call; 4] = [
            |bench| assert!(bench.add().is_ok()),
            // The tick has no effect if an NMI has stopped the event.
            |bench| {
                bench.tick();
            },
            |bench| bench.stop(),
            |bench| bench.del(),
        ];

        for call in 0..calls.len() {
            for nmi in [Nmi::Stop, Nmi::Pause, Nmi::Resume] {
                let mut bench = Bench::new(Ramp, &setup(1))?;

                for (i, f) in calls.iter().enumerate() {
                    if i == call {
                        bench.interrupt(nmi)?;
                    }
                    f(&mut bench);
                    // If the NMI stops the event, it is stopped when the callback returns.
                    assert!(!(i == call && nmi == Nmi::Stop && bench.is_open()));
                }

                // The tick writes a number, unless the NMI stops or pauses the event before.
                let silent = call == 0 && nmi != Nmi::Resume;
                assert_eq!(bench.head(), if silent { 0 } else { WORD });
                assert!(bench.violation().is_none());
            }
        }
        Ok(())
    }

    #[test]
    fn user_space_may_unmap_and_lie() -> Result {
        let mut bench = Bench::new(Ramp, &setup(1))?;

        bench.add()?;
        bench.tick();
        bench.unmap();
        assert!(!bench.is_open() && !bench.tick());
        // The event cannot start until an area is mapped again.
        assert!(!bench.start());
        bench.map()?;
        assert!(bench.start());

        // A tail ahead of the head is wrong, and counts as no space.
        bench.set_tail(u64::MAX / 2);
        bench.stop();
        assert!(!bench.start());
        assert!(bench.is_disabled());
        assert!(bench.violation().is_none());
        Ok(())
    }
}
