// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::fault::Fault;
use super::memory::{Memory, Refused};
use super::{Device, Raise};
use crate::flow::{Range, Wanted};
use crate::source::{Packets, Request};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Memory of some pages, by their addresses.
#[derive(Clone, Default)]
struct Ram {
    pages: BTreeMap<u64, Vec<u8>>,
    master: bool,
}

impl Ram {
    fn with(pages: &[u64]) -> Self {
        Self {
            pages: pages.iter().map(|page| (*page, vec![0; 4096])).collect(),
            master: true,
        }
    }

    fn byte(&mut self, address: u64) -> Option<&mut u8> {
        let page = self.pages.get_mut(&(address & !0xfff))?;
        page.get_mut(usize::try_from(address & 0xfff).unwrap())
    }

    fn check(&mut self, address: u64, len: usize) -> Result<(), Refused> {
        if !self.master {
            return Err(Refused::Master);
        }
        // Nowhere is out of reach too.
        for offset in 0..u64::try_from(len.max(1)).unwrap() {
            let at = address.checked_add(offset).ok_or(Refused::Unmapped)?;
            self.byte(at).ok_or(Refused::Unmapped)?;
        }
        Ok(())
    }

    fn entry(&mut self, address: u64, bits: u64) {
        self.write(address, &bits.to_le_bytes()).unwrap();
    }
}

impl Memory for Ram {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.check(address, to.len())?;
        for (at, to) in (address..).zip(to) {
            *to = *self.byte(at).unwrap();
        }
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.check(address, from.len())?;
        for (at, from) in (address..).zip(from) {
            *self.byte(at).unwrap() = *from;
        }
        Ok(())
    }
}

/// The vectors that were raised.
#[derive(Default)]
struct Raised(Vec<usize>);

impl Raise for Raised {
    fn raise(&mut self, vector: usize) {
        self.0.push(vector);
    }
}

struct Bench {
    device: Device,
    ram: Ram,
    raised: Raised,
}

impl Bench {
    fn new(pages: &[u64]) -> Self {
        Self {
            device: Device::new(2),
            ram: Ram::with(pages),
            raised: Raised::default(),
        }
    }

    fn read(&mut self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.device
            .read(offset, &mut bytes, &mut self.ram, &mut self.raised);
        u64::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u64) {
        self.device
            .write(offset, &value.to_le_bytes(), &mut self.raised);
    }

    fn put(&mut self, cpu: usize, bytes: &[u8]) {
        self.device.put(cpu, bytes, &mut self.ram, &mut self.raised);
    }

    fn raised(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.raised.0)
    }
}

const ERROR: u64 = 0x28;
const ERROR_ADDRESS: u64 = 0x30;
const ERROR_COUNT: u64 = 0x38;
/// The registers of CPU 1.
const CPU: u64 = 0x2000;
const CTRL: u64 = CPU;
const STATUS: u64 = CPU + 0x08;
const TABLE: u64 = CPU + 0x10;
const POSITION: u64 = CPU + 0x18;
const IRQ_STATUS: u64 = CPU + 0x20;
const IRQ_MASK: u64 = CPU + 0x28;
const GENERATED: u64 = CPU + 0x30;
const WRITTEN: u64 = CPU + 0x38;
const DROPPED: u64 = CPU + 0x40;
const RANGES: u64 = CPU + 0x50;
const PATTERN: u64 = 0x11;
/// Those of the kernel and of programs, with times, cycles, an `MTC` every 8 ticks, a `PSB` every 8 KiB.
const INSTRUCTIONS: u64 = 0x32_3701;
const END: u64 = 1;
const INT: u64 = 4;
const STOP: u64 = 16;

#[test]
fn registers_have_their_first_values() {
    let mut bench = Bench::new(&[]);
    for (offset, value) in [
        (0x00, 0x1_5443_5254),
        (0x08, 2 | 4 << 8 | 52 << 16 | 3 << 24 | 512 << 32),
        (0x10, 0),
        (0x18, 0),
        (0x20, 1),
        (ERROR, 0),
        (ERROR_ADDRESS, 0),
        (ERROR_COUNT, 0),
        (CTRL, 0),
        (STATUS, 0),
        (TABLE, 0),
        (POSITION, 0),
        (IRQ_STATUS, 0),
        (IRQ_MASK, 3),
        (GENERATED, 0),
        (WRITTEN, 0),
        (DROPPED, 0),
        (CPU + 0x48, 1000),
        (RANGES, 0),
        (CPU + 0x80, 0),
        (CPU + 0xb8, 0),
    ] {
        assert_eq!(bench.read(offset), value, "{offset:#x}");
    }
    assert_eq!(bench.read(ERROR_COUNT), 0);
}

#[test]
fn what_is_no_register_is_an_error() {
    enum Does {
        Read(u64, usize),
        Write(u64, u64),
    }
    use Does::{Read, Write};
    for (n, (does, about)) in [
        (Read(0x40, 8), 0x40),
        (Read(0x3000, 8), 0x3000),
        (Read(1, 4), 1),
        (Read(0, 2), 0),
        (Read(4, 8), 4),
        (Read(CPU + 0x58, 8), CPU + 0x58),
        (Read(CPU + 0xc0, 8), CPU + 0xc0),
        (Write(0x00, 0), 0x00),
        (Write(0x10, 2), 0x10),
        (Write(0x18, 2), 0x18),
        (Write(0x20, 2), 0x20),
        (Write(ERROR, 16), ERROR),
        (Write(ERROR_COUNT, 0), ERROR_COUNT),
        (Write(CTRL, 0x4000), CTRL),
        (Write(CTRL, 0x111), CTRL),
        (Write(CTRL, 0x21), CTRL),
        (Write(CTRL, 0x13), CTRL),
        (Write(STATUS, 0), STATUS),
        (Write(TABLE, 8), TABLE),
        (Write(POSITION, 1 << 28), POSITION),
        (Write(IRQ_STATUS, 4), IRQ_STATUS),
        (Write(IRQ_MASK, 4), IRQ_MASK),
        (Write(WRITTEN, 0), WRITTEN),
        (Write(CPU + 0x48, 0), CPU + 0x48),
        (Write(CPU + 0x48, 1 << 32), CPU + 0x48),
        (Write(CPU + 0x58, 0), CPU + 0x58),
        (Write(RANGES, 3), RANGES),
        (Write(RANGES, 1 << 16), RANGES),
        (Write(CPU + 0xc0, 0), CPU + 0xc0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut bench = Bench::new(&[]);
        let before = bench.device.clone();
        match does {
            Read(offset, len) => {
                let mut bytes = vec![0xff; len];
                bench
                    .device
                    .read(offset, &mut bytes, &mut bench.ram, &mut bench.raised);
                assert!(bytes.iter().all(|byte| *byte == 0), "{n}");
            }
            Write(offset, value) => bench.write(offset, value),
        }
        assert_eq!(bench.device.units, before.units, "{n}");
        assert_eq!(bench.read(ERROR), 8, "{n}");
        assert_eq!(bench.read(ERROR_ADDRESS), about, "{n}");
        assert_eq!(bench.read(ERROR_COUNT), 1, "{n}");
        assert!(bench.raised().is_empty(), "{n}");
    }
}

#[test]
fn what_is_traced_stands_in_registers() {
    let mut bench = Bench::new(&[]);
    for (offset, value) in [
        (RANGES, 0x201),
        (CPU + 0x80, 0x1000),
        (CPU + 0x88, 0x1fff),
        (CPU + 0xa0, 0x5000),
        (CPU + 0xa8, 0x5000),
        (CTRL, INSTRUCTIONS),
    ] {
        bench.write(offset, value);
        assert_eq!(bench.read(offset), value, "{offset:#x}");
    }
    let range = |low, high, stops| Some(Range { low, high, stops });
    let asked = Request {
        wanted: Wanted {
            kernel: true,
            user: true,
            ranges: [
                range(0x1000, 0x1fff, false),
                None,
                range(0x5000, 0x5000, true),
                None,
            ],
        },
        tsc: true,
        cyc: true,
        mtc: Some(intel_pt::Mtc {
            ratio: 512,
            shift: 3,
        }),
        ret_compression: false,
        psb_period: 8192,
        late: false,
    };
    assert_eq!(bench.device.unit(1).unwrap().instructions(), Some(asked));
    // It runs when the source has begun.
    assert_eq!(bench.read(STATUS), 0);
    bench.device.unit_mut(1).unwrap().runs();
    assert_eq!(bench.read(STATUS), 1);
    // Locked meanwhile.
    bench.write(CPU + 0x80, 0);
    assert_eq!(bench.read(ERROR), 8);
    bench.write(CTRL, 0);
    assert_eq!((bench.read(STATUS), bench.read(ERROR_COUNT)), (0, 1));
    assert_eq!(bench.device.unit(1).unwrap().instructions(), None);
    bench.write(CTRL, PATTERN);
    assert_eq!(bench.device.unit(1).unwrap().instructions(), None);
}

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
fn an_error_raises_vector_0_when_it_is_not_masked() {
    let mut bench = Bench::new(&[]);
    bench.read(0x40);
    assert!(bench.raised().is_empty());
    bench.write(0x20, 0);
    assert_eq!(bench.raised(), [0]);
    bench.read(0x48);
    assert!(bench.raised().is_empty());
    assert_eq!(
        (bench.read(ERROR_ADDRESS), bench.read(ERROR_COUNT)),
        (0x40, 2)
    );
    bench.write(0x18, 1);
    bench.write(ERROR, 8);
    bench.read(0x50);
    assert_eq!(bench.raised(), [0]);
    assert_eq!(bench.read(ERROR_ADDRESS), 0x50);
}

#[test]
fn halves_are_written_together() {
    let mut bench = Bench::new(&[]);
    let half = |bench: &mut Bench, offset, value: u32| {
        bench
            .device
            .write(offset, &value.to_le_bytes(), &mut bench.raised);
    };
    half(&mut bench, POSITION, 7);
    assert_eq!(bench.read(POSITION), 0);
    half(&mut bench, POSITION + 4, 3);
    assert_eq!(bench.read(POSITION), 3 << 32 | 7);
    let mut high = [0; 4];
    bench
        .device
        .read(POSITION + 4, &mut high, &mut bench.ram, &mut bench.raised);
    assert_eq!(u32::from_le_bytes(high), 3);
    assert_eq!(bench.read(ERROR_COUNT), 0);
    // An upper half without its lower one.
    half(&mut bench, POSITION + 4, 9);
    assert_eq!(bench.read(POSITION), 3 << 32 | 7);
    half(&mut bench, TABLE, 0);
    half(&mut bench, POSITION + 4, 9);
    assert_eq!(
        (bench.read(POSITION), bench.read(ERROR_COUNT)),
        (3 << 32 | 7, 2)
    );
}

/// A table at 0x1000 of two regions: 0x4000 and 0x8000 to 0xa000, and round.
fn round(first: u64, second: u64) -> Bench {
    let mut bench = Bench::new(&[0x1000, 0x2000, 0x4000, 0x8000, 0x9000]);
    bench.ram.entry(0x1000, 0x4000 | first);
    bench.ram.entry(0x1008, 0x2000 | END);
    bench.ram.entry(0x2000, 0x8000 | 1 << 6 | second);
    bench.ram.entry(0x2008, 0x1000 | END);
    bench.write(TABLE, 0x1000);
    bench.write(IRQ_MASK, 0);
    bench
}

#[test]
fn a_unit_goes_round_its_table() {
    let mut bench = round(INT, 0);
    bench.write(CTRL, PATTERN);
    assert_eq!(bench.read(STATUS), 1);
    // Locked while it is enabled.
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
    // Disabled, it makes nothing.
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
    // Enabled again it is still there, and nothing is wrong.
    bench.write(CTRL, PATTERN & !1);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[2; 60]);
    assert_eq!((bench.read(STATUS), bench.read(ERROR)), (2, 0));
    assert_eq!((bench.read(WRITTEN), bench.read(DROPPED)), (4096, 1024));
    // Without the mark it goes on behind the region.
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

/// What goes wrong at CPU 1's unit.
fn fault(bench: &mut Bench, kind: u32, argument: u32) {
    let fault = Fault::new(kind | 1 << 8, argument).unwrap();
    bench.device.fault(fault, &mut bench.ram, &mut bench.raised);
}

#[test]
fn interrupts_go_wrong_once() {
    const ELSEWHERE: u32 = 5;
    // The fault, what is raised when a region is full, when the reason is cleared, and when what was
    // kept back comes.
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
    // Nobody may start it meanwhile.
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
    // Where the next entry has other bits, and where it leads to no memory.
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
    // Behind what was written last, whatever the registers say.
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
fn registers_lie_and_are_lost() {
    let mut bench = round(0, 0);
    bench.write(CTRL, PATTERN);
    bench.put(1, &[1; 100]);
    fault(&mut bench, 11, 7);
    assert_eq!((bench.read(GENERATED), bench.read(WRITTEN)), (100, 107));
    fault(&mut bench, 11, u32::MAX - 7);
    assert_eq!(bench.read(WRITTEN), 99);
    fault(&mut bench, 12, 1);
    assert_eq!(bench.read(POSITION), 1 << 32 | 100);
    bench.write(CTRL, 0);
    // A unit that is enabled though nobody has finds no table.
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
    assert_eq!(bench.device.faults(), 6);
    // Nothing that is no fault, or of no unit.
    assert_eq!(Fault::new(16, 0), None);
    assert_eq!(Fault::new(0x1_0004, 0), None);
    let of_nobody = Fault::new(9 << 8 | 4, 0).unwrap();
    bench
        .device
        .fault(of_nobody, &mut bench.ram, &mut bench.raised);
    assert_eq!(bench.device.faults(), 6);
}

/// Where the bytes of a ring lie: region by region, as it was put together.
fn oracle(regions: &[(u64, u64)], stop: usize, from: u64, bytes: &[u8]) -> BTreeMap<u64, u8> {
    let places: Vec<u64> = regions
        .iter()
        .flat_map(|(base, len)| *base..*base + *len)
        .collect();
    let end: u64 = regions[..=stop].iter().map(|(_, len)| len).sum();
    let room = usize::try_from(end - from).unwrap();
    let from = usize::try_from(from).unwrap();
    places[from..]
        .iter()
        .zip(&bytes[..room.min(bytes.len())])
        .map(|(place, byte)| (*place, *byte))
        .collect()
}

proptest! {
    /// Each byte lies where the table says, and nothing else changes.
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

    /// Whatever is written to the registers and the table, the device stays within what is mapped, and
    /// counts what it made.
    #[test]
    fn garbage_does_no_harm(
        writes in proptest::collection::vec((0u64..0x3100, any::<u64>(), 0usize..9, any::<bool>()), 0..60),
        table in proptest::collection::vec(any::<u64>(), 512),
        start in 0u64..0x20_0000,
    ) {
        let mut bench = round(INT, INT);
        for (n, entry) in (0u64..).zip(&table) {
            // Entries that are almost right.
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
