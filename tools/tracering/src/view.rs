// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks at the events of a buffer without consuming them.

use crate::error::Result;
use crate::map::{subbuf, Map};
use crate::subbuf::{Events, SubBuffer};

/// The unread events of a sub-buffer.
#[derive(Debug, Clone)]
pub struct Unread<'a> {
    /// Id of the sub-buffer.
    pub id: u32,
    /// The events that were not read.
    pub events: Events<'a>,
}

impl Map {
    /// All events that were not read, by sub-buffer, in the order in which the kernel wrote them. They stay in the buffer.
    ///
    /// Call this while `tracing_on` is 0: otherwise the writer reuses sub-buffers at the same time. The mapping does not contain the order
    /// of the sub-buffers, so they are sorted by the times at their beginnings.
    ///
    /// # Errors
    /// If the meta-page, a sub-buffer header or an event is not valid.
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
