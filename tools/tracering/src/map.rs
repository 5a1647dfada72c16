// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A CPU's buffer that is mapped.
//!
//! # Which side may write what, and when
//!
//! Writers (the CPU's own code) and one consumer share the sub-buffers. All but one are in the writer's ring. That one, the
//! reader sub-buffer, is the consumer's. `TRACE_MMAP_IOCTL_GET_READER` does one of two things, under the kernel's
//! `reader_lock`:
//!
//! - The reader sub-buffer has events that are not accounted as read: the kernel accounts for all that are committed now,
//!   sets `reader.read` behind them, and changes nothing else.
//! - It has none, and the writer has left it: the kernel puts it, emptied, into the writer's ring, and takes the oldest
//!   sub-buffer out, which becomes the reader sub-buffer. If events were overwritten, the kernel adds
//!   [`RB_MISSED_EVENTS`](crate::RB_MISSED_EVENTS) to its commit. It then accounts for it as in the first case.
//!
//! The writer may still be on the reader sub-buffer: it is taken out of the ring while it is the commit page. It then stores
//! more events behind `reader.read`, and larger commits, but does not change what is before. So the events before
//! `reader.read` are stable until the next `GET_READER` of the consumer.
//!
//! # Order
//!
//! ```text
//!   writer                               kernel, in GET_READER       consumer
//!   STORE event
//!   (A) smp_wmb, rb_set_commit_to_write
//!   STORE commit                         LOAD commit
//!                                        (B) smp_rmb
//!                                        STORE reader.read           LOAD reader.read
//!                                        return to user              LOAD commit
//!                                                                    (C) acquire
//!                                                                    LOAD event
//!                                                                    (D) the next GET_READER
//!   STORE event, in a later round        emptied, cmpxchg
//! ```
//!
//! `GET_READER` is a system call of the consumer's own thread, so its loads of the commit come before the consumer's loads in
//! program order. (B) alone would do on a machine whose system calls are barriers. (C) makes no such assumption: whatever
//! commit the consumer itself loads, the events that it includes are visible, as (C) pairs with (A). It is needed where
//! another consumer had the kernel update the meta-page, on another processor. (D): the loads of events come before the
//! system call that gives the sub-buffer back, whose lock and cmpxchg order them before the writer's next stores. The model
//! in `tests/model.rs` fails without any one of (A), (C), (D) and (E), below; (B) is the kernel's own affair.
//!
//! # Two consumers
//!
//! The kernel lets any number of processes map and read one buffer, and keeps one position for all. Consumers that map it
//! and take turns see each event once. Without turns, one has the kernel give a sub-buffer back while the other reads it.
//! [`Reader::verify`] finds out whether that happened since the [`Reader`] was made: the kernel sets commit and time stamp to 0
//! before the writer gets a sub-buffer, with the full barrier of a cmpxchg between. So a consumer that has loaded an event of
//! the next round sees, behind an acquire fence (E), another time stamp.
//!
//! A consumer by `read` or `splice` does not update the meta-page, so a mapping shows its events again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::fence;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::header::PageHeader;
use crate::meta::Meta;
use crate::order::load_last;
use crate::subbuf::{Cursor, Event, Events, Missed, SubBuffer};
use crate::sys::{get_reader, Bytes, Mapping};
use crate::tracefs::refused;

/// `TRACEFS_MAGIC` of `linux/magic.h`.
const TRACEFS_MAGIC: rustix::fs::FsWord = 0x7472_6163;

/// Which sub-buffer is the reader's, and how far it was read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    /// Its id; [`None`] before the first.
    id: Option<u32>,
    /// The time at its beginning, which tells it from a later one with the same id.
    time_stamp: u64,
    cursor: Cursor,
}

impl Position {
    /// Where byte `at` of this sub-buffer is: from here on, if this is about it, and otherwise from its beginning.
    pub(crate) fn resume(&self, id: u32, sub: &SubBuffer<'_>, at: usize) -> Result<Cursor> {
        let known =
            self.id == Some(id) && self.time_stamp == sub.time_stamp() && self.cursor.at <= at;
        let from = if known { self.cursor } else { sub.start() };
        walk(sub.part(from, at)?)
    }
}

/// A buffer that is mapped.
#[derive(Debug)]
pub struct Map {
    file: File,
    path: PathBuf,
    pub(crate) mapping: Mapping,
    meta: Meta,
    pub(crate) header: PageHeader,
    pub(crate) position: Position,
}

impl Map {
    /// Maps the buffer of this `trace_pipe_raw`, whose sub-buffers have this header.
    ///
    /// While it is mapped, the kernel refuses to resize the buffer or its sub-buffers, and to take snapshots.
    ///
    /// # Errors
    /// [`Error::NoMapping`] if the kernel cannot map it; see [`Stream`].
    pub fn open(path: impl AsRef<Path>, header: PageHeader) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = open(&path)?;
        let no = |e: &io::Error| no_mapping(&path, e);
        // Of another file, bytes could vanish from under the mapping.
        let of = rustix::fs::fstatfs(&file).map_err(|e| refused(&path, &e.into()))?;
        if of.f_type != TRACEFS_MAGIC {
            return Err(Error::failed(format!(
                "{}: it is no file of tracefs: give the trace_pipe_raw of a CPU",
                path.display()
            )));
        }
        // The front of it, first: it says how long all is. While it is mapped, that does not change.
        let front = Mapping::new(&file, page_size()).map_err(|e| no(&e))?;
        let meta = Meta::parse(front.bytes())?;
        let size = usize::try_from(meta.subbuf_size).ok();
        if size != Some(header.subbuf_size()) {
            return Err(Error::failed(format!(
                "{}: sub-buffers have {} bytes, and header_page says {}: read header_page again",
                path.display(),
                meta.subbuf_size,
                header.subbuf_size()
            )));
        }
        let len = meta.map_len().unwrap_or(usize::MAX);
        let mapping = Mapping::new(&file, len).map_err(|e| no(&e))?;
        drop(front);
        Ok(Self {
            file,
            path,
            mapping,
            meta,
            header,
            position: Position::default(),
        })
    }

    /// The meta-page, as the kernel last updated it.
    ///
    /// # Errors
    /// If it has numbers that no kernel writes, or other sizes than when it was mapped.
    pub fn meta(&self) -> Result<Meta> {
        let meta = Meta::parse(self.mapping.bytes())?;
        let sizes = |meta: &Meta| (meta.meta_page_size, meta.subbuf_size, meta.nr_subbufs);
        if sizes(&meta) != sizes(&self.meta) {
            let why = format!(
                "sizes have changed from {:?} to {:?}",
                sizes(&self.meta),
                sizes(&meta)
            );
            return Err(Error::malformed("meta-page", 0, why));
        }
        Ok(meta)
    }

    /// The events that came since the last time, or those of the next sub-buffer; [`None`] if there are none.
    ///
    /// The kernel accounts them as read. Those that the caller does not look at are gone. It does not wait: see [`Map::wait`].
    ///
    /// The next events cannot be asked for while a reader is held, as that gives its sub-buffer back to the writer:
    ///
    /// ```compile_fail,E0499
    /// fn two(map: &mut tracering::Map) -> tracering::Result<()> {
    ///     let first = map.reader()?;
    ///     let second = map.reader()?;
    ///     drop((first, second));
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Nor while bytes of an event are:
    ///
    /// ```compile_fail,E0499
    /// fn kept(map: &mut tracering::Map) -> tracering::Result<Option<u8>> {
    ///     let event = map.reader()?.and_then(|mut reader| reader.next()?.ok());
    ///     map.reader()?;
    ///     Ok(event.and_then(|event| event.data.u8(0)))
    /// }
    /// ```
    ///
    /// # Errors
    /// If the kernel refuses, or what it wrote makes no sense.
    pub fn reader(&mut self) -> Result<Option<Reader<'_>>> {
        // The kernel moves `reader.read` without saying from where, so that must be known before.
        let before = self.meta()?.reader;
        get_reader(&self.file).map_err(|e| refused(&self.path, &e))?;
        let meta = self.meta()?;
        let page = subbuf(&self.mapping, &meta, meta.reader.id)?;
        let sub = SubBuffer::parse(&self.header, page)?;
        let end = usize::try_from(meta.reader.read).unwrap_or(usize::MAX);
        let (cursor, missed) = if before.id == meta.reader.id {
            let read = usize::try_from(before.read).unwrap_or(usize::MAX);
            (
                self.position.resume(meta.reader.id, &sub, read)?,
                Missed::No,
            )
        } else {
            (sub.start(), sub.missed())
        };
        self.position = Position {
            id: Some(meta.reader.id),
            time_stamp: sub.time_stamp(),
            cursor,
        };
        if cursor.at == end {
            return Ok(None);
        }
        let events = sub.part(cursor, end)?;
        Ok(Some(Reader {
            events,
            missed,
            taken: Some((page, self.header.time_stamp, sub.time_stamp())),
            position: Some(&mut self.position),
        }))
    }

    /// Waits until the buffer is as full as `buffer_percent` says; whether it is, and not just that the time is over.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        wait(&self.path, self.file.as_fd(), timeout)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A sub-buffer of a mapping.
pub(crate) fn subbuf<'a>(mapping: &'a Mapping, meta: &Meta, id: u32) -> Result<Bytes<'a>> {
    let page = meta.subbuf(id).and_then(|range| mapping.bytes().get(range));
    page.ok_or_else(|| Error::malformed("meta-page", 24, format!("no sub-buffer {id}")))
}

/// How far the events go.
fn walk(mut events: Events<'_>) -> Result<Cursor> {
    for event in events.by_ref() {
        event?;
    }
    Ok(events.cursor())
}

/// Events that the kernel has accounted as read by this consumer: those of a sub-buffer, or a part of them.
///
/// When it is dropped, the rest of its events is skipped.
#[derive(Debug)]
pub struct Reader<'a> {
    events: Events<'a>,
    missed: Missed,
    /// The sub-buffer in a mapping, where its time stamp is, and what that was.
    taken: Option<(Bytes<'a>, usize, u64)>,
    position: Option<&'a mut Position>,
}

impl<'a> Reader<'a> {
    /// All events of a copy of a sub-buffer.
    pub(crate) fn copied(sub: &SubBuffer<'a>) -> Self {
        Self {
            events: sub.events(),
            missed: sub.missed(),
            taken: None,
            position: None,
        }
    }

    /// What was lost before these events.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// Finds out whether all that was read until now is what the kernel wrote for this consumer.
    ///
    /// # Errors
    /// If another consumer has had the kernel give the sub-buffer to the writer meanwhile.
    pub fn verify(&self) -> Result<()> {
        let Some((page, at, before)) = self.taken else {
            return Ok(());
        };
        if load_last(fence, || page.u64(at)) == Some(before) {
            return Ok(());
        }
        Err(Error::failed(
            "another consumer of this buffer took the sub-buffer away while it was read: have only one",
        ))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Event<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.events.next()
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // The events that the caller did not take are skipped by the next read, which still has to add up their times.
        if let Some(position) = &mut self.position {
            position.cursor = self.events.cursor();
        }
    }
}

/// Opens it so that no call waits: waiting is `poll`'s.
pub(crate) fn open(path: &Path) -> Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.map_err(|e| refused(path, &e))
}

fn page_size() -> usize {
    rustix::param::page_size()
}

/// Why a buffer is not mapped.
fn no_mapping(path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    match Errno::from_io_error(error) {
        Some(Errno::NODEV) => Error::NoMapping(format!(
            "{path}: this kernel cannot map it: it is older than 6.10, or the buffer is at a fixed address (memmap=) or a copy of another's; read it instead"
        )),
        Some(Errno::BUSY) => Error::NoMapping(format!(
            "{path}: the kernel does not map it while its instance uses a snapshot: free that (echo 0 > snapshot), or read it"
        )),
        Some(Errno::TOOBIG) => Error::NoMapping(format!(
            "{path}: it has too many sub-buffers to be mapped: make it smaller (buffer_size_kb), or read it"
        )),
        _ => Error::failed(format!("{path}: it cannot be mapped: {error}")),
    }
}

pub(crate) fn wait(path: &Path, fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(n) => Ok(n != 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(refused(path, &e.into())),
    }
}

#[cfg(test)]
mod tests;
