// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The mapped buffer of a CPU.
//!
//! # Which side may write what, and when
//!
//! Writers (the CPU's own code) and one consumer share the sub-buffers. All sub-buffers but one are in the writer's ring. The other one,
//! the reader sub-buffer, is the consumer's. `TRACE_MMAP_IOCTL_GET_READER` does one of two things, under the kernel's `reader_lock`:
//!
//! - If the reader sub-buffer has events that are not accounted as read, the kernel accounts for all events committed so far. It sets
//!   `reader.read` to the end of these events, and changes nothing else.
//! - If it has no such events, and is not the writer's current sub-buffer, the kernel empties it and puts it into the writer's ring. The
//!   oldest sub-buffer of the ring becomes the reader sub-buffer. If events were overwritten, the kernel adds
//!   [`RB_MISSED_EVENTS`](crate::RB_MISSED_EVENTS) to the commit of that sub-buffer. It then accounts for the events as in the first case.
//!
//! The reader sub-buffer may still be the writer's current one: the kernel can swap it out while it is the commit page. The writer then
//! stores more events behind `reader.read`, and larger commits, but does not change earlier events. So the events before `reader.read` are
//! stable until the next `GET_READER` of the consumer.
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
//! - (B): `GET_READER` is a system call of the consumer's own thread, so its load of the commit precedes the consumer's loads in program
//!   order. On a machine whose system calls are barriers, (B) alone suffices. (B) is part of the kernel.
//! - (C) does not need such a system call. It pairs with (A): the events that a commit includes are visible to the consumer that has loaded
//!   the commit. This is necessary if another consumer, on another processor, made the kernel update the meta-page.
//! - (D): the loads of events precede the system call that returns the sub-buffer to the writer. The lock and the cmpxchg of that call
//!   order the loads before the writer's next stores.
//!
//! The model in `tests/model.rs` fails without any one of (A), (C), (D) and (E); (E) is explained below.
//!
//! # Two consumers
//!
//! Any number of processes can map and read one buffer, and the kernel keeps one position for all of them. If consumers map it and take
//! turns, each event is seen once. If they do not take turns, one makes the kernel return a sub-buffer to the writer while another reads
//! it. [`Reader::verify`] detects whether that has happened since the [`Reader`] was created. The kernel sets commit and time stamp to 0
//! before the writer gets a sub-buffer, with the full barrier of a cmpxchg in between. So a consumer that has loaded an event of the next
//! use sees another time stamp after an acquire fence (E).
//!
//! A consumer that uses `read` or `splice` does not update the meta-page, so a mapping shows the same events again.

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

/// Position of the reader: the reader sub-buffer, and how far it was read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    /// Id of the sub-buffer; [`None`] before the first one.
    id: Option<u32>,
    /// The time at the beginning of the sub-buffer. It differs if the same id is in use again.
    time_stamp: u64,
    cursor: Cursor,
}

impl Position {
    /// The cursor at byte `at` of a sub-buffer. The events are walked from this position if it is one of that sub-buffer, and from the
    /// beginning otherwise.
    pub(crate) fn resume(&self, id: u32, sub: &SubBuffer<'_>, at: usize) -> Result<Cursor> {
        let known =
            self.id == Some(id) && self.time_stamp == sub.time_stamp() && self.cursor.at <= at;
        let from = if known { self.cursor } else { sub.start() };
        walk(sub.part(from, at)?)
    }
}

/// A mapped buffer.
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
    /// [`Error::NoMapping`] if the kernel cannot map it: use a [`Stream`](crate::Stream).
    pub fn open(path: impl AsRef<Path>, header: PageHeader) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = open(&path)?;
        let no = |e: &io::Error| no_mapping(&path, e);
        // Another file could be truncated while it is mapped.
        let of = rustix::fs::fstatfs(&file).map_err(|e| refused(&path, &e.into()))?;
        if of.f_type != TRACEFS_MAGIC {
            return Err(Error::failed(format!(
                "{}: it is no file of tracefs: give the trace_pipe_raw of a CPU",
                path.display()
            )));
        }
        // Map only the meta-page first: it has the sizes. They do not change while it is mapped.
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
    /// If it has values that no kernel writes, or if the sizes have changed since the buffer was mapped.
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

    /// The events since the last call, or those of the next sub-buffer; [`None`] if there are none.
    ///
    /// The kernel accounts for them as read, even if the caller does not iterate over all of them. This does not wait: see [`Map::wait`].
    ///
    /// A second call is not possible while a reader exists, as the call can return its sub-buffer to the writer:
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
    /// Nor is it possible while bytes of an event are borrowed:
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
    /// If the kernel refuses, or the buffer has values that no kernel writes.
    pub fn reader(&mut self) -> Result<Option<Reader<'_>>> {
        // The kernel moves `reader.read` and does not report the old value, so load it before.
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

    /// Waits until the buffer is as full as `buffer_percent` requires. Returns false if the timeout expires, or a signal comes, before.
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

/// The cursor behind the last event.
fn walk(mut events: Events<'_>) -> Result<Cursor> {
    for event in events.by_ref() {
        event?;
    }
    Ok(events.cursor())
}

/// Events of a sub-buffer, or some of them, that the kernel has accounted for as read.
///
/// Dropping the reader skips the rest of its events.
#[derive(Debug)]
pub struct Reader<'a> {
    events: Events<'a>,
    missed: Missed,
    /// The sub-buffer in a mapping, the offset of its time stamp, and the value of that.
    taken: Option<(Bytes<'a>, usize, u64)>,
    position: Option<&'a mut Position>,
}

impl<'a> Reader<'a> {
    /// A reader of all events of a copied sub-buffer.
    pub(crate) fn copied(sub: &SubBuffer<'a>) -> Self {
        Self {
            events: sub.events(),
            missed: sub.missed(),
            taken: None,
            position: None,
        }
    }

    /// The events lost before these.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// Checks that the sub-buffer was not reused while it was read: all events read so far are then valid.
    ///
    /// # Errors
    /// If another consumer has made the kernel return the sub-buffer to the writer meanwhile.
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
        // The next call skips the remaining events, but has to add up their times from this cursor on.
        if let Some(position) = &mut self.position {
            position.cursor = self.events.cursor();
        }
    }
}

/// Opens a file in non-blocking mode. Only [`wait`] waits.
pub(crate) fn open(path: &Path) -> Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.map_err(|e| refused(path, &e))
}

fn page_size() -> usize {
    rustix::param::page_size()
}

/// The error for a buffer that cannot be mapped.
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
