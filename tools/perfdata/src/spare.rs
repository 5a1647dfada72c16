// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Spare features: those that a file has from its beginning, in case that its recorder does not reach the end.

use crate::bytes::{to_u64, Cursor};
use crate::feature::{Feature, Features};
use crate::{Result, Section};

/// What the spare features begin with.
const SPARE_MAGIC: [u8; 8] = *b"AUXSPARE";

/// The features that are in the file from the beginning: as bytes between the attributes and the data section,
/// which other readers skip.
pub(crate) fn to_bytes(features: &Features) -> Vec<u8> {
    let mut out = SPARE_MAGIC.to_vec();
    out.extend(to_u64(features.iter().count()).to_le_bytes());
    for (number, bytes) in features.iter() {
        out.extend(u64::from(number).to_le_bytes());
        out.extend(to_u64(bytes.len()).to_le_bytes());
        out.extend(bytes);
    }
    out
}

/// Reads what [`to_bytes`] wrote; nothing if it is anything else.
pub(crate) fn parse(bytes: &[u8], base: u64) -> Vec<Section<'_>> {
    let mut c = Cursor::new(bytes, base);
    let mut out = Vec::new();
    let mut step = || -> Result<()> {
        if c.take(8, "spare.magic")? != SPARE_MAGIC {
            return Ok(());
        }
        let count = c.u64("spare.nr")?;
        for _ in 0..count.min(256) {
            let number = c.u64("spare.feature")?;
            let size = usize::try_from(c.u64("spare.size")?).unwrap_or(usize::MAX);
            let offset = c.offset();
            let bytes = c.take(size, "spare section")?;
            if let Ok(number) = u8::try_from(number) {
                out.push(Section {
                    feature: Feature(number),
                    offset,
                    bytes,
                });
            }
        }
        Ok(())
    };
    // What is not whole is not used.
    let _ = step();
    out
}
