// SPDX-License-Identifier: GPL-2.0

//! What a reader has seen of a trace, and whether that and the losses are all that was generated.

use super::Pattern;
use kernel::prelude::*;
use pattern_codec::{
    lost_before,
    verify_payload,
    Follow,
    Kind,
    Piece,
    Reader,
    HEADER_LEN, //
};
use perf::testing::Bench;

/// What a reader has seen of an event's trace.
pub(super) struct Seen {
    follow: Follow,
    pub(super) data: u64,
    pub(super) overhead: u64,
    /// Bytes missing between packets.
    pub(super) gaps: u64,
    pub(super) barriers: u64,
    /// Missing since the last data packet.
    gap: u64,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self {
            follow: Follow::from(0),
            data: 0,
            overhead: 0,
            gaps: 0,
            barriers: 0,
            gap: 0,
        }
    }

    /// Reads on: whole packets, whose every byte is right.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result {
        for piece in Reader::new(bytes) {
            let Piece::Packet(header, packet) = piece else {
                return Err(EBADMSG);
            };
            let payload = packet.get(HEADER_LEN..).ok_or(EINVAL)?;
            let len = u64::try_from(packet.len())?;
            let missing = self.follow.packet(&header).map_err(|_| ERANGE)?;

            verify_payload(&header, 40, payload).map_err(|_| EILSEQ)?;
            self.gaps += missing;
            self.gap += missing;
            if let Some(lost) = lost_before(&header, packet) {
                self.barriers += 1;
                if lost != self.gap {
                    return Err(EPROTO);
                }
            }
            if header.kind == Kind::Data {
                self.gap = 0;
                self.data += len;
            } else {
                self.overhead += len;
            }
        }
        Ok(())
    }

    /// Whether every byte that was generated is in the ring or is reported lost, and shows as a gap.
    pub(super) fn adds_up(&self, bench: &Bench<Pattern>) -> bool {
        let generated = u64::try_from(bench.counter()).unwrap_or(u64::MAX);
        let behind = generated - self.follow.reached();

        generated == self.data + bench.lost() && bench.lost() == self.gaps + behind
    }
}
