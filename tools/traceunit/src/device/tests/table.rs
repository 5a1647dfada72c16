// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of trace in the regions of a table.

use super::*;
use crate::source::Packets;
use proptest::prelude::*;

#[test]
fn no_group_of_packets_is_cut() {
    let mut bench = Bench::new(&[0x1000, 0x2000, 0x3000]);
    bench.ram.entry(0x1000, 0x2000 | INT);
    bench.ram.entry(0x1008, 0x3000 | STOP);
    bench.write(TABLE, 0x1000);
    bench.write(CTRL, INSTRUCTIONS);
    let mut groups = |count: u8| {
        let mut packets = Packets::default();
        for group in 1..=count {
            packets.add(&[group; 300]);
        }
        bench
            .device
            .put_packets(1, &packets, &mut bench.ram, &mut bench.raised);
    };
    groups(26);
    groups(2);
    groups(1);
    let counted = [GENERATED, WRITTEN, DROPPED, STATUS].map(|at| bench.read(at));
    assert_eq!(counted, [29 * 300, 27 * 300, 600, 2]);
    assert_eq!(bench.read(POSITION), 1 << 32 | (27 * 300 - 4096));
    let last = bench.ram.pages.get(&0x3000).unwrap();
    assert_eq!(last.get(27 * 300 - 4096..), Some(&[0; 92][..]));
}

#[test]
fn a_unit_goes_round_its_table() {
    let mut bench = round(INT, 0);
    bench.write(CTRL, PATTERN);
    assert_eq!(bench.read(STATUS), 1);
    // Registers are locked while the unit is enabled.
    bench.write(TABLE, 0);
    bench.write(CTRL, PATTERN | 0x20);
    assert_eq!(bench.read(ERROR_COUNT), 2);
    let bytes: Vec<u8> = (0..=255).cycle().take(3 * 4096 + 10).collect();
    for piece in bytes.chunks(100) {
        bench.put(1, piece);
    }
    assert_eq!(bench.raised(), [2]);
    assert_eq!(bench.read(TABLE), 0x1000);
    assert_eq!(bench.read(POSITION), 10);
    assert_eq!(bench.read(WRITTEN), 3 * 4096 + 10);
    assert_eq!(bench.read(DROPPED), 0);
    let mut memory = [0; 8192];
    bench.ram.read(0x8000, &mut memory).unwrap();
    assert_eq!(memory, bytes[4096..12288]);
    bench.ram.read(0x4000, &mut memory[..4096]).unwrap();
    assert_eq!(memory[..10], bytes[12288..]);
    assert_eq!(memory[10..4096], bytes[10..4096]);
    // A disabled unit is not running.
    bench.write(CTRL, PATTERN & !1);
    assert_eq!(bench.read(STATUS), 0);
}

#[test]
fn a_unit_stops_at_the_end_of_a_region() {
    let mut bench = round(INT | STOP, INT);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[1; 5000]);
    bench.put(1, &[2; 60]);
    assert_eq!(bench.read(STATUS), 2);
    assert_eq!(bench.raised(), [2]);
    assert_eq!(bench.read(POSITION), 4096);
    assert_eq!(bench.read(GENERATED), 5060);
    assert_eq!((bench.read(WRITTEN), bench.read(DROPPED)), (4096, 964));
    // A unit that is enabled again stays at the end of the region, without an error.
    bench.write(CTRL, PATTERN & !1);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[2; 60]);
    assert_eq!((bench.read(STATUS), bench.read(ERROR)), (2, 0));
    assert_eq!((bench.read(WRITTEN), bench.read(DROPPED)), (4096, 1024));
    // Without `STOP` the unit continues in the next region.
    bench.ram.entry(0x1000, 0x4000);
    bench.write(CTRL, PATTERN & !1);
    bench.write(IRQ_STATUS, 1);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[3; 8192]);
    assert_eq!(bench.raised(), [2]);
    assert_eq!(bench.read(WRITTEN), 4096 + 8192);
    assert_eq!(bench.ram.byte(0x8000), Some(&mut 3));
}

#[test]
fn a_unit_fails_at_what_it_may_not_do() {
    const UNMAPPED: u64 = 1;
    const MASTER: u64 = 2;
    const TABLE_BIT: u64 = 4;
    type Harm = fn(&mut Bench);
    let table: [(Harm, u64, u64); 9] = [
        (|b| drop(b.ram.pages.remove(&0x4000)), UNMAPPED, 0x4000),
        (|b| drop(b.ram.pages.remove(&0x1000)), UNMAPPED, 0x1000),
        (|b| b.ram.master = false, MASTER, 0x1000),
        (|b| b.ram.entry(0x1000, 0x4000 | 2), TABLE_BIT, 0x1000),
        (
            |b| b.ram.entry(0x1000, 0x4000 | 1 << 6 | 1 << 10),
            TABLE_BIT,
            0x1000,
        ),
        (|b| b.ram.entry(0x1000, 0x5000 | 1 << 6), TABLE_BIT, 0x1000),
        (
            |b| b.ram.entry(0x1000, 0x2000 | END | INT),
            TABLE_BIT,
            0x1000,
        ),
        (|b| b.ram.entry(0x1000, 0x1000 | END), TABLE_BIT, 0x1000),
        (|b| b.write(POSITION, 4097), TABLE_BIT, 0x1000),
    ];
    for (n, (harm, bit, address)) in table.into_iter().enumerate() {
        let mut bench = round(0, 0);
        harm(&mut bench);
        bench.write(0x20, 0);
        bench.write(CTRL, PATTERN);
        bench.put(1, &[1; 100]);
        assert_eq!(bench.read(STATUS), 4, "{n}");
        assert_eq!(bench.raised(), [0, 2], "{n}");
        assert_eq!(bench.read(IRQ_STATUS), 2, "{n}");
        assert_eq!(
            (bench.read(ERROR), bench.read(ERROR_ADDRESS)),
            (bit, address),
            "{n}"
        );
        bench.put(1, &[1; 100]);
        assert_eq!((bench.read(WRITTEN), bench.read(DROPPED)), (0, 200), "{n}");
    }
}

/// The expected content of memory: the bytes are stored region by region.
fn oracle(regions: &[(u64, u64)], stop: usize, from: u64, bytes: &[u8]) -> BTreeMap<u64, u8> {
    let places: Vec<u64> = regions
        .iter()
        .flat_map(|(base, len)| *base..*base + *len)
        .collect();
    let end: u64 = regions[..=stop].iter().map(|(_, len)| len).sum();
    let space = usize::try_from(end - from).unwrap();
    let from = usize::try_from(from).unwrap();
    places[from..]
        .iter()
        .zip(&bytes[..space.min(bytes.len())])
        .map(|(place, byte)| (*place, *byte))
        .collect()
}

proptest! {
    /// Each byte is stored at the address that the table gives, and no other memory changes.
    #[test]
    fn bytes_lie_where_the_table_says(
        shifts in proptest::collection::vec(0u32..3, 1..6),
        stop in 0usize..6,
        start in any::<u64>(),
        pieces in proptest::collection::vec(proptest::collection::vec(1u8.., 0..3000), 0..12),
    ) {
        let mut at = 0x10_0000u64;
        let mut regions = Vec::new();
        for shift in &shifts {
            let len = 4096u64 << shift;
            at = at.next_multiple_of(len) + len;
            regions.push((at, len));
            at += len;
        }
        let stop = stop % regions.len();
        let pages: Vec<u64> = (0x10_0000..at + 0x10000).step_by(4096).chain([0x1000]).collect();
        let mut bench = Bench::new(&pages);
        for (n, (base, len)) in (0u64..).zip(&regions) {
            let size = u64::from((len / 4096).trailing_zeros()) << 6;
            let mark = if n == u64::try_from(stop).unwrap() { STOP } else { 0 };
            bench.ram.entry(0x1000 + n * 8, base | size | mark);
        }
        let first = start % regions[0].1;
        bench.write(TABLE, 0x1000);
        bench.write(POSITION, first);
        bench.write(CTRL, PATTERN);
        for piece in &pieces {
            bench.put(1, piece);
        }
        let bytes = pieces.concat();
        let mut expected = oracle(&regions, stop, first, &bytes);
        prop_assert_eq!(bench.read(WRITTEN), u64::try_from(expected.len()).unwrap());
        prop_assert_eq!(bench.read(GENERATED), u64::try_from(bytes.len()).unwrap());
        prop_assert_eq!(bench.read(ERROR), 0);
        for page in pages.iter().filter(|page| **page != 0x1000) {
            for at in *page..*page + 4096 {
                let found = *bench.ram.byte(at).unwrap();
                prop_assert_eq!(found, expected.remove(&at).unwrap_or(0));
            }
        }
    }

    /// With any values in the registers and the table, the device writes only to mapped memory, and counts its trace.
    #[test]
    fn garbage_does_no_harm(
        writes in proptest::collection::vec((0u64..0x3100, any::<u64>(), 0usize..9, any::<bool>()), 0..60),
        table in proptest::collection::vec(any::<u64>(), 512),
        start in 0u64..0x20_0000,
    ) {
        let mut bench = round(INT, INT);
        for (n, entry) in (0u64..).zip(&table) {
            // Every third entry is almost valid.
            let entry = if n % 3 == 0 { entry & 0xffd7 } else { *entry };
            bench.ram.entry(0x2000 + n * 8, entry);
        }
        bench.write(TABLE, start & !0xfff);
        bench.write(CTRL, PATTERN);
        for (offset, value, len, small) in writes {
            let value = if small { value & 0xff } else { value };
            let bytes = value.to_le_bytes();
            bench.device.write(offset & !3, &bytes[..len.min(8)], &mut bench.raised);
            bench.put(1, &bytes);
            bench.put(0, &[1; 300]);
            let mut to = vec![0; len];
            bench.device.read(offset, &mut to, &mut bench.ram, &mut bench.raised);
            let (generated, written) = (bench.read(GENERATED), bench.read(WRITTEN));
            prop_assert_eq!(bench.read(DROPPED), generated - written);
        }
        prop_assert!(bench.raised().iter().all(|vector| *vector < 3));
    }
}
