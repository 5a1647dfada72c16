// SPDX-License-Identifier: GPL-2.0

//! Tests of each sink: what it writes, and when it commits.

use super::{
    open,
    records,
    Seen,
    Terms,
    BUFFER,
    DIRECT,
    FLAT,
    OVERWRITE,
    PAGE,
    PARTIAL,
    SG,
    TERMS,
    TRUNCATED, //
};
use kernel::prelude::*;
use pattern_codec::{
    Piece,
    Reader, //
};
use perf::{
    aux::Mode,
    testing::Setup, //
};

#[kunit_tests(pattern_sinks)]
mod cases {
    use super::*;

    /// perf's positions are rounded to page ends, and no reader frees space.
    #[test]
    fn direct_stops_at_the_last_page() -> Result {
        let mut bench = TERMS.bench(16)?;

        bench.add()?;
        for _ in 0..20 {
            bench.tick();
        }
        assert!(bench.is_disabled());
        assert!(
            *records(&bench)?
                == [
                    // The wakeup position.
                    (0, 8 * PAGE, 0),
                    // One page before the stop, which is a page early: perf keeps a byte free.
                    (8 * PAGE, 6 * PAGE, 0),
                    (14 * PAGE, PAGE, 0),
                    (15 * PAGE, 0, TRUNCATED),
                ]
        );
        assert_eq!(bench.counter(), 16 * 4096);
        assert_eq!(bench.lost(), PAGE);
        Ok(())
    }

    #[test]
    fn sg_is_copied_when_half_full() -> Result {
        let terms = Terms {
            sink: SG,
            bounce: 4,
            ..TERMS
        };
        let mut bench = terms.bench(16)?;

        bench.add()?;
        for _ in 0..20 {
            bench.tick();
        }
        // Two pages at a time, and at last the packets that fit into the space: a byte stays free.
        let full = records(&bench)?;
        assert_eq!(full.len(), 8);
        assert!(full
            .iter()
            .take(7)
            .eq(&[0, 2, 4, 6, 8, 10, 12].map(|n| (n * PAGE, 2 * PAGE, 0))));
        assert!(full.last() == Some(&(14 * PAGE, 2 * PAGE - 64, TRUNCATED)));
        assert_eq!(bench.lost(), 64);
        Ok(())
    }

    /// A burst is larger than the bounce memory. The loss is no lack of space in the AUX area.
    #[test]
    fn sg_overflows_inside() -> Result {
        let terms = Terms {
            sink: SG,
            bounce: 1,
            burst: 100,
            ..TERMS
        };
        let mut bench = terms.bench(16)?;

        bench.add()?;
        bench.tick();
        bench.tick();
        bench.del();
        assert!(*records(&bench)? == [(0, PAGE, PARTIAL), (PAGE, PAGE, PARTIAL)]);
        assert_eq!(bench.lost(), 2 * 36 * 64);
        Ok(())
    }

    #[test]
    fn flat_keeps_the_newest() -> Result {
        let terms = Terms {
            sink: BUFFER,
            bounce: 1,
            ..TERMS
        };
        let mut bench = terms.bench(16)?;
        let mut seen = Seen::new();

        bench.add()?;
        for _ in 0..8 {
            bench.tick();
        }
        // The driver copies at the wakeup position: the unit has overwritten seven laps by then.
        assert!(*records(&bench)? == [(0, PAGE + 64, PARTIAL | FLAT)]);
        seen.read(&bench.read()?)?;
        assert_eq!(seen.barriers, 1);
        assert_eq!(seen.gaps, 7 * PAGE);

        // Nothing was lost since, so there is no barrier.
        bench.tick();
        bench.del();
        assert!(records(&bench)?.last() == Some(&(PAGE + 64, PAGE, FLAT)));
        seen.read(&bench.read()?)?;
        assert_eq!(seen.barriers, 1);
        assert!(seen.adds_up(&bench));
        Ok(())
    }

    /// A full AUX area gets the newest packets that fit, after a barrier. If not even the barrier
    /// fits, it precedes the next packets.
    #[test]
    fn flat_is_capped_by_the_ring() -> Result {
        let terms = Terms {
            sink: BUFFER,
            burst: 16,
            ..TERMS
        };
        let mut bench = open(&Setup {
            watermark: 4 * PAGE,
            ..terms.setup(4)
        })?;
        let mut seen = Seen::new();

        bench.add()?;
        for _ in 0..16 {
            bench.tick();
        }
        // 256 packets: 254 and the barrier fit.
        assert!(*records(&bench)? == [(0, 4 * PAGE - 64, TRUNCATED | FLAT)]);
        assert_eq!(bench.lost(), 2 * 64);
        seen.read(&bench.read()?)?;
        assert_eq!((seen.barriers, seen.gaps), (1, 2 * 64));

        // The tail leaves no space for a barrier, so the barrier precedes the next packets.
        bench.stop();
        bench.set_tail(bench.head().wrapping_sub(4 * PAGE - 32));
        bench.start();
        bench.tick();
        bench.stop();
        assert!(records(&bench)?.last() == Some(&(4 * PAGE - 64, 0, TRUNCATED | FLAT)));
        bench.set_tail(bench.head());
        bench.read()?;
        bench.tick();
        bench.del();
        seen.read(&bench.read()?)?;
        assert_eq!((seen.barriers, seen.gaps), (2, 2 * 64 + 16 * 64));
        assert!(seen.adds_up(&bench));
        Ok(())
    }

    /// The newest trace survives, and the head includes the number of wraps.
    #[test]
    fn overwrite_mode_has_the_newest() -> Result {
        for (sink, len) in [
            (DIRECT, 100 * PAGE),
            (SG, 100 * PAGE),
            (BUFFER, 4 * PAGE + 64),
        ] {
            let terms = Terms { sink, ..TERMS };
            let mut bench = open(&Setup {
                mode: Mode::Overwrite,
                ..terms.setup(4)
            })?;
            let flags = match sink {
                // The unit has overwritten unread bytes of its buffer.
                BUFFER => OVERWRITE | PARTIAL | FLAT,
                _ => OVERWRITE,
            };

            bench.add()?;
            for _ in 0..100 {
                bench.tick();
            }
            bench.del();
            assert!(*records(&bench)? == [(len, len, flags)]);
            assert_eq!(bench.head(), len);

            let bytes = bench.read()?;
            let mut next = 100 * PAGE - 4 * PAGE;
            for piece in Reader::new(&bytes) {
                let Piece::Packet(header, _) = piece else {
                    return Err(EBADMSG);
                };
                assert_eq!(header.pos, next);
                next += u64::from(header.len);
            }
            assert_eq!(next, 100 * PAGE);
        }
        Ok(())
    }
}
