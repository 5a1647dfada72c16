// SPDX-License-Identifier: GPL-2.0

//! Tests of the per-CPU state with a model of perf that does all that perf may do.

use super::{
    model::Model,
    Bench,
    Record, //
};
use crate::{
    aux::{
        cpu::{
            CpuState,
            Failure, //
        },
        Next,
        Transaction, //
    },
    registration::CpuInfo, //
};
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};

mod probe;

use probe::*;

#[kunit_tests(rust_perf_aux_cpu)]
mod cases {
    use super::*;

    #[test]
    fn commits_at_wakeup_points() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        for _ in 0..100 {
            assert!(bench.ticks());
            bench.read()?;
        }
        bench.del();

        assert!(bench.is_sound());
        assert!(bench.is_gapless());
        assert_eq!(bench.head(), 100 * 1024);
        assert_eq!(bench.records().len(), 50);
        Ok(())
    }

    #[test]
    fn nmi_stop_ends_the_session_wherever_it_breaks_in() -> Result {
        for place in [IN_START, IN_TICK, IN_QUIESCE] {
            let mut bench = bench(false)?;

            bench.driver().nmi.store(place, Relaxed);
            assert!(bench.add().is_ok());
            bench.tick();
            if place == IN_QUIESCE {
                bench.stop();
            }

            // Nothing is open, so perf may free the ring.
            assert!(!bench.is_open());
            assert!(!bench.ticks());
            assert!(bench.is_sound());

            // The event continues after the throttling.
            assert!(bench.start());
            assert!(bench.ticks());
            bench.del();
            assert!(bench.is_sound());
            assert!(bench.is_gapless());
        }
        Ok(())
    }

    #[test]
    fn full_ring_truncates_once_and_waits() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        for _ in 0..20 {
            bench.tick();
        }

        // The last byte of a ring is never given out: seven steps fit, the eighth does not.
        assert_eq!(bench.head(), 7 * 1024);
        assert!(bench.records().last().is_some_and(|r| r.flags == TRUNCATED));
        assert!(bench.is_disabled());
        assert!(bench.is_sound());

        // Until the reader has made space, no transaction may begin.
        assert!(!bench.ticks());
        assert!(bench.is_sound());

        bench.read()?;
        assert!(bench.ticks());
        bench.del();
        assert!(bench.is_sound());
        assert!(bench.is_gapless());
        Ok(())
    }

    #[test]
    fn no_space_at_add_leaves_the_event_stopped_but_there() -> Result {
        let mut bench = bench(false)?;

        bench.ring_mut().set_head(RING - 1);
        assert!(bench.add().is_ok());
        assert!(bench.is_disabled());
        assert_eq!(bench.driver().started.load(Relaxed), 0);
        assert!(!bench.ticks());
        bench.read()?;
        assert!(bench.ticks());
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn unmapping_stops_and_frees() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        assert!(bench.ticks());
        bench.unmap();
        assert!(bench.is_sound());
        assert_eq!(bench.driver().freed.load(Relaxed), 1);

        // perf may start the event before the ring is mapped again, and after.
        assert!(!bench.start());
        bench.map()?;
        assert!(bench.start());
        assert!(bench.ticks());
        bench.del();

        // The head continues from where it was.
        assert_eq!(bench.head(), 2 * 1024);
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn foreign_aux_priv_is_not_touched() -> Result {
        let mut bench = bench(false)?;
        let mut foreign = KBox::new([0xffu8; 64], GFP_KERNEL)?;
        let foreign = ptr::from_mut(&mut *foreign).cast();
        let ours = bench.ring_mut().replace_private(foreign);

        assert!(bench.add().is_err());
        assert_eq!(bench.driver().started.load(Relaxed), 0);
        assert!(!bench.is_open());
        assert!(bench.records().is_empty());

        bench.ring_mut().replace_private(ours);
        assert!(bench.add().is_ok());
        assert!(bench.is_sound());
        Ok(())
    }

    /// Events of two CPUs that write to one AUX area: perf would warn of the second. The second
    /// state stands for that of another CPU.
    #[test]
    fn area_is_written_by_one_cpu_at_a_time() -> Result {
        let mut bench = bench(false)?;
        let driver = NonNull::from(bench.driver());
        let info = CpuInfo {
            id: bench.id,
            itrace: false,
            filters: false,
        };
        // SAFETY: The driver lives as long as the bench, which is dropped after the state.
        let state = unsafe { CpuState::<Probe, Model>::new(bench.cpu(), driver, info) };
        let state = KBox::pin_init(state, GFP_KERNEL)?;
        let add = |bench: &mut Bench<Probe>| {
            let event = bench.event();

            // SAFETY: The event lives to the end of the case; it is deleted before.
            bench.on_cpu(|_, cpu| unsafe { state.as_ref().add(event, true, cpu) })
        };

        bench.on_cpu(|_, cpu| state.as_ref().set_online(true, cpu));
        assert!(bench.add().is_ok());
        assert!(bench.ticks());
        assert!(add(&mut bench) == Some(Err(Failure::InUse)));
        // Nothing was begun, and the transaction of the first goes on.
        assert!(bench.is_open());
        assert!(bench.is_sound());
        assert_eq!(bench.driver().started.load(Relaxed), 1);
        assert_eq!(state.stats.begin_in_use.get(), 1);

        // When the first has ended its transaction, the second may begin one.
        bench.del();
        assert!(matches!(add(&mut bench), Some(Ok(()))));
        assert_eq!(bench.driver().started.load(Relaxed), 2);
        bench.on_cpu(|bench, cpu| state.as_ref().del(bench.event(), cpu));
        assert!(bench.add().is_ok());
        Ok(())
    }

    #[test]
    fn second_event_is_refused_before_it_begins() -> Result {
        let mut bench = bench(false)?;
        let other = super::bench(false)?;
        let event = other.event();

        assert!(bench.add().is_ok());
        let added = bench.on_cpu(|bench, cpu| {
            // An event that does not own the unit can neither stop nor delete the one that does.
            bench.state.as_ref().stop(event, cpu);
            bench.state.as_ref().del(event, cpu);
            // SAFETY: The event lives to the end of the case; it is not added.
            unsafe { bench.state.as_ref().add(event, true, cpu) }
        });
        assert!(added == Some(Err(Failure::Busy)));

        assert!(bench.ticks());
        bench.stop();
        bench.on_cpu(|bench, cpu| bench.state.as_ref().start(event, cpu));
        assert!(!bench.is_open());
        assert!(bench.is_sound() && other.is_sound());
        Ok(())
    }

    #[test]
    fn start_that_is_refused_leaves_nothing_open() -> Result {
        let mut bench = bench(false)?;

        bench.driver().refuse.store(true, Relaxed);
        assert!(bench.add().is_err());
        assert!(!bench.is_open());
        bench.driver().refuse.store(false, Relaxed);
        assert!(bench.add().is_ok());
        assert!(bench.ticks());
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn stop_and_start_with_any_flags_do_not_nest() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        for _ in 0..3 {
            assert!(!bench.start());
            assert!(bench.ticks());
            bench.stop();
            bench.stop();
            assert!(bench.start());
            bench.read()?;
        }
        bench.del();
        bench.stop();
        assert!(!bench.start());
        assert!(bench.is_sound());
        assert!(bench.is_gapless());
        Ok(())
    }

    /// `event->hw.state`, which perf reads when it throttles.
    #[test]
    fn state_tells_whether_it_runs() -> Result {
        let mut bench = bench(false)?;
        let event = bench.event();
        // SAFETY: The event of the bench, which lives to the end of the case.
        let stopped = || unsafe { (*event.as_ptr()).hw.state } != 0;

        let added = bench.on_cpu(|bench, cpu| {
            // SAFETY: The event lives until the bench is dropped, which deletes it.
            unsafe { bench.state.as_ref().add(event, false, cpu) }
        });
        assert!(added == Some(Ok(())) && stopped() && !bench.is_open());
        assert!(bench.start() && !stopped());
        bench.stop();
        assert!(stopped());
        assert!(bench.start() && !stopped());
        bench.del();
        assert!(stopped());
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn claim_of_more_than_the_space_is_cut() -> Result {
        // The driver writes 1024 bytes, and may claim all of the ring but a byte.
        let fits = RING - 1 - 1024;

        for (lie, flags) in [(fits, 0), (fits + 1, PARTIAL), (u64::MAX / 2, PARTIAL)] {
            let mut bench = bench(false)?;

            bench.driver().lie.store(lie, Relaxed);
            assert!(bench.add().is_ok());
            assert!(bench.ticks());
            bench.del();

            let record = Record {
                offset: 0,
                size: RING - 1,
                flags,
            };
            assert!(bench.records() == [record]);
            assert!(bench.is_sound());
        }
        Ok(())
    }

    #[test]
    fn overwrite_head_is_monotonic_and_never_truncates() -> Result {
        let mut bench = bench(true)?;

        bench.driver().step.store(3000, Relaxed);
        assert!(bench.add().is_ok());
        for _ in 0..10 {
            assert!(bench.ticks());
        }
        // Longer than the ring: the driver reports that there is no space. In overwrite mode that
        // is a gap.
        bench.driver().step.store(9000, Relaxed);
        assert!(bench.ticks());
        bench.del();

        assert_eq!(bench.head(), 30000);
        assert!(bench.records().iter().all(|r| r.flags & OVERWRITE != 0));
        assert!(bench.records().iter().any(|r| r.flags & PARTIAL != 0));
        assert!(!bench.is_disabled());
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn pause_comes_at_any_time() -> Result {
        let mut bench = bench(false)?;

        // Before add: it starts paused.
        bench.pause()?;
        assert!(bench.add().is_ok());
        assert!(bench.ticks());
        assert_eq!(bench.driver().gated.load(Relaxed), 0);
        bench.resume()?;
        assert!(bench.ticks());
        // A second resume does not reach the driver.
        bench.resume()?;
        assert_eq!(bench.driver().gated.load(Relaxed), 1);
        bench.pause()?;
        assert!(bench.ticks());

        // While the event is stopped, and after del: the driver is not called.
        bench.stop();
        bench.resume()?;
        assert!(bench.start());
        assert!(bench.ticks());
        bench.del();
        bench.pause()?;
        bench.resume()?;

        // The second step reached the wakeup point: one more transaction, and one more resume.
        assert_eq!(bench.head(), 2 * 1024);
        assert_eq!(bench.driver().gated.load(Relaxed), 4);
        assert!(bench.is_sound());
        assert!(bench.is_gapless());
        Ok(())
    }

    #[test]
    fn nmi_pause_is_followed_on_the_way_out() -> Result {
        let mut bench = bench(false)?;

        bench.driver().nmi.store(IN_TICK, Relaxed);
        bench.driver().nmi_pauses.store(true, Relaxed);
        assert!(bench.add().is_ok());
        // The tick that the NMI interrupts still writes.
        assert!(bench.ticks());
        assert!(bench.ticks());
        assert!(!bench.driver().open.load(Relaxed));
        bench.del();

        assert_eq!(bench.head(), 1024);
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn cpu_that_goes_ends_the_session_and_begins_none() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        assert!(bench.ticks());
        bench.set_online(false)?;
        assert!(!bench.is_open());
        assert!(!bench.ticks());

        // perf has not taken the event off the CPU yet: it may stop, start and schedule it.
        bench.stop();
        assert!(!bench.start());
        bench.del();
        assert!(bench.add().is_err());

        bench.set_online(true)?;
        assert!(bench.add().is_ok());
        assert!(bench.ticks());
        assert!(bench.is_sound());
        assert_eq!(bench.state.stats.begin_offline.get(), 2);
        Ok(())
    }

    /// Writes `len` bytes, and requests a flush.
    fn write_and_commit(
        transaction: &mut Transaction<'_, Probe>,
        len: usize,
        full: &mut bool,
    ) -> Next {
        match transaction.region().reserve(len) {
            Ok(mut writer) => {
                for _ in 0..len {
                    // Cannot fail: this much was reserved.
                    let _ = writer.put(&[0x55]);
                }
                writer.commit();
            }
            Err(_) => *full = true,
        }
        Next::Flush
    }

    #[test]
    fn others_than_perf_work_in_the_session() -> Result {
        let mut bench = bench(false)?;

        // No transaction is open.
        assert!(bench.with_transaction(|_, _| (Next::Flush, ())).is_none());
        assert!(bench.add().is_ok());

        for round in 1..=10 {
            let head = bench.with_transaction(|transaction, full| {
                let head = transaction.region().head().get();
                (write_and_commit(transaction, 512, full), head)
            });

            assert_eq!(head, Some((round - 1) * 512));
            assert_eq!(bench.head(), round * 512);
            // The next transaction begins at once.
            assert!(bench.is_open());
            assert!(bench.is_sound());
            bench.read()?;
        }

        // Without a flush nothing is committed.
        assert!(bench
            .with_transaction(|_, _| (Next::Continue, ()))
            .is_some());
        assert_eq!(bench.records().len(), 10);
        // The driver's own timer continues.
        assert!(bench.ticks());

        bench.del();
        assert!(bench.with_transaction(|_, _| (Next::Flush, ())).is_none());
        assert!(bench.is_sound());
        assert!(bench.is_gapless());
        Ok(())
    }

    #[test]
    fn others_than_perf_find_no_space() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        let wrote = |bench: &mut Bench<Probe>| {
            bench.with_transaction(|transaction, full| {
                (write_and_commit(transaction, 4096, full), ())
            })
        };
        assert!(wrote(&mut bench).is_some());
        assert!(wrote(&mut bench).is_some());
        assert!(bench.records().last().is_some_and(|r| r.flags == TRUNCATED));
        assert!(bench.is_disabled());

        // Until the reader has made space, no transaction may begin.
        assert!(wrote(&mut bench).is_none());
        assert!(bench.is_sound());

        bench.read()?;
        assert!(wrote(&mut bench).is_some());
        bench.del();
        assert!(bench.is_sound());
        assert!(bench.is_gapless());
        Ok(())
    }

    #[test]
    fn others_than_perf_do_not_break_into_a_session() -> Result {
        let mut bench = bench(false)?;
        let state = ptr::from_ref(&*bench.state);

        assert!(bench.add().is_ok());
        let inner = bench.with_transaction(|transaction, _| {
            // SAFETY: The bench's state, pinned, to which only shared references are made
            // meanwhile.
            let state = unsafe { Pin::new_unchecked(&*state) };
            let inner = state.with_transaction(transaction.cpu(), |_, _| (Next::Flush, ()));

            (Next::Continue, inner.is_some())
        });

        assert_eq!(inner, Some(false));
        assert!(bench.is_open());
        assert!(bench.is_sound());

        // The stop of an NMI is processed when the callback returns.
        let event = bench.event();
        let stopped = bench.with_transaction(|transaction, _| {
            // SAFETY: The bench's state, pinned, to which only shared references are made
            // meanwhile.
            unsafe { Pin::new_unchecked(&*state) }.stop(event, transaction.cpu());
            (Next::Flush, ())
        });
        assert!(stopped.is_some());
        assert!(!bench.is_open());
        assert!(bench.is_sound());
        Ok(())
    }

    #[test]
    fn what_is_deferred_is_called_once() -> Result {
        let mut bench = bench(false)?;
        let deferred = |bench: &Bench<Probe>| bench.driver().deferred.load(Relaxed);

        assert!(bench.add().is_ok());
        bench.stop();
        assert_eq!(deferred(&bench), 0);

        // Also from a callback that an NMI interrupts.
        bench.driver().defers.store(true, Relaxed);
        bench.driver().nmi.store(IN_TICK, Relaxed);
        assert!(bench.start());
        bench.tick();
        assert!(!bench.is_open());
        assert_eq!(deferred(&bench), 1);
        bench.del();
        assert_eq!(deferred(&bench), 1);
        Ok(())
    }

    #[test]
    fn counters_tell_what_happened() -> Result {
        let mut bench = bench(false)?;

        assert!(bench.add().is_ok());
        for _ in 0..20 {
            bench.tick();
        }
        bench.del();
        bench.ring_mut().begin_unmap();
        assert!(bench.add().is_err());

        let stats = &bench.state.stats;
        assert_eq!(stats.bytes.get(), bench.head());
        assert_eq!(stats.begins.get(), stats.commits.get());
        assert_eq!(stats.truncated.get(), 1);
        assert_eq!(stats.lost_unknown.get(), 1);
        assert_eq!(stats.begin_not_mapped.get(), 1);
        Ok(())
    }
}
