// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the trace of `pattern` in a ring: whether every byte is right, and where bytes are missing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, ensure, Context, Result};
use pattern_codec::{find_sync, payload_word, Header, Kind, HEADER_LEN};

/// What a range of bytes contains.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Content {
    /// Bytes of trace.
    pub trace: u64,
    /// Bytes of packets that carry no trace.
    pub overhead: u64,
    /// Missing bytes: the sum of the gaps in front of packets, within their streams.
    pub missing: u64,
    /// Where the gaps are, as positions in the ring.
    pub gaps: Vec<u64>,
    /// Bytes of padding.
    pub padding: u64,
    /// Barrier packets, which mark a loss before the next packet.
    pub barriers: u64,
    /// Gaps that no barrier marks.
    pub unmarked: u64,
    /// The streams, and the end position of each one.
    pub streams: BTreeMap<u32, u64>,
    /// The CPUs that wrote packets.
    pub cpus: BTreeSet<u16>,
}

/// Checks `bytes`, which begin at position `base` of the ring. If `overwritten`, they come from a ring in overwrite mode: the front of the
/// first packet may be missing, and bytes before a stream's first packet do not count as missing.
///
/// # Errors
/// Reports the first error and its position.
pub fn read(bytes: &[u8], base: u64, overwritten: bool) -> Result<Content> {
    let mut content = Content::default();
    let mut at = 0;
    // What the last barrier says about the next packet: stream, position, and bytes that are missing before it.
    let mut marked = None;

    if overwritten && base != 0 {
        at = find_sync(bytes).context("no packet begins anywhere")?;
        ensure!(
            at < usize::from(u16::MAX),
            "the first packet begins after {at} bytes: more than the rest of one"
        );
        content.trace += u64::try_from(at)?;
    }
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let place = base + u64::try_from(at)?;
        let header = Header::decode(rest).map_err(|e| anyhow::anyhow!("at {place:#x}: {e}"))?;
        let packet = rest.get(..header.len.into()).with_context(|| {
            format!(
                "at {place:#x}: a packet of {} bytes is cut after {}",
                header.len,
                rest.len()
            )
        })?;
        let len = u64::from(header.len);

        let lost = payload(&header, packet).with_context(|| format!("at {place:#x}"))?;
        at += packet.len();
        content.cpus.insert(header.cpu);
        if header.kind != Kind::Data {
            content.overhead += len;
            if header.kind == Kind::Barrier {
                content.barriers += 1;
                marked = Some((header.stream, header.pos, lost));
            } else {
                content.padding += len;
            }
            continue;
        }
        content.trace += len;
        let known = content.streams.contains_key(&header.stream) || !overwritten;
        let start = if overwritten { header.pos } else { 0 };
        let next = content.streams.entry(header.stream).or_insert(start);
        let Some(gap) = header.pos.checked_sub(*next) else {
            bail!(
                "at {place:#x}: a packet of position {} of stream {}, which had come to {next}",
                header.pos,
                header.stream
            );
        };
        *next = header.pos + len;
        let mark = marked.take();
        if let Some(mark) = mark.filter(|_| known) {
            ensure!(
                mark == (header.stream, header.pos, gap),
                "at {place:#x}: before position {} of stream {} {gap} bytes are missing, and the barrier says (stream, position, bytes) {mark:?}",
                header.pos,
                header.stream
            );
        }
        if gap != 0 {
            content.missing += gap;
            content.gaps.push(place);
            content.unmarked += u64::from(mark.is_none());
        }
    }
    Ok(content)
}

/// Checks that the payload matches the header. Returns the number of lost bytes that a barrier contains; 0 for other packets.
fn payload(header: &Header, packet: &[u8]) -> Result<u64> {
    let words = packet.get(HEADER_LEN..).unwrap_or_default();
    let first = header.pos.wrapping_add(u64::try_from(HEADER_LEN)?);
    let mut lost = 0;

    for (n, bytes) in words.chunks_exact(8).enumerate() {
        let pos = first.wrapping_add(8 * u64::try_from(n)?);
        let got = bytes.try_into().map_or(0, u64::from_le_bytes);
        let want = match header.kind {
            Kind::Data => payload_word(header.seed, header.stream, pos),
            Kind::Barrier if n == 0 => {
                lost = got;
                got
            }
            _ => 0,
        };
        ensure!(
            got == want,
            "the payload at position {pos} of stream {} is {got:#x} and must be {want:#x}",
            header.stream
        );
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn packet(kind: Kind, stream: u32, pos: u64) -> Vec<u8> {
        let header = Header {
            len: 128,
            kind,
            pos,
            time: 1,
            stream,
            cpu: 1,
            seed: 7,
            run: 0,
        };
        let mut out = header.encode().to_vec();
        for offset in (40..128).step_by(8) {
            let word = match kind {
                Kind::Data => header.payload_word(offset),
                Kind::Barrier if offset == 40 => 128,
                _ => 0,
            };
            out.extend(word.to_le_bytes());
        }
        out
    }

    #[test]
    fn what_is_missing_is_counted() {
        let mut bytes = packet(Kind::Data, 1, 0);
        bytes.extend(packet(Kind::Data, 2, 128));
        bytes.extend(packet(Kind::Barrier, 1, 256));
        bytes.extend(packet(Kind::Data, 1, 256));
        let content = read(&bytes, 0, false).unwrap();
        assert_eq!(
            (content.trace, content.overhead, content.missing),
            (384, 128, 256)
        );
        assert_eq!(content.gaps, [128, 384]);
        assert_eq!((content.barriers, content.unmarked), (1, 1));
        assert_eq!(
            content.streams.into_iter().collect::<Vec<_>>(),
            [(1, 384), (2, 256)]
        );
        // In overwrite mode, bytes before a stream's first packet do not count as missing.
        let cut = read(&bytes[40..], 5040, true).unwrap();
        assert_eq!((cut.trace, cut.missing), (384 - 40, 0));
    }

    #[test]
    fn what_is_wrong_is_found() {
        let good = packet(Kind::Data, 1, 0);
        let mut flipped = good.clone();
        flipped[100] ^= 1;
        let mut barrier = packet(Kind::Barrier, 1, 0);
        barrier.extend(&good);
        let mut twice = good.clone();
        twice.extend(&good);
        for (bytes, says) in [
            (flipped, "payload"),
            (twice, "had come to 128"),
            (barrier, "0 bytes are missing, and the barrier says"),
            (good[..100].to_vec(), "is cut"),
            (good[8..].to_vec(), "no packet starts"),
        ] {
            let error = format!("{:#}", read(&bytes, 0, false).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
