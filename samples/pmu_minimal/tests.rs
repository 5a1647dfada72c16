// SPDX-License-Identifier: GPL-2.0
#![cfg(CONFIG_RUST_PERF_TESTING)]

//! Tests of `minimal`; `pmu_kunit` explains how such tests are written.

use super::Minimal;
use kernel::prelude::*;
use perf::testing::{
    Bench,
    Setup, //
};

/// An event with this interval.
fn setup(interval: u64) -> Setup {
    Setup {
        config: [interval, 0, 0, 0],
        pages: 1,
        ..Setup::default()
    }
}

#[kunit_tests(pmu_minimal)]
mod cases {
    use super::*;

    #[test]
    fn intervals() {
        // The interval in the configuration, and the interval of the timer, in microseconds.
        let table = [
            (0, Ok(1_000)),
            (1, Err(EINVAL)),
            (19, Err(EINVAL)),
            (20, Ok(20)),
            (0xffff_ffff, Ok(0xffff_ffff)),
            (0x1_0000_0000, Err(EINVAL)),
        ];

        for (asked, wanted) in table {
            let got = Bench::new(Minimal, &setup(asked)).and_then(|mut bench| {
                bench.add()?;
                Ok(bench.timer().ok_or(ENOENT)?.as_micros_ceil())
            });

            assert!(got == wanted);
        }
    }

    #[test]
    fn records_are_numbered() -> Result {
        let mut bench = Bench::new(Minimal, &setup(0))?;

        bench.add()?;
        for _ in 0..10 {
            assert!(bench.tick());
        }
        bench.del();

        let bytes = bench.read()?;
        let mut before = 0;
        for (record, number) in bytes.chunks_exact(16).zip(0u32..) {
            let (time, rest) = record.split_at(8);
            let (cpu, last) = rest.split_at(4);
            let time = time.try_into().map_or(0, u64::from_le_bytes);

            assert!(time >= before);
            assert!(cpu == bench.cpu().to_le_bytes());
            assert!(last == number.to_le_bytes());
            before = time;
        }
        assert_eq!(bytes.len(), 160);
        assert_eq!(bench.counter(), 10);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn full_ring_skips_a_number() -> Result {
        let mut bench = Bench::new(Minimal, &setup(0))?;

        bench.add()?;
        for _ in 0..300 {
            bench.tick();
            if bench.is_disabled() {
                bench.read()?;
            }
        }
        bench.del();

        // perf keeps one byte of the ring free, so 255 records fit into a page. The 256th is lost.
        assert_eq!(bench.counter(), 300);
        assert_eq!(bench.head(), 299 * 16);
        let truncated = bench.records().iter().filter(|r| r.is_truncated());
        assert_eq!(truncated.count(), 1);
        assert!(bench.violation().is_none());
        Ok(())
    }
}
