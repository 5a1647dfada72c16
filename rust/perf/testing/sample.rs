// SPDX-License-Identifier: GPL-2.0

//! AUX samples: records of another event that carry the newest trace.

use super::ring::Sampled;
use crate::{
    aux::{
        cpu::CpuState,
        AuxPmu,
        Commit,
        Copied,
        Full,
        Loss,
        Mode,
        Next,
        Pages,
        Sample,
        Transaction, //
    },
    bindings,
    event::{
        Attr,
        Event, //
    },
    pmu::Pmu,
    testing::{
        model::Model,
        Bench,
        Setup, //
    }, //
};
use auxcore::ring::Pos;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};

#[kunit_tests(rust_perf_aux_sample)]
mod tests {
    use super::*;

    /// The callback that an NMI interrupts.
    const NOWHERE: u32 = 0;
    const IN_START: u32 = 1;
    const IN_TICK: u32 = 2;
    const IN_QUIESCE: u32 = 3;
    const IN_SNAPSHOT: u32 = 4;

    /// What the NMI does.
    const SAMPLES: u32 = 0;
    const STOPS: u32 = 1;
    const PAUSES: u32 = 2;

    /// The byte that the unit writes at this position of the ring: never 0.
    fn byte_at(position: u64) -> u8 {
        let [byte, ..] = position.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();

        byte | 1
    }

    /// A driver whose unit writes bytes that depend on their positions.
    struct Teller {
        /// Bytes that each tick writes.
        step: usize,
        /// Bytes that it has written in all.
        reported: Atomic<u64>,
        /// Bytes that `snapshot()` claims in addition to those written.
        lie: u64,
        refuses: bool,
        knows: bool,
        nmi: Atomic<u32>,
        nmi_does: Atomic<u32>,
        state: Atomic<*mut CpuState<Teller, Model>>,
        event: Atomic<*mut bindings::perf_event>,
        /// Bytes that samples from NMI got.
        nmi_copied: Atomic<i64>,
        /// How many samples were taken from NMI.
        nmi_samples: Atomic<u32>,
    }

    impl Teller {
        fn new(step: usize) -> Self {
            Self {
                step,
                reported: Atomic::new(0),
                lie: 0,
                refuses: false,
                knows: true,
                nmi: Atomic::new(NOWHERE),
                nmi_does: Atomic::new(SAMPLES),
                state: Atomic::new(ptr::null_mut()),
                event: Atomic::new(ptr::null_mut()),
                nmi_copied: Atomic::new(0),
                nmi_samples: Atomic::new(0),
            }
        }

        fn nmi_in(&self, place: u32, transaction: &Transaction<'_, Self>) {
            if self.nmi.cmpxchg(place, NOWHERE, Relaxed).is_err() {
                return;
            }

            // SAFETY: Set by the test to its bench's state, to which only shared references are
            // made.
            let state = unsafe { self.state.load(Relaxed).as_ref() };
            let (Some(state), Some(event)) = (state, NonNull::new(self.event.load(Relaxed))) else {
                return;
            };
            // SAFETY: The bench keeps it pinned.
            let state = unsafe { Pin::new_unchecked(state) };

            match self.nmi_does.load(Relaxed) {
                STOPS => state.stop(event, transaction.cpu()),
                PAUSES => {
                    // SAFETY: The test's event, which it does not access meanwhile.
                    unsafe { bindings::rust_perf_set_aux_paused(event.as_ptr(), true) };
                    state.follow_pause(event, transaction.cpu());
                }
                _ => {
                    let mut space = [0; 64];
                    let mut sampled = Sampled::new(&mut space);
                    let record = sampled.as_record();

                    // SAFETY: This stands for `snapshot_aux()`.
                    let copied = unsafe { state.snapshot(event, record, 64, transaction.cpu()) };
                    self.nmi_copied
                        .fetch_add(i64::try_from(copied).unwrap_or(-1), Relaxed);
                    self.nmi_samples.fetch_add(1, Relaxed);
                }
            }
        }
    }

    #[vtable]
    impl Pmu for Teller {
        type Config = ();
        type Event = ();
        type Count = ();

        fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
            Ok(())
        }
    }

    #[vtable]
    impl AuxPmu for Teller {
        type Buffer = ();
        /// Whether it is paused.
        type Trace = bool;

        fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &Pages) -> Result {
            Ok(())
        }

        fn start(&self, transaction: &mut Transaction<'_, Self>) -> Result<bool> {
            self.nmi_in(IN_START, transaction);
            if self.refuses {
                return Err(ENODEV);
            }
            transaction.set_timer(Delta::from_millis(1));
            Ok(true)
        }

        fn tick(&self, transaction: &mut Transaction<'_, Self>, paused: &mut bool) -> Next {
            self.nmi_in(IN_TICK, transaction);
            if *paused {
                return Next::Continue;
            }

            let mut region = transaction.region();
            let mut at = region.head().advance(region.written());
            let mut write = || -> Result<(), Full> {
                let mut writer = region.reserve(self.step)?;
                for _ in 0..self.step {
                    writer.put(&[byte_at(at.get())])?;
                    at = at.advance(1);
                }
                writer.commit();
                Ok(())
            };

            if write().is_err() {
                return Next::Flush;
            }
            self.reported
                .fetch_add(u64::try_from(self.step).unwrap_or(0), Relaxed);
            if region.wakeup_due() {
                Next::Flush
            } else {
                Next::Continue
            }
        }

        fn pause(&self, _transaction: &mut Transaction<'_, Self>, paused: &mut bool) {
            *paused = true;
        }

        fn resume(&self, _transaction: &mut Transaction<'_, Self>, paused: &mut bool) {
            *paused = false;
        }

        fn snapshot<'a>(
            &self,
            transaction: &mut Transaction<'_, Self>,
            _paused: &mut bool,
            sample: Sample<'a>,
        ) -> Copied<'a> {
            self.nmi_in(IN_SNAPSHOT, transaction);
            match (self.knows, self.lie) {
                (false, _) => sample.skip(),
                (true, 0) => sample.copy_written(transaction),
                (true, lie) => {
                    let written = transaction.region().written().wrapping_add(lie);
                    sample.copy(transaction, written)
                }
            }
        }

        fn quiesce(&self, transaction: &mut Transaction<'_, Self>, _paused: bool) -> Commit {
            self.nmi_in(IN_QUIESCE, transaction);
            Commit::written(transaction, Loss::None)
        }
    }

    const RING: u64 = 2 * 4096;

    fn bench(driver: Teller, mode: Mode) -> Result<Bench<Teller>> {
        let bench = Bench::new(
            driver,
            &Setup {
                pages: 2,
                watermark: RING / 4,
                mode,
                ..Setup::default()
            },
        )?;
        let driver = bench.driver();

        driver.event.store(bench.event().as_ptr(), Relaxed);
        driver
            .state
            .store(ptr::from_ref(&*bench.state).cast_mut(), Relaxed);
        Ok(bench)
    }

    /// Whether a sample holds the newest bytes of a ring, up to `end`. The ring was mapped when its
    /// head was at `begin`.
    fn is_newest(sample: &[u8], begin: u64, end: u64) -> bool {
        let mut at = Pos::new(end).retreat(u64::try_from(sample.len()).unwrap_or(0));

        sample.iter().all(|&byte| {
            let is_trace = at.reached(Pos::new(begin));
            let expected = if is_trace { byte_at(at.get()) } else { 0 };

            at = at.advance(1);
            byte == expected
        })
    }

    /// Samples of each length, at every position of an AUX area that wraps, whatever the tail is.
    #[test]
    fn samples_hold_the_newest_bytes() -> Result {
        let sizes = [8, 64, 1000, 4096, 4104, 8184, 8192, 100_000];
        let table = [
            (Mode::Normal, true, 0),
            (Mode::Normal, false, 0),
            (Mode::Normal, true, 5 * RING + 4090),
            (Mode::Normal, true, u64::MAX - 5000),
            (Mode::Overwrite, false, 0),
            (Mode::Overwrite, false, 5 * RING + 4090),
            (Mode::Overwrite, false, u64::MAX - 5000),
        ];

        for (mode, reads, begin) in table {
            // Neither the size of a page nor that of the ring is a multiple of the step.
            let mut bench = bench(Teller::new(1000), mode)?;
            let mut end = Pos::new(begin);

            bench.ring_mut().set_head(begin);
            bench.set_tail(begin);
            assert!(bench.add().is_ok());
            for ticks in 0..30 {
                for size in sizes {
                    let sample = bench.sample(size)?;

                    assert_eq!(sample.len(), (size & !7).min(8192));
                    assert!(is_newest(&sample, begin, end.get()));
                }
                assert!(bench.sample(0)?.is_empty() && bench.sample(7)?.is_empty());
                if !reads && mode == Mode::Normal && ticks == 8 {
                    // 8 steps fit. The trace that is there can still be sampled.
                    break;
                }
                assert!(bench.tick());
                end = Pos::new(begin).advance(bench.driver().reported.load(Relaxed));
                if reads {
                    bench.read()?;
                }
            }

            // The samples have no other effect: no byte, no record, and no end of a transaction.
            assert!(bench.is_open());
            bench.del();
            assert_eq!(bench.head(), end.get());
            assert!(end.distance_from(Pos::new(begin)) >= 8000);
            assert!(bench.violation().is_none());
        }
        Ok(())
    }

    #[test]
    fn without_a_session_there_is_nothing() -> Result {
        let mut bench = bench(Teller::new(1000), Mode::Overwrite)?;
        let is_zeroes = |bench: &mut Bench<Teller>| -> Result<bool> {
            let sample = bench.sample(256)?;
            Ok(sample.len() == 256 && sample.iter().all(|&byte| byte == 0))
        };

        assert!(is_zeroes(&mut bench)?);
        assert!(bench.add().is_ok());
        assert!(bench.tick());
        assert!(!is_zeroes(&mut bench)?);
        bench.stop();
        assert!(is_zeroes(&mut bench)?);
        assert!(bench.start());
        assert!(!is_zeroes(&mut bench)?);
        bench.unmap();
        assert!(is_zeroes(&mut bench)?);
        bench.map()?;
        assert!(bench.start());
        bench.del();
        assert!(is_zeroes(&mut bench)?);

        assert_eq!(bench.state.stats.samples.get(), 2);
        assert_eq!(bench.state.stats.samples_missed.get(), 4);
        assert!(bench.violation().is_none());
        Ok(())
    }

    /// A sample for an event that does not own the unit holds nothing.
    #[test]
    fn another_event_gets_nothing() -> Result {
        let mut bench = bench(Teller::new(1000), Mode::Overwrite)?;
        let other = self::bench(Teller::new(1000), Mode::Overwrite)?;
        let event = other.event();
        let mut space = [0; 64];
        let mut sampled = Sampled::new(&mut space);

        assert!(bench.add().is_ok());
        assert!(bench.tick());
        let copied = bench.on_cpu(|bench, cpu| {
            let record = sampled.as_record();

            // SAFETY: This stands for `snapshot_aux()`. Both PMUs live to the end of the case.
            unsafe { bench.state.as_ref().snapshot(event, record, 64, cpu) }
        });
        assert_eq!(copied, Some(0));
        assert_eq!(sampled.len(), 0);
        Ok(())
    }

    #[test]
    fn unit_that_cannot_tell_leaves_zeroes() -> Result {
        for (knows, refuses) in [(false, false), (true, true)] {
            let driver = Teller {
                knows,
                refuses,
                ..Teller::new(1000)
            };
            let mut bench = bench(driver, Mode::Normal)?;

            assert_eq!(bench.add().is_err(), refuses);
            bench.tick();
            assert!(bench.sample(64)?.iter().all(|&byte| byte == 0));
            assert_eq!(bench.state.stats.samples_missed.get(), 1);
            assert!(bench.violation().is_none());
        }
        Ok(())
    }

    /// If a driver claims more than the space, the sample ends with the region.
    #[test]
    fn claim_of_more_than_the_space_is_cut() -> Result {
        for lie in [1, RING, u64::MAX / 2, u64::MAX - 2000] {
            let driver = Teller {
                lie,
                ..Teller::new(1000)
            };
            let mut bench = bench(driver, Mode::Normal)?;

            assert!(bench.add().is_ok());
            assert!(bench.tick());
            // The sample has the byte before the region, and then the region: one byte less than
            // the ring, of which 1000 are written.
            let sample = bench.sample(8192)?;
            let front = if lie == 1 { 8192 - 1001 } else { 1 };
            assert!(sample.iter().take(front).all(|&byte| byte == 0));
            let trace = sample.get(front..).and_then(|rest| rest.get(..1000));
            assert!(trace.is_some_and(|trace| is_newest(trace, 0, 1000)));
            assert!(bench.violation().is_none());
        }
        Ok(())
    }

    #[test]
    fn paused_unit_tells_what_it_has() -> Result {
        let mut bench = bench(Teller::new(1000), Mode::Overwrite)?;

        assert!(bench.add().is_ok());
        assert!(bench.tick());
        bench.pause()?;
        assert!(bench.tick());
        assert!(is_newest(&bench.sample(2048)?, 0, 1000));
        assert!(bench.tick());
        bench.resume()?;
        assert!(bench.tick());
        assert!(is_newest(&bench.sample(2048)?, 0, 2000));
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn nmi_that_breaks_into_a_callback_gets_nothing() -> Result {
        for place in [IN_START, IN_TICK, IN_QUIESCE, IN_SNAPSHOT] {
            let mut bench = bench(Teller::new(1000), Mode::Overwrite)?;

            bench.driver().nmi.store(place, Relaxed);
            assert!(bench.add().is_ok());
            assert!(bench.tick());
            assert!(is_newest(&bench.sample(512)?, 0, 1000));
            bench.del();

            assert_eq!(bench.driver().nmi_samples.load(Relaxed), 1);
            assert_eq!(bench.driver().nmi_copied.load(Relaxed), 0);
            assert_eq!(bench.state.stats.samples_missed.get(), 1);
            assert!(bench.violation().is_none());
        }
        Ok(())
    }

    /// The sample is complete, and the request is processed before interrupts come on.
    #[test]
    fn nmi_that_breaks_into_a_sample_is_processed() -> Result {
        for does in [STOPS, PAUSES] {
            let mut bench = bench(Teller::new(1000), Mode::Overwrite)?;

            assert!(bench.add().is_ok());
            assert!(bench.tick());
            bench.driver().nmi_does.store(does, Relaxed);
            bench.driver().nmi.store(IN_SNAPSHOT, Relaxed);
            assert!(is_newest(&bench.sample(512)?, 0, 1000));
            assert_eq!(bench.is_open(), does != STOPS);
            bench.tick();
            bench.del();
            assert_eq!(bench.head(), 1000);
            assert!(bench.violation().is_none());
        }
        Ok(())
    }
}
