// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Spare features, which the recorder writes at the beginning of a file. Recovery uses them if the recorder does not finish the file.

use crate::bytes::{to_u64, Cursor};
use crate::feature::{Feature, Features};
use crate::{Result, Section};

/// Magic number at the beginning of the spare features.
const SPARE_MAGIC: [u8; 8] = *b"AUXSPARE";

/// Encodes spare features. They are between the attributes and the data section, where other readers skip them.
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

/// Decodes bytes of [`to_bytes`]. Any other bytes give no sections.
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
    // An incomplete section is not used. Those before it are.
    let _ = step();
    out
}
