// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;

/// The number of bytes in the text.
const LEN: usize = 8 * PLACES;

/// The results of both decoders for these bytes, in a text that has `len` of them.
fn decoded(bytes: &[u8], start: usize, len: usize) -> [Option<(Op, Next)>; 2] {
    const IP: u64 = 0x7fff_0000;

    let mut text = [0xff; LEN];
    text[start..start + bytes.len()].copy_from_slice(bytes);
    let words = std::array::from_fn(|at| {
        let bytes = text[8 * at..][..8].try_into();
        u64::from_le_bytes(bytes.unwrap())
    });
    let end = start + len;
    let [mut frequent, mut any] = [Op::EMPTY; 2];
    let text = Text {
        words: &words,
        ip: IP,
        end,
    };
    let by_table = frequent.decode_at(text, start).map(|next| (frequent, next));
    let by_function = any
        .decode(&bytes[..len], text.at(start))
        .map(|()| (any, Next::of(any.what)));

    [by_table, by_function]
}

#[test]
fn tables_and_functions_decode_alike() {
    let rex = || (0x40..=0x4f).map(|rex| vec![rex]);
    let mut prefixes = vec![Vec::new()];
    prefixes.extend(rex());
    for prefix in [0x66, 0xf2, 0xf3] {
        prefixes.push(vec![prefix]);
        prefixes.extend(rex().map(|rex| [vec![prefix], rex].concat()));
    }
    // VEX of two bytes, which includes REX.
    prefixes.extend((0..=u8::MAX).map(|vex| vec![0xc5, vex]));
    let mut seed = 1_u64;
    let mut frequent = 0;

    for prefix in &prefixes {
        for opcode in 0..512_u16 {
            let [opcode, second] = opcode.to_le_bytes();
            // VEX alone makes 256 prefixes, so each opcode is tested with a sixteenth of all ModRM
            // bytes.
            let every = if prefix.first() == Some(&0xc5) { 16 } else { 1 };
            for modrm in (opcode % every..=u8::MAX).step_by(every.into()) {
                let mut bytes = prefix.clone();
                if second != 0 {
                    bytes.push(0x0f);
                }
                bytes.extend([opcode, modrm]);
                // SIB, displacement and immediate.
                seed = seed.wrapping_mul(6_364_136_223_846_793_005) + 1;
                bytes.extend((seed >> 3).to_be_bytes());
                bytes.extend(seed.to_be_bytes());
                bytes.truncate(LEN_MAX);
                let start = usize::from(modrm) % 13 * 3;

                let [by_table, by_function] = decoded(&bytes, start, bytes.len());
                assert_eq!(by_table, by_function, "{bytes:02x?} at {start}");
                let Some((op, _)) = by_table else {
                    continue;
                };
                frequent += 1;
                // The text ends before the last byte of the instruction.
                let less = decoded(&bytes, start, usize::from(op.len) - 1);
                assert_eq!(less, [None, None], "{bytes:02x?} at {start}");
            }
        }
    }
    assert!(frequent > 1_000_000, "{frequent}");
}
