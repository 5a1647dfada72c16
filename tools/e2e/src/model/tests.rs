// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the model with sequences that were worked out by hand.

#![allow(clippy::unwrap_used)]

use super::*;

const SETUP: Setup = Setup {
    sink: Sink::Direct,
    region: 4096,
    ring: 16384,
    bounce: 16384,
    watermark: 0,
    overwrite: false,
    packet: 192,
    burst: 5,
    limit: 40_000,
    align: 1,
    fault: Fault::None,
};

fn ends(model: &Model) -> Vec<(u64, u64, u64)> {
    model
        .records()
        .iter()
        .map(|r| (r.offset, r.size, r.flags.bits()))
        .collect()
}

fn stopped(setup: Setup) -> Model {
    let mut model = Model::new(setup);
    model.enable();
    model.run();
    model
}

/// Ticks are 960 bytes. The wakeup point is 8192, an end of a page, and so the place of the interrupt. The 9th tick passes it: 8640. The
/// unit stops at 12288, because the next end of a page is beyond the space. No end of a page is left before it, so the interrupt is at
/// 12288, too. 19 packets fit, and the 20th is the last one of the 4th tick.
#[test]
fn direct_stops_at_the_end_of_a_page() {
    let model = stopped(SETUP);
    assert_eq!(ends(&model), [(0, 8640, 0), (8640, 3648, 1)]);
    assert_eq!((model.generated(), model.lost()), (13 * 960, 192));
    assert!(!model.is_on());
    // The space is 16383 - 12288 = 4095 bytes, and has no end of a page.
    let mut model = model;
    model.enable();
    model.run();
    assert_eq!(ends(&model)[2..], [(12288, 0, 1)]);
    assert_eq!(model.lost(), 192 + 960);
    // With all space released, there are three ends of pages, up to 24576. First, the interrupt is at the wakeup point, 16384. The next
    // wakeup point is 24576, where the unit stops, so the interrupt is a page before. After that, it is at 24576.
    model.drain(u64::MAX);
    model.enable();
    model.run();
    assert_eq!(
        ends(&model)[3..],
        [(12288, 4800, 0), (17088, 3840, 0), (20928, 3648, 1)]
    );
}

/// 17 ticks are 16320 bytes. The 9th tick passes half of the bounce memory, and also the wakeup point. The ring has space for 16383 - 8640
/// bytes, which are 40 packets.
#[test]
fn sg_keeps_the_oldest() {
    let model = stopped(Setup {
        sink: Sink::Sg,
        ..SETUP
    });
    assert_eq!(ends(&model), [(0, 8640, 0), (8640, 7680, 1)]);
    assert_eq!((model.generated(), model.lost()), (18 * 960, 960));
}

/// Like sg, but a barrier takes 64 bytes of the space, and 39 packets fit behind it.
#[test]
fn flat_keeps_the_newest_behind_a_barrier() {
    let model = stopped(Setup {
        sink: Sink::Flat,
        ..SETUP
    });
    assert_eq!(
        ends(&model),
        [(0, 8640, 0x100), (8640, 64 + 39 * 192, 0x101)]
    );
    assert_eq!((model.lost(), model.overhead()), (960 + 192, 64));
}

#[test]
fn a_reader_that_keeps_up_loses_nothing() {
    for sink in [Sink::Direct, Sink::Sg, Sink::Flat] {
        for watermark in [4096, 8192, 16_384] {
            let setup = Setup {
                sink,
                watermark,
                ring: 65_536,
                bounce: 65_536,
                limit: 200_000,
                ..SETUP
            };
            let mut model = Model::new(setup);
            model.enable();
            model.run_kept_up();
            model.disable();
            assert_eq!(
                (model.generated(), model.lost()),
                (1041 * 192, 0),
                "{setup:?}"
            );
            assert_eq!(model.head(), 1041 * 192);
            Follower::new(setup, false).follow(model.records()).unwrap();
        }
    }
}

#[test]
fn overwriting_has_no_end() {
    for sink in [Sink::Direct, Sink::Sg] {
        let mut model = stopped(Setup {
            sink,
            overwrite: true,
            ..SETUP
        });
        model.disable();
        assert_eq!(ends(&model), [(39_936, 39_936, 2)]);
        assert_eq!(model.lost(), 0);
    }
    // The buffer keeps 85 packets: the newest of 208.
    let mut flat = stopped(Setup {
        sink: Sink::Flat,
        overwrite: true,
        ..SETUP
    });
    flat.disable();
    assert_eq!(ends(&flat), [(64 + 85 * 192, 64 + 85 * 192, 0x106)]);
    assert_eq!(flat.lost(), (208 - 85) * 192);
}

/// The effect of each fault on a ring that has space for all trace, 40 ticks of 960 bytes.
#[test]
fn faults_have_their_flags() {
    let setup = |fault| Setup {
        ring: 65_536,
        bounce: 65_536,
        watermark: 16_384,
        limit: 38_400,
        fault,
        ..SETUP
    };
    let run = |sink, fault| {
        let mut model = stopped(Setup {
            sink,
            ..setup(fault)
        });
        model.disable();
        ends(&model)
    };
    for sink in [Sink::Direct, Sink::Sg] {
        // 18 ticks are 17280 bytes. The next wakeup point is 32768, which the 35th tick passes.
        assert_eq!(
            run(sink, Fault::None),
            [(0, 17_280, 0), (17_280, 16_320, 0), (33_600, 4800, 0)]
        );
        assert_eq!(
            run(sink, Fault::Late(2)),
            [(0, 19_200, 0), (19_200, 16_320, 0), (35_520, 2880, 0)]
        );
        assert_eq!(run(sink, Fault::Pending), [(0, 38_400, 0)]);
        assert_eq!(run(sink, Fault::Lost), [(0, 38_400, 0)]);
        // Faults are in the 16th and the 32nd tick.
        assert_eq!(
            run(sink, Fault::Overflow(16)),
            [
                (0, 14_400, 4),
                (14_400, 2880, 0),
                (17_280, 11_520, 4),
                (28_800, 4800, 0),
                (33_600, 2880, 0)
            ]
        );
        assert_eq!(run(sink, Fault::Collision(40))[2..], [(33_600, 4608, 8)]);
    }
    // The interrupt is pending when the event is disabled; it is taken at the first tick after the event is enabled again.
    let mut model = Model::new(setup(Fault::Pending));
    model.enable();
    for _ in 0..20 {
        model.tick();
    }
    model.disable();
    model.enable();
    model.run();
    model.disable();
    assert_eq!(
        ends(&model),
        [(0, 19_200, 0), (19_200, 960, 0), (20_160, 18_240, 0)]
    );
}

/// A follower must refuse these records.
#[test]
fn a_follower_refuses() {
    let aux = |offset, size, flags| Aux {
        offset,
        size,
        flags: AuxFlags::from_bits_retain(flags),
    };
    let table = [
        (aux(192, 8640, 0), "must begin at"),
        (aux(0, 8641, 0), "no whole packets"),
        (aux(0, 3840, 0), "nothing has stopped"),
        (aux(0, 9600, 0), "was not woken"),
        (aux(0, 0, 0), "it is empty"),
        (aux(0, 8640, 4), "PARTIAL"),
        (aux(8640, 8640, 2), "flags"),
        (aux(0, 8640, 0x100), "flags"),
    ];
    for (record, says) in table {
        let after = aux(8640, 192, 0);
        let error = Follower::new(SETUP, false)
            .follow(&[record, after])
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(says), "{error}");
    }
    let good = [aux(0, 192, 0), aux(192, 0, 1)];
    Follower::new(SETUP, true).follow(&good).unwrap();
}
