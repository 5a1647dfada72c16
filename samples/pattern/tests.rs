// SPDX-License-Identifier: GPL-2.0
#![cfg(CONFIG_RUST_PERF_TESTING)]

//! Tests of `pattern`: configuration, faults, alignment and counting.
//! `pmu_kunit` explains how such tests are written.

mod seen;
mod sinks;

use super::Pattern;
use kernel::{
    prelude::*,
    sync::atomic::Atomic, //
};
use perf::{
    aux::Mode,
    testing::{
        Bench,
        Setup, //
    }, //
};
use seen::Seen;

const PAGE: u64 = 4096;
const TRUNCATED: u64 = 1;
const OVERWRITE: u64 = 2;
const PARTIAL: u64 = 4;
const COLLISION: u64 = 8;
/// Format of a flat sink's trace, in the flags of a record.
const FLAT: u64 = 0x100;

const DIRECT: u64 = 0;
const SG: u64 = 1;
const BUFFER: u64 = 2;

/// The terms of an event.
#[derive(Clone, Copy)]
struct Terms {
    burst: u64,
    packet: u64,
    sink: u64,
    dry: u64,
    fault: u64,
    align: u64,
    bounce: u64,
    nth: u64,
    min: u64,
    limit: u64,
}

/// One page per tick, in packets of 64 bytes.
const TERMS: Terms = Terms {
    burst: 64,
    packet: 1,
    sink: DIRECT,
    dry: 0,
    fault: 0,
    align: 0,
    bounce: 0,
    nth: 0,
    min: 0,
    limit: 0,
};

impl Terms {
    /// An event with these terms, and an AUX area of this many pages.
    fn setup(&self, pages: usize) -> Setup {
        Setup {
            config: [
                1024 | self.burst << 24 | self.packet << 40,
                self.sink
                    | self.dry << 2
                    | self.fault << 4
                    | self.align << 8
                    | self.bounce << 16
                    | self.nth << 32
                    | self.min << 48,
                self.limit,
                0,
            ],
            pages,
            ..Setup::default()
        }
    }

    fn bench(&self, pages: usize) -> Result<Bench<Pattern>> {
        open(&self.setup(pages))
    }
}

fn open(setup: &Setup) -> Result<Bench<Pattern>> {
    open_with(setup, false)
}

fn open_with(setup: &Setup, is_offset: bool) -> Result<Bench<Pattern>> {
    Bench::new(
        Pattern {
            streams: Atomic::new(0),
            is_offset,
        },
        setup,
    )
}

/// Offset, size and flags of each AUX record.
fn records(bench: &Bench<Pattern>) -> Result<KVec<(u64, u64, u64)>> {
    let mut records = KVec::new();

    for record in bench.records() {
        records.push((record.offset, record.size, record.flags), GFP_KERNEL)?;
    }
    Ok(records)
}

#[kunit_tests(pattern)]
mod cases {
    use super::*;

    #[test]
    fn only_what_makes_sense_is_accepted() {
        // Terms, pages of the AUX area, and the expected error.
        let table = [
            (TERMS, 2, None),
            (TERMS, 1, Some(EINVAL)),
            (Terms { sink: SG, ..TERMS }, 1, None),
            (
                Terms {
                    sink: BUFFER,
                    ..TERMS
                },
                1,
                None,
            ),
            (Terms { sink: 3, ..TERMS }, 16, Some(EINVAL)),
            (
                Terms {
                    packet: 64,
                    ..TERMS
                },
                2,
                None,
            ),
            (
                Terms {
                    packet: 65,
                    ..TERMS
                },
                2,
                Some(EINVAL),
            ),
            (Terms { min: 4, ..TERMS }, 4, None),
            (Terms { min: 5, ..TERMS }, 4, Some(EINVAL)),
            (Terms { align: 6, ..TERMS }, 16, Some(EINVAL)),
            (Terms { align: 15, ..TERMS }, 16, None),
            (Terms { align: 16, ..TERMS }, 16, Some(EINVAL)),
            (Terms { align: 17, ..TERMS }, 64, Some(EINVAL)),
            (Terms { bounce: 1, ..TERMS }, 16, Some(EINVAL)),
            (
                Terms {
                    bounce: 3,
                    sink: SG,
                    ..TERMS
                },
                16,
                Some(EINVAL),
            ),
            (
                Terms {
                    bounce: 1,
                    sink: SG,
                    packet: 33,
                    ..TERMS
                },
                16,
                Some(EINVAL),
            ),
            (
                Terms {
                    bounce: 2048,
                    sink: BUFFER,
                    ..TERMS
                },
                16,
                Some(EINVAL),
            ),
            (Terms { fault: 9, ..TERMS }, 16, Some(EINVAL)),
            (Terms { fault: 6, ..TERMS }, 16, Some(EIO)),
            (Terms { fault: 7, ..TERMS }, 16, Some(ENOMEM)),
            (
                Terms {
                    fault: 7,
                    sink: SG,
                    ..TERMS
                },
                16,
                Some(ENOMEM),
            ),
            (
                Terms {
                    fault: 7,
                    sink: BUFFER,
                    ..TERMS
                },
                16,
                Some(ENOMEM),
            ),
        ];

        for (terms, pages, error) in table {
            assert!(terms.bench(pages).err() == error);
        }
    }

    /// Each fault has its flag, and the commit follows at once.
    #[test]
    fn faults_have_their_flags() -> Result {
        for (sink, format) in [(DIRECT, 0), (SG, 0), (BUFFER, FLAT)] {
            for (fault, flag, kept) in [(3, PARTIAL, 0), (4, COLLISION, PAGE - 64)] {
                let terms = Terms {
                    sink,
                    fault,
                    nth: 2,
                    ..TERMS
                };
                let mut bench = terms.bench(16)?;

                bench.add()?;
                for _ in 0..4 {
                    bench.tick();
                }
                bench.del();
                let len = PAGE + kept;
                assert!(*records(&bench)? == [(0, len, flag | format), (len, len, flag | format)]);
                assert_eq!(bench.lost(), 2 * (PAGE - kept));
            }
        }
        Ok(())
    }

    #[test]
    fn interrupts_are_late_lost_or_pending() -> Result {
        // Fault, `nth`, and the pages at which records begin in 12 ticks, a restart, and 2 ticks.
        let table: [(u64, u64, &[u64]); 5] = [
            (0, 0, &[0, 8, 12]),
            (1, 0, &[0, 9, 12]),
            (1, 3, &[0, 11, 12]),
            (2, 0, &[0, 12]),
            // The driver takes the pending interrupt at the end of the first tick after the start.
            (5, 0, &[0, 12, 13]),
        ];

        for sink in [DIRECT, SG, BUFFER] {
            for (fault, nth, starts) in table {
                let terms = Terms {
                    sink,
                    fault,
                    nth,
                    bounce: if sink == DIRECT { 0 } else { 16 },
                    ..TERMS
                };
                let mut bench = terms.bench(16)?;

                bench.add()?;
                for _ in 0..12 {
                    bench.tick();
                }
                bench.stop();
                bench.start();
                bench.tick();
                bench.tick();
                bench.del();
                let seen = records(&bench)?;
                assert!(seen
                    .iter()
                    .map(|(offset, ..)| offset / PAGE)
                    .eq(starts.iter().copied()));
                assert_eq!(bench.lost(), 0);
            }
        }
        Ok(())
    }

    #[test]
    fn sessions_begin_where_they_must() -> Result {
        for sink in [DIRECT, SG, BUFFER] {
            let terms = Terms {
                sink,
                align: 12,
                burst: 3,
                packet: 2,
                ..TERMS
            };
            let mut bench = terms.bench(16)?;
            let mut seen = Seen::new();

            bench.add()?;
            for _ in 0..5 {
                bench.tick();
                bench.stop();
                bench.start();
            }
            assert!(bench
                .records()
                .iter()
                .all(|r| r.offset % PAGE == 0 && r.size == 384));
            assert_eq!(bench.paddings().len(), 5);
            for padding in bench.paddings() {
                let mut pads = Seen::new();
                pads.read(padding.bytes)?;
                assert_eq!(pads.overhead, PAGE - 384);
            }
            bench.del();
            seen.read(&bench.read()?)?;
            assert_eq!(seen.overhead, 5 * (PAGE - 384));
            assert!(seen.adds_up(&bench));
        }
        Ok(())
    }

    /// Without space for the padding, all generated bytes are lost and the record is truncated.
    #[test]
    fn no_space_for_padding_is_a_full_ring() -> Result {
        for sink in [DIRECT, SG, BUFFER] {
            let terms = Terms {
                sink,
                align: 13,
                burst: 1,
                ..TERMS
            };
            let mut bench = terms.bench(4)?;

            bench.add()?;
            bench.tick();
            bench.stop();
            bench.start();
            bench.tick();
            bench.stop();
            // The next multiple is the end of the area, of which perf keeps one byte free.
            bench.start();
            for _ in 0..300 {
                bench.tick();
            }
            bench.stop();
            assert!(bench.is_disabled());
            assert!(bench
                .records()
                .last()
                .is_some_and(|r| r.is_truncated() && r.size == 0));
            assert_eq!(bench.counter(), 128 + i64::try_from(bench.lost())?);
        }
        Ok(())
    }

    /// In overwrite mode, padding counts as written.
    #[test]
    fn overwrite_mode_is_padded_too() -> Result {
        for sink in [DIRECT, SG, BUFFER] {
            let terms = Terms {
                sink,
                align: 10,
                burst: 1,
                ..TERMS
            };
            let mut bench = open(&Setup {
                mode: Mode::Overwrite,
                ..terms.setup(4)
            })?;
            let mut seen = Seen::new();

            bench.add()?;
            bench.tick();
            bench.stop();
            bench.start();
            bench.tick();
            bench.del();
            assert_eq!(bench.head(), 1024 + 64);
            seen.read(&bench.read()?)?;
            assert_eq!(seen.overhead, 1024 - 64);
            assert!(seen.adds_up(&bench));
        }
        Ok(())
    }

    /// Like hardware that does not count its wraps, the driver can publish the head as an offset.
    /// The head stays within the area, and each record has the area's size.
    #[test]
    fn a_head_can_be_an_offset() -> Result {
        for (sink, format) in [(DIRECT, 0), (SG, 0), (BUFFER, FLAT)] {
            let setup = Setup {
                mode: Mode::Overwrite,
                ..Terms { sink, ..TERMS }.setup(4)
            };
            let mut bench = open_with(&setup, true)?;

            bench.add()?;
            bench.tick();
            bench.stop();
            bench.start();
            for _ in 0..3 {
                bench.tick();
            }
            bench.stop();
            bench.start();
            bench.tick();
            bench.stop();
            // A transaction in which the unit writes nothing.
            bench.start();
            bench.del();
            let all = [PAGE, 0, PAGE].map(|head| (head, 4 * PAGE, OVERWRITE | format));
            assert_eq!(&records(&bench)?[..], &all);
            assert_eq!(bench.head(), PAGE);
            assert!(bench.violation().is_none());

            // The parameter has no effect in non-overwrite mode.
            let mut bench = open_with(&Terms { sink, ..TERMS }.setup(8), true)?;
            bench.add()?;
            bench.tick();
            bench.del();
            assert_eq!(&records(&bench)?[..], &[(0, PAGE, format)]);
        }
        Ok(())
    }

    #[test]
    fn it_counts_without_a_ring() -> Result {
        let mut bench = TERMS.bench(4)?;
        let mut seen = Seen::new();

        bench.unmap();
        bench.add()?;
        bench.tick();
        bench.tick();
        assert_eq!(bench.counter(), 2 * 4096);
        assert!(!bench.is_open());

        // A paused unit does not count, although its clock ticks.
        bench.pause()?;
        assert!(bench.tick());
        assert_eq!(bench.counter(), 2 * 4096);
        bench.resume()?;

        // After an AUX area is mapped, the next tick begins a transaction.
        bench.map()?;
        assert!(bench.tick() && bench.is_open());
        assert_eq!(bench.counter(), 2 * 4096);
        bench.tick();
        seen.read(&bench.read()?)?;

        // When the area is unmapped, perf stops the event. The event then counts again.
        bench.unmap();
        assert!(!bench.tick() && !bench.start());
        bench.tick();
        assert_eq!(bench.counter(), 4 * 4096);
        bench.map()?;
        // perf restarts the event by itself.
        assert!(bench.start());
        bench.tick();
        bench.del();
        seen.read(&bench.read()?)?;

        assert_eq!(seen.data, 2 * PAGE);
        assert_eq!(seen.gaps, 3 * PAGE);
        assert_eq!(bench.lost(), 0);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn limit_and_dry() -> Result {
        for sink in [DIRECT, SG, BUFFER] {
            let terms = Terms {
                sink,
                dry: 1,
                limit: 10 * PAGE + 63,
                ..TERMS
            };
            let mut bench = terms.bench(64)?;

            bench.add()?;
            for _ in 0..20 {
                bench.tick();
            }
            bench.del();
            assert_eq!(bench.counter(), 10 * 4096);
            assert_eq!(bench.head(), 10 * PAGE);
            assert!(bench.read()?.iter().all(|byte| *byte == 0));
        }
        Ok(())
    }
}
