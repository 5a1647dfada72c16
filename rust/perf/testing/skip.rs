// SPDX-License-Identifier: GPL-2.0

//! Tests of padding, with a model of perf that records what the reader could see: see
//! [`Transaction::skip`].

use crate::{
    aux::{
        AuxPmu,
        Commit,
        Full,
        Loss,
        Mode,
        Next,
        Pages,
        Transaction,
        Writer, //
    },
    event::{
        Attr,
        Event, //
    },
    pmu::Pmu,
    testing::{
        Bench,
        Setup, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};

const PAD: u8 = 0x55;
const TRACE: u8 = 0xaa;

/// A driver whose unit can begin only at aligned positions.
struct Aligned {
    /// The alignment: a power of two.
    align: u64,
    /// How much more, or less, `pad` writes than it should.
    more: Atomic<isize>,
    /// Bytes for each tick; as many as fit if 0.
    step: Atomic<usize>,
    /// Bytes that each tick skips: before it writes, and after.
    before: Atomic<usize>,
    after: Atomic<usize>,
    /// The result of the last skip: an errno.
    answer: Atomic<i32>,
}

fn write(writer: &mut Writer<'_>, byte: u8, len: usize) -> Result<(), Full> {
    (0..len).try_for_each(|_| writer.put(&[byte]))
}

impl Aligned {
    fn skip(&self, transaction: &mut Transaction<'_, Self>, len: usize) {
        let pad = len.saturating_add_signed(self.more.load(Relaxed));
        let skipped = transaction.skip(len, |writer| write(writer, PAD, pad));

        self.answer
            .store(skipped.map_or_else(Error::to_errno, |()| 0), Relaxed);
    }
}

#[vtable]
impl Pmu for Aligned {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Aligned {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &Pages) -> Result {
        Ok(())
    }

    fn start(&self, transaction: &mut Transaction<'_, Self>) -> Result {
        let over = transaction.region().head().get() & self.align.wrapping_sub(1);

        if over != 0 {
            self.skip(transaction, usize::try_from(self.align.wrapping_sub(over))?);
        }
        transaction.set_timer(Delta::from_millis(1));
        Ok(())
    }

    fn tick(&self, transaction: &mut Transaction<'_, Self>, _run: &mut ()) -> Next {
        let space = transaction.region().space().unwrap_or(0);
        let step = match self.step.load(Relaxed) {
            0 => usize::try_from(space).unwrap_or(0),
            step => step,
        };

        let before = self.before.load(Relaxed);
        if before != 0 {
            self.skip(transaction, before);
        }
        if let Ok(mut writer) = transaction.region().reserve(step) {
            // Cannot fail: this much was reserved.
            let _ = write(&mut writer, TRACE, step);
            writer.commit();
        }
        let after = self.after.load(Relaxed);
        if after != 0 {
            self.skip(transaction, after);
        }

        if transaction.region().wakeup_due() {
            Next::Flush
        } else {
            Next::Continue
        }
    }

    fn quiesce(&self, transaction: &mut Transaction<'_, Self>, _run: ()) -> Commit {
        Commit::written(transaction, Loss::None)
    }
}

const RING: u64 = 4 * 4096;

fn bench(align: u64, mode: Mode) -> Result<Bench<Aligned>> {
    let driver = Aligned {
        align,
        more: Atomic::new(0),
        step: Atomic::new(100),
        before: Atomic::new(0),
        after: Atomic::new(0),
        answer: Atomic::new(1),
    };
    let setup = Setup {
        pages: 4,
        watermark: RING / 4,
        mode,
        ..Setup::default()
    };

    Bench::new(driver, &setup)
}

impl Bench<Aligned> {
    fn answer(&self) -> i32 {
        self.driver().answer.load(Relaxed)
    }

    /// Whether records and padding together report all bytes from `from` to the head, once each,
    /// and all padding was written before the record that reports it.
    fn is_gapless(&self, from: u64) -> bool {
        let mut at = from;
        let mut records = self.records().iter().peekable();
        let mut paddings = self.paddings().peekable();

        while at != self.head() {
            if let Some(record) = records.next_if(|record| record.offset == at) {
                at = at.wrapping_add(record.size);
            } else if let Some(padding) = paddings.next_if(|padding| padding.offset == at) {
                let len = u64::try_from(padding.bytes.len()).unwrap_or(0);

                if len == 0 || padding.bytes.iter().any(|byte| *byte != PAD) {
                    return false;
                }
                at = at.wrapping_add(len);
            } else {
                return false;
            }
        }
        records.next().is_none() && paddings.next().is_none()
    }
}

#[kunit_tests(rust_perf_aux_skip)]
mod cases {
    use super::*;

    #[test]
    fn each_session_begins_aligned() -> Result {
        let mut bench = bench(64, Mode::Normal)?;

        // More bytes than the ring has, so that it wraps.
        for _ in 0..200 {
            bench.add()?;
            assert!(bench.tick());
            bench.del();
            bench.read()?;
        }

        assert!(bench.violation().is_none());
        assert!(bench.records().iter().all(|record| record.offset % 64 == 0));
        assert_eq!(bench.records().len(), 200);
        assert_eq!(bench.paddings().len(), 199);
        assert!(bench.is_gapless(0));
        Ok(())
    }

    #[test]
    fn padding_crosses_the_end_of_the_ring() -> Result {
        let mut bench = bench(1, Mode::Normal)?;
        let head = 3 * RING - 7;

        bench.ring_mut().set_head(head);
        bench.set_tail(head);
        bench.driver().before.store(5000, Relaxed);
        bench.add()?;
        assert!(bench.tick());
        bench.del();

        assert_eq!(bench.answer(), 0);
        assert_eq!(bench.paddings().len(), 1);
        assert_eq!(bench.head(), head + 5000 + 100);
        assert!(bench.violation().is_none());
        assert!(bench.is_gapless(head));
        Ok(())
    }

    /// The region has less space after a skip, as perf's handle says.
    #[test]
    fn space_shrinks_by_what_was_skipped() -> Result {
        let mut bench = bench(64, Mode::Normal)?;

        bench.ring_mut().set_head(1);
        bench.driver().step.store(0, Relaxed);
        bench.add()?;
        assert!(bench.tick());
        bench.del();

        // One byte was written before, one stays free.
        assert!(bench.violation().is_none());
        assert_eq!(bench.head(), RING - 1);
        assert!(bench.is_gapless(1));
        Ok(())
    }

    /// Padding that passes the wakeup point wakes the reader, and the region gets the next wakeup
    /// point.
    #[test]
    fn wakeup_point_moves_on() -> Result {
        let mut bench = bench(64, Mode::Normal)?;

        bench.ring_mut().set_head(RING / 4 - 10);
        bench.set_tail(RING / 4 - 10);
        bench.add()?;
        assert_eq!(bench.head(), RING / 4);
        for ticks in 1..=41 {
            assert!(bench.tick());
            // The next wakeup point is 4096 bytes later: not before 41 steps of 100.
            assert_eq!(bench.records().len(), usize::from(ticks == 41));
        }
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn skips_while_nothing_is_written() -> Result {
        let mut bench = bench(1, Mode::Normal)?;

        // Two ticks skip. They write nothing, since the step does not fit.
        bench.driver().before.store(10, Relaxed);
        bench.driver().step.store(4 * 4096, Relaxed);
        bench.add()?;
        assert!(bench.tick());
        assert!(bench.tick());
        assert_eq!(bench.answer(), 0);
        bench.driver().before.store(0, Relaxed);
        bench.driver().step.store(100, Relaxed);
        assert!(bench.tick());
        bench.del();

        assert_eq!(bench.head(), 2 * 10 + 100);
        assert!(bench.violation().is_none());
        assert!(bench.is_gapless(0));
        Ok(())
    }

    #[test]
    fn refused_after_the_first_byte() -> Result {
        let mut bench = bench(1, Mode::Normal)?;

        bench.driver().after.store(10, Relaxed);
        bench.add()?;
        assert!(bench.tick());
        assert_eq!(bench.answer(), EBUSY.to_errno());
        assert_eq!(bench.head(), 0);
        bench.del();

        assert_eq!(bench.head(), 100);
        assert_eq!(bench.paddings().len(), 0);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn refused_in_overwrite_mode() -> Result {
        let mut bench = bench(64, Mode::Overwrite)?;

        bench.ring_mut().set_head(1);
        bench.add()?;
        assert_eq!(bench.answer(), EOPNOTSUPP.to_errno());
        assert!(bench.tick());
        bench.del();

        assert_eq!(bench.head(), 101);
        assert_eq!(bench.paddings().len(), 0);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn refused_without_the_space() -> Result {
        let mut bench = bench(64, Mode::Normal)?;

        // 62 bytes are free.
        bench.ring_mut().set_head(RING + 1);
        bench.set_tail(64);
        bench.add()?;
        assert_eq!(bench.answer(), ENOSPC.to_errno());
        assert_eq!(bench.head(), RING + 1);

        // 63 bytes are free.
        bench.del();
        bench.set_tail(65);
        bench.add()?;
        assert_eq!(bench.answer(), 0);
        assert_eq!(bench.head(), RING + 64);
        bench.del();
        assert!(bench.violation().is_none());
        assert!(bench.is_gapless(RING + 1));
        Ok(())
    }

    #[test]
    fn refused_unless_padded_in_full() -> Result {
        for more in [-1, -10, 1] {
            let mut bench = bench(1, Mode::Normal)?;

            bench.driver().more.store(more, Relaxed);
            bench.driver().before.store(10, Relaxed);
            bench.add()?;
            assert!(bench.tick());
            assert_eq!(bench.answer(), EINVAL.to_errno());
            bench.del();

            // Trace goes where the padding would have been.
            assert_eq!(bench.head(), 100);
            assert_eq!(bench.byte(0), Some(TRACE));
            assert_eq!(bench.paddings().len(), 0);
            assert!(bench.violation().is_none());
        }
        Ok(())
    }
}
