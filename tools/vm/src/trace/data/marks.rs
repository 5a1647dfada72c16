// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Marks a trace as that of a virtual machine: sets the bit `NR` (non-root operation) in each `PIP` packet.

/// Parses a trace in parts. A packet may be split between two parts.
#[derive(Debug, Default)]
pub(super) struct OfGuest {
    /// How many bytes of the current packet have been read.
    at: usize,
    /// The length of the packet, or 0 until its second byte determines it.
    len: usize,
    is_pip: bool,
    /// Whether the next byte continues a `CYC` packet.
    counts: bool,
}

impl OfGuest {
    /// Sets `NR` in the `PIP` packets of the next part.
    pub(super) fn mark(&mut self, part: &mut [u8]) {
        for byte in part {
            if self.counts {
                self.counts = *byte & 1 != 0;
                continue;
            }
            match self.at {
                0 if *byte & 3 == 3 => {
                    self.counts = *byte & 4 != 0;
                    continue;
                }
                0 => (self.len, self.is_pip) = (len(*byte), false),
                1 if self.len == 0 => {
                    (self.len, self.is_pip) = (len_extended(*byte), *byte == 0x43);
                }
                2 if self.is_pip => *byte |= 1,
                _ => {}
            }
            self.at += 1;
            if self.at == self.len {
                self.at = 0;
            }
        }
    }
}

/// The length of a packet that the trace unit writes, by its first byte. 0 if the second byte determines the kind of packet.
fn len(first: u8) -> usize {
    match first {
        0x02 => 0,
        // `TSC`, `MODE`, `MTC`.
        0x19 => 8,
        0x99 | 0x59 => 2,
        // `PAD` and a short `TNT`.
        _ if first & 1 == 0 => 1,
        // `TIP`, `FUP` and similar packets: the upper bits give the number of address bytes.
        _ => match first >> 5 {
            0 => 1,
            1 => 3,
            2 => 5,
            3 | 4 => 7,
            _ => 9,
        },
    }
}

/// The length of a packet whose kind the second byte determines.
fn len_extended(second: u8) -> usize {
    match second {
        // `PSB`, `PTW`, `PIP` and a long `TNT`, `TMA`, `CBR`.
        0x82 => 16,
        0x32 => 10,
        0x43 | 0xa3 => 8,
        0x73 => 7,
        0x03 => 4,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &[u8] = &[
        2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, // PSB
        0x19, 2, 0x43, 0, 0, 0, 0, 0, // TSC: not a PIP in it
        2, 0x43, 0, 0xcc, 0x22, 0, 0, 0, // PIP
        0x07, 0x03, 0x43, 0x02, 0x43, 0x04, // CYC of four bytes, CYC of one, TNT
        0x59, 0x02, 2, 0x73, 2, 0x43, 0, 2, 0, // MTC, TMA
        2, 0x23, // PSBEND
        0x99, 1, 0x71, 0x49, 2, 0x43, 0, 0xff, 0xff, // MODE.Exec, TIP.PGE
        2, 0xa3, 2, 0x43, 0, 0, 0, 0x80, // TNT
        2, 0x32, 2, 0x43, 0, 0, 2, 0x43, 0, 0, // PTW
        0x2d, 2, 0x43, 0x4d, 2, 0x43, 0, 0, 0x08, 0, // TIP, TIP, TNT, PAD
        2, 0x43, 0x10, 0, 0, 0, 0, 0, // PIP
        0x01, 2, 0x83, // TIP.PGD, TraceStop
    ];

    #[test]
    fn only_address_spaces_are_marked_wherever_the_trace_is_cut() {
        let mut want = TRACE.to_vec();
        want[26] |= 1;
        let second = TRACE.len() - 11 + 2;
        assert_eq!(TRACE[second], 0x10);
        want[second] |= 1;
        for size in 1..=TRACE.len() {
            let mut found = TRACE.to_vec();
            let mut marks = OfGuest::default();
            for part in found.chunks_mut(size) {
                marks.mark(part);
            }
            assert_eq!(found, want, "in parts of {size}");
        }
    }
}
