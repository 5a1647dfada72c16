// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A buffer that is looked at, and not read.

use crate::error::Result;
use crate::map::{subbuf, Map};
use crate::subbuf::{Events, SubBuffer};

/// Events of a sub-buffer that are looked at, and not read.
#[derive(Debug, Clone)]
pub struct Unread<'a> {
    /// Which sub-buffer it is.
    pub id: u32,
    /// Its events.
    pub events: Events<'a>,
}

impl Map {
    /// All events that were not read, by sub-buffers in the order in which they were written; they stay where they are.
    ///
    /// Call this while `tracing_on` is 0: a writer reuses sub-buffers while they are looked at. The mapping does not have their
    /// order, so they are sorted by the times at their beginnings.
    ///
    /// # Errors
    /// If what the kernel wrote makes no sense.
    pub fn view(&self) -> Result<Vec<Unread<'_>>> {
        let meta = self.meta()?;
        let mut found = Vec::new();
        for id in 0..meta.nr_subbufs {
            let sub = SubBuffer::parse(&self.header, subbuf(&self.mapping, &meta, id)?)?;
            let start = if id == meta.reader.id {
                let read = usize::try_from(meta.reader.read).unwrap_or(usize::MAX);
                self.position.resume(id, &sub, read)?
            } else {
                sub.start()
            };
            if start.at < sub.len() {
                let events = sub.part(start, sub.len())?;
                found.push((
                    id != meta.reader.id,
                    sub.time_stamp(),
                    Unread { id, events },
                ));
            }
        }
        found.sort_by_key(|(later, time, _)| (*later, *time));
        Ok(found.into_iter().map(|(_, _, unread)| unread).collect())
    }
}
