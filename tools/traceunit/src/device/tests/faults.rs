// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults on demand.

use super::super::fault::Fault;
use super::*;

/// Requests a fault of CPU 1's unit.
fn fault(bench: &mut Bench, kind: u32, argument: u32) {
    let fault = Fault::new(kind | 1 << 8, argument).unwrap();
    bench.device.fault(fault, &mut bench.ram, &mut bench.raised);
}

#[test]
fn interrupts_go_wrong_once() {
    const ELSEWHERE: u32 = 5;
    // The fault, and the vectors raised when a region is full, when the cause is cleared, and at the release.
    type Vectors = &'static [usize];
    let table: [(u32, [Vectors; 3]); 4] = [
        (1, [&[], &[], &[2]]),
        (2, [&[], &[], &[]]),
        (3, [&[2], &[2], &[]]),
        (ELSEWHERE, [&[1], &[], &[]]),
    ];
    for (kind, [full, cleared, released]) in table {
        let mut bench = round(INT, 0);
        fault(&mut bench, kind, 0);
        assert_eq!(bench.device.faults(), 0, "{kind}");
        bench.write(CTRL, PATTERN);
        bench.put(1, &[1; 4096]);
        assert_eq!(bench.raised(), full, "{kind}");
        assert_eq!(bench.device.faults(), 1, "{kind}");
        bench.write(IRQ_STATUS, 1);
        assert_eq!(bench.raised(), cleared, "{kind}");
        fault(&mut bench, 0, 0);
        assert_eq!(bench.raised(), released, "{kind}");
        bench.put(1, &[1; 3 * 4096]);
        assert_eq!(bench.raised(), [2], "{kind}");
        assert_eq!(bench.device.faults(), 1, "{kind}");
    }
    let mut bench = round(INT, 0);
    fault(&mut bench, 4, 0);
    assert_eq!((bench.raised(), bench.read(IRQ_STATUS)), (vec![2], 0));
    bench.write(CTRL, PATTERN);
    fault(&mut bench, 6, 0);
    assert!(bench.raised().is_empty());
    bench.write(CTRL, PATTERN & !1);
    assert_eq!((bench.raised(), bench.read(IRQ_STATUS)), (vec![2], 1));
}

#[test]
fn the_last_piece_comes_late() {
    let mut bench = round(0, 0);
    bench.write(CTRL, PATTERN);
    fault(&mut bench, 7, 2);
    bench.put(1, &[1; 100]);
    bench.put(1, &[2; 100]);
    assert_eq!((bench.read(GENERATED), bench.read(WRITTEN)), (200, 100));
    bench.write(CTRL, PATTERN & !1);
    // The unit cannot be started in the meantime.
    bench.write(CTRL, PATTERN);
    assert_eq!(bench.read(ERROR), 8);
    assert_eq!([STATUS; 2].map(|at| bench.read(at)), [1, 1]);
    assert_eq!(bench.read(WRITTEN), 100);
    assert_eq!(bench.read(STATUS), 0);
    assert_eq!((bench.read(WRITTEN), bench.read(DROPPED)), (200, 0));
    assert_eq!(bench.ram.byte(0x4000 + 100), Some(&mut 2));
    bench.write(CTRL, PATTERN);
    assert_eq!((bench.read(CTRL), bench.read(STATUS)), (PATTERN, 1));
}

#[test]
fn dma_goes_wrong_once() {
    // An entry with inverted bits, and a write to a page without memory.
    for (kind, argument, bit, address) in [(10, 2, 4, 0x1000), (9, 0x77, 1, 0x4000)] {
        let mut bench = round(0, 0);
        bench.write(CTRL, PATTERN);
        fault(&mut bench, kind, argument);
        bench.put(1, &[1; 100]);
        assert_eq!((bench.read(ERROR), bench.read(STATUS)), (bit, 4), "{kind}");
        assert_eq!(bench.read(ERROR_ADDRESS), address, "{kind}");
        assert_eq!(
            (bench.read(WRITTEN), bench.read(DROPPED)),
            (0, 100),
            "{kind}"
        );
        bench.write(CTRL, 0);
        bench.write(CTRL, PATTERN);
        bench.put(1, &[1; 100]);
        assert_eq!(bench.read(WRITTEN), 100, "{kind}");
    }
    // The write is behind the last byte written, whatever the registers contain.
    let mut bench = round(0, 0);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[1; 100]);
    bench.write(CTRL, 0);
    bench.write(TABLE, 0);
    fault(&mut bench, 8, 0);
    assert_eq!(bench.ram.byte(0x4000 + 163), Some(&mut 0xee));
    assert_eq!(bench.ram.byte(0x4000 + 164), Some(&mut 0));
    bench.ram.pages.remove(&0x4000);
    fault(&mut bench, 8, 0);
    assert_eq!((bench.read(ERROR), bench.read(ERROR_ADDRESS)), (1, 0x4064));
}

#[test]
fn an_entry_that_leads_to_the_next_table_is_right() {
    let mut bench = round(0, 0);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[1; 4096]);
    // The next entry has `END`, and the one behind it is that of a region, which gets `STOP`.
    fault(&mut bench, 10, 1 << 4);
    bench.put(1, &[1; 3 * 4096]);
    assert_eq!((bench.read(ERROR), bench.read(STATUS)), (0, 2));
    assert_eq!((bench.read(WRITTEN), bench.read(DROPPED)), (3 * 4096, 4096));
    assert_eq!(bench.device.faults(), 1);
}

#[test]
fn stale_bytes_stay_in_the_page() {
    for (written, stale) in [(4096 - 63, 63), (4096 - 64, 64), (4096, 0)] {
        let mut bench = round(0, 0);
        bench.ram.pages.insert(0x5000, vec![0; 4096]);
        bench.write(CTRL, PATTERN);
        bench.put(1, &vec![1; written]);
        bench.write(CTRL, 0);
        fault(&mut bench, 8, 0);
        let found = |page: u64| bench.ram.pages[&page].iter().filter(|&&byte| byte == 0xee);
        assert_eq!((found(0x4000).count(), found(0x5000).count()), (stale, 0));
    }
}

#[test]
fn registers_lie_and_are_lost() {
    let mut bench = round(0, 0);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[1; 100]);
    fault(&mut bench, 11, 7);
    assert_eq!((bench.read(GENERATED), bench.read(WRITTEN)), (100, 107));
    fault(&mut bench, 11, u32::MAX - 7);
    assert_eq!(bench.read(WRITTEN), 99);
    fault(&mut bench, 16, 1);
    assert_eq!((bench.read(GENERATED), bench.read(DROPPED)), (101, 2));
    fault(&mut bench, 16, u32::MAX - 2);
    assert_eq!((bench.read(GENERATED), bench.read(DROPPED)), (98, u64::MAX));
    fault(&mut bench, 12, 1);
    assert_eq!(bench.read(POSITION), 1 << 32 | 100);
    bench.write(CTRL, 0);
    // The fault enables a unit that the guest has not enabled: it finds no table.
    bench.write(TABLE, 0);
    bench.write(CTRL, 0x10);
    fault(&mut bench, 13, 0);
    assert_eq!((bench.read(CTRL), bench.read(STATUS)), (PATTERN, 1));
    bench.put(1, &[1; 100]);
    assert_eq!((bench.read(STATUS), bench.read(ERROR)), (4, 4));

    fault(&mut bench, 14, 0);
    assert_eq!(bench.read(STATUS), u64::MAX);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[1; 100]);
    fault(&mut bench, 0, 0);
    let now = [CTRL, STATUS, GENERATED, ERROR].map(|at| bench.read(at));
    assert_eq!(now, [0; 4]);
    bench.write(CTRL, PATTERN);
    fault(&mut bench, 15, 0);
    assert_eq!(bench.read(CTRL), 0);
    assert_eq!(bench.device.faults(), 8);
    // Faults that do not exist, and a fault of a unit that does not exist.
    assert_eq!(Fault::new(17, 0), None);
    assert_eq!(Fault::new(0x1_0004, 0), None);
    let of_nobody = Fault::new(9 << 8 | 4, 0).unwrap();
    bench
        .device
        .fault(of_nobody, &mut bench.ram, &mut bench.raised);
    assert_eq!(bench.device.faults(), 8);
}
