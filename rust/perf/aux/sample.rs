// SPDX-License-Identifier: GPL-2.0

//! AUX samples: records of another event's that carry the newest trace.
//!
//! C counterpart: `pmu->snapshot_aux()` and `perf_output_copy_aux()`.

use super::{
    output::Handle,
    Published,
    Session, //
};
use crate::{
    bindings,
    pmu::Pmu, //
};
use auxcore::ring::Pos;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// Copies trace into a sample.
///
/// # Safety
///
/// - A transaction must be open on `handle`, begun on this CPU, with interrupts off.
/// - `record` must be what perf has passed to `pmu->snapshot_aux()`, which has not returned, with
///   room for what is copied: from one position up to the other, at least 1 byte and at most the
///   ring.
pub(super) type Copy = unsafe fn(
    handle: &mut Handle,
    record: NonNull<bindings::perf_output_handle>,
    from: Pos,
    to: Pos,
) -> c_long;

/// A sample of another event's that asks for the newest trace: see
/// [`Pmu::snapshot`].
///
/// # Invariants
///
/// - `record` is what perf has passed to `pmu->snapshot_aux()`, which does not return as long as
///   `Self` exists; it has room for `size` bytes.
/// - `copy` is that of what the transaction of the callback was begun with.
pub struct Sample<'a> {
    record: NonNull<bindings::perf_output_handle>,
    size: u64,
    copy: Copy,
    _callback: PhantomData<&'a mut bindings::perf_output_handle>,
}

impl Sample<'_> {
    /// # Safety
    ///
    /// - `record` and `size` must be what perf has passed to `pmu->snapshot_aux()`, which must not
    ///   return during the lifetime that the caller picks.
    /// - `copy` must be that of what the transaction was begun with that the callback runs in.
    #[cfg(any(perf_output_copy_aux, CONFIG_KUNIT = "y"))]
    pub(super) unsafe fn new(
        record: NonNull<bindings::perf_output_handle>,
        size: u64,
        copy: Copy,
    ) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            record,
            size,
            copy,
            _callback: PhantomData,
        }
    }

    /// How many bytes are asked for; never more than the ring.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies the newest trace: what ends where the unit has written `written` bytes of the
    /// session's window, in this mode or that. In linear mode it does not matter what of it the
    /// reader has read: trace stays where it is until the unit comes round.
    ///
    /// What is older than the ring's mapping is zeroes, as its pages were then.
    pub fn take<T: Pmu>(
        self,
        session: &mut Session<'_, T>,
        written: u64,
        _published: Published,
    ) -> Taken {
        // A driver that claims more than its window holds is given what that holds.
        let written = match session.window.space() {
            Some(space) => written.min(space),
            None => written,
        };
        let to = session.window.head().advance(written);
        let len = self.size.min(session.window.size().len());

        // perf would take an empty range for the whole ring.
        if len == 0 {
            return Taken(0);
        }
        // SAFETY:
        // - A transaction is open on the session's handle, begun on this CPU, as long as the
        //   session exists; interrupts are off by the invariant of `Cpu`.
        // - By the type invariants; `len` is at least 1 and at most the ring and the room.
        Taken(unsafe {
            (self.copy)(
                session.transaction.handle(),
                self.record,
                to.retreat(len),
                to,
            )
        })
    }

    /// As [`take`](Self::take), of what went through the window's [`Writer`](super::Writer)s.
    pub fn by_writer<T: Pmu>(self, session: &mut Session<'_, T>) -> Taken {
        let written = session.window.written();

        self.take(session, written, Published::cpu_stores())
    }

    /// Takes nothing: the unit cannot tell just now. The sample has zeroes.
    pub fn skip(self) -> Taken {
        Taken(0)
    }
}

/// What [`Pmu::snapshot`] hands back: that the [`Sample`] has been dealt with.
#[must_use]
#[cfg_attr(
    not(any(perf_output_copy_aux, CONFIG_KUNIT = "y")),
    expect(dead_code, reason = "perf asks for no samples without the export")
)]
pub struct Taken(c_long);

impl Taken {
    /// Bytes copied, as `pmu->snapshot_aux()` returns them.
    #[cfg(any(perf_output_copy_aux, CONFIG_KUNIT = "y"))]
    pub(super) fn get(self) -> c_long {
        self.0
    }
}

/// What samples can be made with.
#[cfg(any(perf_output_copy_aux, CONFIG_KUNIT = "y"))]
pub(crate) trait Sampling: super::output::Output {
    /// As [`Copy`] says.
    ///
    /// # Safety
    ///
    /// As for [`Copy`].
    unsafe fn copy(
        handle: &mut Handle,
        record: NonNull<bindings::perf_output_handle>,
        from: Pos,
        to: Pos,
    ) -> c_long;
}

/// Only where the kernel exports it: see `rust/Makefile`.
#[cfg(perf_output_copy_aux)]
impl Sampling for super::output::Perf {
    unsafe fn copy(
        handle: &mut Handle,
        record: NonNull<bindings::perf_output_handle>,
        from: Pos,
        to: Pos,
    ) -> c_long {
        use super::output::bytes;

        // SAFETY: By the safety requirement. It takes positions: what is over the ring's size is
        // masked off.
        unsafe {
            bindings::perf_output_copy_aux(
                &mut handle.0,
                record.as_ptr(),
                bytes(from.get()),
                bytes(to.get()),
            )
        }
    }
}

#[kunit_tests(rust_perf_aux_sample)]
mod tests {
    use super::{
        super::{
            bench::{
                Bench,
                Setup, //
            },
            fake::{
                Fake,
                Sampled, //
            },
            unit::{
                Shared,
                Unit, //
            },
            Full,
            Loss,
            Mode,
            Next,
            Pages,
            Written, //
        },
        *,
    };
    use crate::event::{
        Attr,
        Event, //
    };
    use core::ptr;
    use kernel::{
        sync::atomic::{
            Atomic,
            Relaxed, //
        },
        time::Delta,
    };

    /// Where an NMI breaks in.
    const NOWHERE: u32 = 0;
    const IN_START: u32 = 1;
    const IN_TICK: u32 = 2;
    const IN_QUIESCE: u32 = 3;
    const IN_SNAPSHOT: u32 = 4;

    /// What it does.
    const SAMPLES: u32 = 0;
    const STOPS: u32 = 1;
    const PAUSES: u32 = 2;

    /// What the unit writes at this position of the ring: never 0.
    fn byte_at(position: u64) -> u8 {
        let [byte, ..] = position.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();

        byte | 1
    }

    /// A unit whose bytes tell where they stand.
    struct Teller {
        /// Bytes for each tick.
        step: usize,
        /// All that it has written.
        told: Atomic<u64>,
        /// What `snapshot()` claims more than was written.
        lie: u64,
        refuses: bool,
        knows: bool,
        nmi: Atomic<u32>,
        nmi_does: Atomic<u32>,
        unit: Atomic<*mut Unit<Teller, Fake>>,
        shared: Atomic<*mut Shared<Teller>>,
        event: Atomic<*mut bindings::perf_event>,
        /// Bytes that samples from NMI got.
        nmi_copied: Atomic<i64>,
        /// Those samples.
        nmi_samples: Atomic<u32>,
    }

    impl Teller {
        fn new(step: usize) -> Self {
            Self {
                step,
                told: Atomic::new(0),
                lie: 0,
                refuses: false,
                knows: true,
                nmi: Atomic::new(NOWHERE),
                nmi_does: Atomic::new(SAMPLES),
                unit: Atomic::new(ptr::null_mut()),
                shared: Atomic::new(ptr::null_mut()),
                event: Atomic::new(ptr::null_mut()),
                nmi_copied: Atomic::new(0),
                nmi_samples: Atomic::new(0),
            }
        }

        fn nmi_in(&self, place: u32, session: &Session<'_, Self>) {
            if self.nmi.cmpxchg(place, NOWHERE, Relaxed).is_err() {
                return;
            }

            let (unit, shared) = (self.unit.load(Relaxed), self.shared.load(Relaxed));
            // SAFETY: Set by the test to its bench's, and only shared references are made of it.
            let unit = unsafe { unit.as_ref() };
            // SAFETY: As above.
            let shared = unsafe { shared.as_ref() };
            let (Some(unit), Some(shared), Some(event)) =
                (unit, shared, NonNull::new(self.event.load(Relaxed)))
            else {
                return;
            };

            match self.nmi_does.load(Relaxed) {
                STOPS => unit.stop(event, session.cpu),
                PAUSES => {
                    // SAFETY: The test's event, which it does not look at meanwhile.
                    unsafe { bindings::rust_perf_set_aux_paused(event.as_ptr(), true) };
                    unit.follow_pause(event, session.cpu);
                }
                _ => {
                    let mut room = [0; 64];
                    let mut sampled = Sampled::new(&mut room);
                    let record = sampled.as_record();

                    // SAFETY: In what stands for `snapshot_aux()` of an event of `shared`.
                    let copied = unsafe { unit.snapshot(shared, event, record, 64, session.cpu) };
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
        type Buffer = ();
        /// Whether it is paused.
        type Run = bool;

        fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
            Ok(())
        }

        fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &Pages) -> Result {
            Ok(())
        }

        fn start(&self, session: &mut Session<'_, Self>) -> Result<bool> {
            self.nmi_in(IN_START, session);
            if self.refuses {
                return Err(ENODEV);
            }
            session.set_timer(Delta::from_millis(1));
            Ok(true)
        }

        fn tick(&self, session: &mut Session<'_, Self>, paused: &mut bool) -> Next {
            self.nmi_in(IN_TICK, session);
            if *paused {
                return Next::Continue;
            }

            let mut at = session.window.head().advance(session.window.written());
            let mut write = || -> Result<(), Full> {
                let mut writer = session.window.reserve(self.step)?;
                for _ in 0..self.step {
                    writer.put(&[byte_at(at.get())])?;
                    at = at.advance(1);
                }
                writer.commit();
                Ok(())
            };

            if write().is_err() {
                return Next::Commit;
            }
            self.told
                .fetch_add(u64::try_from(self.step).unwrap_or(0), Relaxed);
            if session.window.wakeup_due() {
                Next::Commit
            } else {
                Next::Continue
            }
        }

        fn pause(&self, _session: &mut Session<'_, Self>, paused: &mut bool) {
            *paused = true;
        }

        fn resume(&self, _session: &mut Session<'_, Self>, paused: &mut bool) {
            *paused = false;
        }

        fn snapshot(
            &self,
            session: &mut Session<'_, Self>,
            _paused: &mut bool,
            sample: Sample<'_>,
        ) -> Taken {
            self.nmi_in(IN_SNAPSHOT, session);
            match (self.knows, self.lie) {
                (false, _) => sample.skip(),
                (true, 0) => sample.by_writer(session),
                (true, lie) => {
                    let written = session.window.written().wrapping_add(lie);
                    sample.take(session, written, Published::cpu_stores())
                }
            }
        }

        fn quiesce(&self, session: &mut Session<'_, Self>, _paused: bool) -> Written {
            self.nmi_in(IN_QUIESCE, session);
            Written::by_writer(session.window, Loss::None)
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
            .unit
            .store(ptr::from_ref(&*bench.unit).cast_mut(), Relaxed);
        driver
            .shared
            .store(ptr::from_ref(&*bench.shared).cast_mut(), Relaxed);
        Ok(bench)
    }

    /// Whether a sample holds the newest bytes, the last of which stands before `end`, of a ring that
    /// was mapped when its head was at `begin`.
    fn is_newest(sample: &[u8], begin: u64, end: u64) -> bool {
        let mut at = Pos::new(end).retreat(u64::try_from(sample.len()).unwrap_or(0));

        sample.iter().all(|&byte| {
            let is_trace = at.reached(Pos::new(begin));
            let expected = if is_trace { byte_at(at.get()) } else { 0 };

            at = at.advance(1);
            byte == expected
        })
    }

    /// Each sample, at every point of a ring that goes round, whatever the reader has read.
    #[test]
    fn samples_hold_the_newest_bytes() -> Result {
        let sizes = [8, 64, 1000, 4096, 4104, 8184, 8192, 100_000];
        let table = [
            (Mode::Linear, true, 0),
            (Mode::Linear, false, 0),
            (Mode::Linear, true, 5 * RING + 4090),
            (Mode::Linear, true, u64::MAX - 5000),
            (Mode::Overwrite, false, 0),
            (Mode::Overwrite, false, 5 * RING + 4090),
            (Mode::Overwrite, false, u64::MAX - 5000),
        ];

        for (mode, reads, begin) in table {
            // Neither the page nor the ring is a multiple of it.
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
                if !reads && mode == Mode::Linear && ticks == 8 {
                    // 8 steps fit. The trace that is there can still be sampled.
                    break;
                }
                assert!(bench.tick());
                end = Pos::new(begin).advance(bench.driver().told.load(Relaxed));
                if reads {
                    bench.read()?;
                }
            }

            // Nothing has come of it: neither a byte nor a record nor the end of a session.
            assert!(bench.is_open());
            bench.del();
            assert_eq!(bench.head(), end.get());
            assert!(end.distance_from(Pos::new(begin)) >= 8000);
            assert!(bench.complaint().is_none());
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

        assert_eq!(bench.shared.stats.samples.get(), 2);
        assert_eq!(bench.shared.stats.samples_missed.get(), 4);
        assert!(bench.complaint().is_none());
        Ok(())
    }

    /// Nor of another event's session.
    #[test]
    fn another_event_gets_nothing() -> Result {
        let mut bench = bench(Teller::new(1000), Mode::Overwrite)?;
        let other = super::tests::bench(Teller::new(1000), Mode::Overwrite)?;
        let event = other.event();
        let mut room = [0; 64];
        let mut sampled = Sampled::new(&mut room);

        assert!(bench.add().is_ok());
        assert!(bench.tick());
        let copied = bench.on_cpu(|bench, cpu| {
            let record = sampled.as_record();

            // SAFETY: In what stands for `snapshot_aux()`; both PMUs live to the end of the case.
            unsafe { bench.unit.snapshot(&other.shared, event, record, 64, cpu) }
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
            let mut bench = bench(driver, Mode::Linear)?;

            assert_eq!(bench.add().is_err(), refuses);
            bench.tick();
            assert!(bench.sample(64)?.iter().all(|&byte| byte == 0));
            assert_eq!(bench.shared.stats.samples_missed.get(), 1);
            assert!(bench.complaint().is_none());
        }
        Ok(())
    }

    /// A driver that claims more than there is room for is given what the window ends with.
    #[test]
    fn claim_of_more_than_the_space_is_cut() -> Result {
        for lie in [1, RING, u64::MAX / 2, u64::MAX - 2000] {
            let driver = Teller {
                lie,
                ..Teller::new(1000)
            };
            let mut bench = bench(driver, Mode::Linear)?;

            assert!(bench.add().is_ok());
            assert!(bench.tick());
            // One byte less than the ring, of which 1000 are written, and the one before the first.
            let sample = bench.sample(8192)?;
            let front = if lie == 1 { 8192 - 1001 } else { 1 };
            assert!(sample.iter().take(front).all(|&byte| byte == 0));
            let trace = sample.get(front..).and_then(|rest| rest.get(..1000));
            assert!(trace.is_some_and(|trace| is_newest(trace, 0, 1000)));
            assert!(bench.complaint().is_none());
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
        assert!(bench.complaint().is_none());
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
            assert_eq!(bench.shared.stats.samples_missed.get(), 1);
            assert!(bench.complaint().is_none());
        }
        Ok(())
    }

    /// The sample is whole, and the word is heeded before interrupts come on.
    #[test]
    fn nmi_that_breaks_into_a_sample_is_heeded() -> Result {
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
            assert!(bench.complaint().is_none());
        }
        Ok(())
    }
}
