// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The interrupt descriptor table of the guest: the vectors of its handlers.

use std::collections::HashMap;

/// Address of each CPU's IDT in Linux: `CPU_ENTRY_AREA_RO_IDT_VADDR`. QEMU has no interface by which a plugin can read the IDT register.
pub const ADDRESS: u64 = 0xffff_fe00_0000_0000;

/// Length of a gate, in bytes.
const GATE: usize = 16;

/// Length of an IDT, in bytes.
pub const LEN: usize = GATE << 8;

/// The vectors of an IDT, by the addresses of their handlers.
#[must_use]
pub fn handlers(idt: &[u8]) -> HashMap<u64, u8> {
    let handler = |gate: &[u8]| match *gate {
        // The gate is present.
        [a, b, _, _, _, kind, c, d, e, f, g, h, ..] if kind >> 7 == 1 => {
            Some(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
        }
        _ => None,
    };
    let gates = idt.chunks(GATE).zip(0..=u8::MAX);
    gates
        .filter_map(|(gate, vector)| Some((handler(gate)?, vector)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_has_the_vector_of_its_gate() {
        let mut idt = vec![0; LEN];
        for (vector, present) in [(14, 0x8e), (15, 0x0e), (0xec, 0xee)] {
            let at = usize::from(vector) * GATE;
            idt[at..at + 12].copy_from_slice(&[
                vector, 0x20, 0x10, 0, 1, present, 0, 0x81, 0xff, 0xff, 0xff, 0xff,
            ]);
        }
        let want = [(0xffff_ffff_8100_200e, 14), (0xffff_ffff_8100_20ec, 0xec)];
        assert_eq!(handlers(&idt), want.into());
        assert!(handlers(&idt[..GATE * 14 + 8]).is_empty());
    }
}
