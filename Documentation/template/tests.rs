// SPDX-License-Identifier: GPL-2.0
#![cfg(CONFIG_RUST_PERF_TESTING)]

//! Tests of `blink` on the framework's bench. They run when the module is loaded.

use super::{
    Blink,
    WORD, //
};
use kernel::prelude::*;
use perf::testing::{
    Bench,
    Setup, //
};

/// An event that writes 7, with an AUX area of a page.
fn setup() -> Setup {
    Setup {
        config: [7, 0, 0, 0],
        pages: 1,
        ..Setup::default()
    }
}

#[kunit_tests(blink)]
mod cases {
    use super::*;

    #[test]
    fn sampling_is_refused() {
        let sampled = Setup {
            period: 1000,
            ..setup()
        };

        assert!(Bench::new(Blink, &sampled).err() == Some(EOPNOTSUPP));
    }

    #[test]
    fn a_word_a_tick() -> Result {
        let mut bench = Bench::new(Blink, &setup())?;

        bench.add()?;
        for _ in 0..3 {
            assert!(bench.tick());
        }
        bench.del();

        let bytes = bench.read()?;
        assert_eq!(bytes.len(), 24);
        assert!(bytes.chunks_exact(8).all(|word| word == 7u64.to_le_bytes()));
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn full_area_is_reported() -> Result {
        let mut bench = Bench::new(Blink, &setup())?;
        let size = 4096;

        bench.add()?;
        for _ in 0..size / WORD {
            bench.tick();
        }

        // perf keeps one byte free, so one word less than the area would hold.
        assert!(bench.is_disabled());
        assert_eq!(bench.head(), size - WORD);
        assert_eq!(bench.lost(), WORD);
        assert!(bench.violation().is_none());
        Ok(())
    }
}
