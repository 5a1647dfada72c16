// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The times at which pieces of trace were read.

use std::num::NonZero;

use auxview::report::{report, timeline};
use auxview::trace::Trace;
use perfdata::{AuxFlags, AuxtraceInfo, TimeConv};
use testdata::pattern::packets;
use testdata::recording::Recording;

/// The time without trace ends when the recorder reads the trace. The reference of AUXTRACE records is the processor's cycle counter in
/// files that say so, and in files of perf. In old files of `auxrec` with trace of Intel PT it is of no use.
#[test]
fn the_time_of_a_piece() {
    const FAR: u64 = 1 << 60;
    // 5 ns a cycle.
    let clock = |zero: u64| TimeConv {
        shift: 1,
        mult: 10,
        zero,
        cap_zero: true,
        ..TimeConv::default()
    };
    let (near, far) = (clock(0), clock(0_u64.wrapping_sub(FAR / 2 * 10)));
    let (ours, perf) = ((Some("cycles"), false), (None, true));
    for (conv, decoder, (reference, foreign), read, untraced) in [
        (None, None, (None, false), 1_005_000, 5000),
        (Some(near), Some(1), ours, 201_000, 5000),
        (Some(far), Some(1), ours, FAR + 201_000, 5000),
        (None, Some(1), ours, 201_000, 0),
        (Some(near), Some(1), perf, 201_000, 5000),
        (Some(near), Some(2), perf, 201_000, 5000),
        // An old file of `auxrec`: the reference is a time of CLOCK_MONOTONIC.
        (Some(near), Some(1), (None, false), 9_000_000, 0),
    ] {
        let mut made = Recording::new(false);
        (made.reference, made.foreign) = (reference, foreign);
        if let Some(conv) = conv {
            made.say(&conv);
        }
        if let Some(kind) = decoder {
            let private = &[0; 18];
            made.say(&AuxtraceInfo { kind, private });
        }
        // The AUX record is at 1 ms.
        let all = packets(0, 64);
        made.aux(64, AuxFlags::TRUNCATED).read_at(&all, 0, read);
        let bytes = made.count(64).bytes();
        let trace = Trace::read(&bytes).unwrap();
        let [ring] = &Vec::from_iter(trace.rings.values())[..] else {
            panic!("{:?}", trace.rings)
        };
        let what = format!("{decoder:?} {reference:?} {foreign} {read}");
        assert_eq!(ring.loss.untraced, untraced, "{what}");
        let at = ring.pieces[0].read.map(NonZero::get);
        assert_eq!(at, (untraced != 0).then_some(1_005_000), "{what}");
        // Picture and report do not need the time.
        assert!(timeline(&bytes).is_ok() && report(&bytes, &mut Vec::new()).is_ok());
    }
}
