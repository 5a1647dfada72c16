// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets of the PMU `pattern`.

use pattern_codec::{payload_word, Header, Kind, HEADER_LEN};

/// The header of a packet of stream 1 on CPU 1.
#[must_use]
pub fn header(kind: Kind, pos: u64, len: u16) -> Header {
    Header {
        len,
        kind,
        pos,
        time: pos,
        stream: 1,
        cpu: 1,
        seed: 7,
        run: 0,
    }
}

/// A packet with data of this stream.
#[must_use]
pub fn packet(stream: u32, pos: u64, len: u16) -> Vec<u8> {
    let header = Header {
        stream,
        ..header(Kind::Data, pos, len)
    };
    let mut out = header.encode().to_vec();
    for at in (pos..pos + u64::from(len)).step_by(8).skip(HEADER_LEN / 8) {
        out.extend(payload_word(header.seed, stream, at).to_le_bytes());
    }
    out
}

/// Packets of 64 bytes one after the other, from position `from` to `to`.
#[must_use]
pub fn packets(from: u64, to: u64) -> Vec<u8> {
    (from..to)
        .step_by(64)
        .flat_map(|pos| packet(1, pos, 64))
        .collect()
}

/// Padding of `len` bytes.
#[must_use]
pub fn pad(pos: u64, len: u16) -> Vec<u8> {
    let header = header(Kind::Pad, pos, len);
    (0..len / 64)
        .flat_map(|index| header.block(index))
        .collect()
}

/// A barrier, which reports that `lost` bytes are missing before it.
#[must_use]
pub fn barrier(pos: u64, lost: u64) -> Vec<u8> {
    header(Kind::Barrier, pos, 64).barrier(lost).to_vec()
}
