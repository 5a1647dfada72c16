// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replaces the ids of events in records that the kernel wrote.

use super::{RecordType, Records};
use crate::bytes::to_u64;
use crate::{Error, Result};

/// Replaces each event id for which `new` returns another one: in the sample ids, and in the fields of records that have an event id. The
/// records are as the kernel wrote them into a ring, and their events have `IDENTIFIER` and `SAMPLE_ID_ALL`.
///
/// # Errors
/// If the bytes are no records, or a record is too short for its type.
pub fn rename(records: &mut [u8], new: &dyn Fn(u64) -> Option<u64>) -> Result<()> {
    let mut places = Vec::new();
    for record in Records::new(records, 0) {
        let record = record?;
        if record.kind.is_user() {
            continue;
        }
        let end = record.body.len().saturating_sub(8);
        let in_body: &[usize] = match record.kind {
            RecordType::SAMPLE => &[0],
            RecordType::LOST => &[0, end],
            // Time, id and stream id. Without inheritance both ids are the same.
            RecordType::THROTTLE | RecordType::UNTHROTTLE => &[8, 16, end],
            _ => &[end],
        };
        for &at in in_body {
            let word = record.body.get(at..).and_then(<[u8]>::first_chunk);
            let id = word.map(|word| u64::from_le_bytes(*word));
            let id = id.ok_or(Error::Short {
                field: "sample_id.identifier",
                offset: record.offset,
                need: 8,
                have: to_u64(record.body.len()),
            })?;
            if let Some(id) = new(id) {
                places.push((
                    record.offset.saturating_add(8).saturating_add(to_u64(at)),
                    id,
                ));
            }
        }
    }
    for (at, id) in places {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(word) = records.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *word = id.to_le_bytes();
        }
    }
    Ok(())
}
