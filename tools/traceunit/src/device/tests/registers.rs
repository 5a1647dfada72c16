// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of reads and writes of registers.

use super::*;
use crate::flow::{Range, Wanted};
use crate::source::Request;

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
        (Write(CTRL, 0x8000), CTRL),
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
        event: true,
        ret_compression: false,
        psb_period: 8192,
        late: false,
    };
    assert_eq!(bench.device.unit(1).unwrap().instructions(), Some(asked));
    // `RUNNING` is set when the source has begun.
    assert_eq!(bench.read(STATUS), 0);
    bench.device.unit_mut(1).unwrap().runs();
    assert_eq!(bench.read(STATUS), 1);
    // The register is locked while the unit is enabled.
    bench.write(CPU + 0x80, 0);
    assert_eq!(bench.read(ERROR), 8);
    bench.write(CTRL, 0);
    assert_eq!((bench.read(STATUS), bench.read(ERROR_COUNT)), (0, 1));
    assert_eq!(bench.device.unit(1).unwrap().instructions(), None);
    bench.write(CTRL, PATTERN);
    assert_eq!(bench.device.unit(1).unwrap().instructions(), None);
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
    // A write to an upper half without its lower half.
    half(&mut bench, POSITION + 4, 9);
    assert_eq!(bench.read(POSITION), 3 << 32 | 7);
    half(&mut bench, TABLE, 0);
    half(&mut bench, POSITION + 4, 9);
    assert_eq!(
        (bench.read(POSITION), bench.read(ERROR_COUNT)),
        (3 << 32 | 7, 2)
    );
}
