// SPDX-License-Identifier: GPL-2.0

//! perf's half of a ring, with its records, and what a driver can do wrong to it.

use crate::{
    aux::{
        core::{
            Handle,
            Refusal, //
        },
        Mode,
        Pages, //
    },
    bindings, //
};
use auxcore::ring::{
    Pos,
    Size, //
};
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::prelude::*;

/// A `PERF_RECORD_AUX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// `aux_offset`: where the trace begins; in overwrite mode, where it ends.
    pub offset: u64,
    /// `aux_size`: bytes of trace.
    pub size: u64,
    /// `flags`: `PERF_AUX_FLAG_*`.
    pub flags: u64,
}

impl Record {
    fn has(&self, flag: c_uint) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// `PERF_AUX_FLAG_TRUNCATED`: the ring was full, and perf has disabled the event.
    pub fn is_truncated(&self) -> bool {
        self.has(bindings::PERF_AUX_FLAG_TRUNCATED)
    }

    /// `PERF_AUX_FLAG_OVERWRITE`: the ring is in overwrite mode.
    pub fn is_overwrite(&self) -> bool {
        self.has(bindings::PERF_AUX_FLAG_OVERWRITE)
    }

    /// `PERF_AUX_FLAG_PARTIAL`: trace is missing.
    pub fn is_partial(&self) -> bool {
        self.has(bindings::PERF_AUX_FLAG_PARTIAL)
    }

    /// `PERF_AUX_FLAG_COLLISION`: samples collided.
    pub fn is_collision(&self) -> bool {
        self.has(bindings::PERF_AUX_FLAG_COLLISION)
    }

    /// The number of the [format](crate::aux::Format) of the trace.
    pub fn format(&self) -> u8 {
        let [_, format, ..] = self.flags.to_le_bytes();

        format
    }
}

/// Padding that a driver has [skipped](crate::aux::Transaction::skip).
#[derive(Clone, Copy, Debug)]
pub struct Padding<'a> {
    /// The position of its first byte.
    pub offset: u64,
    /// The bytes in the ring at the time of the AUX record, which a reader may expect.
    pub bytes: &'a [u8],
}

/// A violation of perf's contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A transaction was begun while another was open on the ring.
    Nested,
    /// A transaction was begun on a handle that had one open, which would leak.
    HandleInUse,
    /// A transaction was begun after a truncated one, before the event was disabled.
    BegunWhileDisabled,
    /// A transaction was ended that was not open.
    NotOpen,
    /// A transaction was ended with more bytes than there was space for.
    TooLong,
    /// A ring in overwrite mode was truncated: the event is off, and no reader makes space.
    TruncatedOverwrite,
    /// The ring was freed with a transaction open.
    FreedOpen,
    /// A sample was given more than it has space for.
    SampleTooLong,
    /// A timer was armed where perf's caller may hold any raw lock, that of the timers included.
    ArmedUnderLock,
    /// There was no space for a [`Record`] or a [`Padding`]: the test itself has a problem.
    NoMemory,
    /// The event's CPU went offline during the test: the test itself has a problem.
    Offline,
}

/// The most records, and the most bytes of padding. Space for them is allocated with the ring,
/// since callbacks write them under raw locks, where nothing may be allocated.
const MAX_RECORDS: usize = 1024;
const MAX_PADDING: usize = 32 * 1024;

/// A sample that is being written. It stands for the handle of perf's record.
pub(super) struct Sampled<'a> {
    space: &'a mut [u8],
    len: usize,
}

impl<'a> Sampled<'a> {
    /// An empty sample, with as much space as `space` has.
    pub(super) fn new(space: &'a mut [u8]) -> Self {
        Self { space, len: 0 }
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a byte. False if there is no space.
    fn push(&mut self, byte: u8) -> bool {
        let place = self.space.get_mut(self.len);

        place.is_some_and(|place| {
            *place = byte;
            self.len += 1;
            true
        })
    }

    /// The sample in the form that perf passes. It must not be accessed meanwhile.
    pub(super) fn as_record(&mut self) -> NonNull<bindings::perf_output_handle> {
        NonNull::from(self).cast()
    }
}

/// perf's half of a ring: what `struct perf_buffer` has.
pub(super) struct Ring {
    head: Pos,
    tail: Pos,
    wakeup: Pos,
    watermark: u64,
    size: Size,
    mode: Mode,
    open: bool,
    begun: u64,
    unmapping: bool,
    private: *mut c_void,
    pages: Option<Pages>,
    records: KVec<Record>,
    /// Position and length of each padding. Their bytes are in `padded`, one behind the other.
    paddings: KVec<(u64, usize)>,
    padded: KVec<u8>,
    disabled: bool,
    violation: Option<Violation>,
}

impl Ring {
    /// An empty ring that is not mapped.
    pub(super) fn new(size: Size, watermark: u64, mode: Mode) -> Result<Self> {
        Ok(Self {
            head: Pos::new(0),
            tail: Pos::new(0),
            wakeup: Pos::new(0),
            watermark,
            size,
            mode,
            open: false,
            begun: 0,
            unmapping: false,
            private: ptr::null_mut(),
            pages: None,
            records: KVec::with_capacity(MAX_RECORDS, GFP_KERNEL)?,
            paddings: KVec::with_capacity(MAX_RECORDS, GFP_KERNEL)?,
            padded: KVec::with_capacity(MAX_PADDING, GFP_KERNEL)?,
            disabled: false,
            violation: None,
        })
    }

    pub(super) fn head(&self) -> Pos {
        self.head
    }

    pub(super) fn set_head(&mut self, head: u64) {
        self.head = Pos::new(head);
    }

    pub(super) fn set_tail(&mut self, tail: u64) {
        self.tail = Pos::new(tail);
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a transaction is open.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// How many transactions have been begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn paddings(&self) -> impl ExactSizeIterator<Item = Padding<'_>> {
        let mut rest: &[u8] = &self.padded;

        self.paddings.iter().map(move |&(offset, len)| {
            let (bytes, behind) = rest.split_at_checked(len).unwrap_or_default();

            rest = behind;
            Padding { offset, bytes }
        })
    }

    /// Whether perf has disabled the event.
    pub(super) fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// User space enables the event again.
    pub(super) fn enable(&mut self) {
        self.disabled = false;
    }

    /// The first violation.
    pub(super) fn violation(&self) -> Option<Violation> {
        self.violation
    }

    pub(super) fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn violate_if(&mut self, is_so: bool, violation: Violation) {
        if is_so {
            self.violate(violation);
        }
    }

    pub(super) fn is_mapped(&self) -> bool {
        !self.private.is_null()
    }

    /// Maps the ring, with this `aux_priv`. `pages` stay until it is unmapped.
    pub(super) fn map(&mut self, private: *mut c_void, pages: Pages) {
        self.private = private;
        self.pages = Some(pages);
        self.unmapping = false;
    }

    /// Replaces the ring's `aux_priv`, and returns the old one.
    pub(super) fn replace_private(&mut self, private: *mut c_void) -> *mut c_void {
        core::mem::replace(&mut self.private, private)
    }

    /// From now on no transaction can be begun.
    pub(super) fn begin_unmap(&mut self) {
        self.unmapping = true;
    }

    /// Returns the `aux_priv` that must be freed, if there is one.
    pub(super) fn end_unmap(&mut self) -> Option<NonNull<c_void>> {
        // `WARN_ON_ONCE(refcount_read(&rb->aux_refcount))`.
        self.violate_if(self.open, Violation::FreedOpen);
        self.pages = None;

        NonNull::new(core::mem::replace(&mut self.private, ptr::null_mut()))
    }

    /// The beginning and the end of the trace that user space has not read.
    pub(super) fn unread(&self) -> (Pos, Pos) {
        let from = match self.mode {
            // User space may set any tail. If it is not within the ring's size of the head, there
            // is nothing to read.
            Mode::Normal if self.size.used(self.head, self.tail).is_none() => self.head,
            Mode::Normal => self.tail,
            Mode::Overwrite => self.head.retreat(self.head.get().min(self.size.len())),
        };

        (from, self.head)
    }

    pub(super) fn begin(&mut self, handle: &mut Handle) -> Result<NonNull<c_void>, Refusal> {
        self.violate_if(!handle.0.event.is_null(), Violation::HandleInUse);
        if self.unmapping || self.private.is_null() {
            return Err(Refusal::NotMapped);
        }
        if self.open {
            // `WARN_ON_ONCE(nest)`.
            self.violate(Violation::Nested);
            return Err(Refusal::NotMapped);
        }
        self.violate_if(self.disabled, Violation::BegunWhileDisabled);

        handle.set_head(self.head);
        handle.0.size = 0;
        handle.0.__bindgen_anon_1 = Handle::new().0.__bindgen_anon_1;
        if self.mode == Mode::Normal {
            let space = self.size.space(self.head, self.tail);
            if space == 0 {
                self.disabled = true;
                return Err(Refusal::NoSpace);
            }
            let wakeup = self.wakeup.advance(self.watermark).get();
            handle.0.size = usize::try_from(space).unwrap_or(0);
            handle.0.wakeup = usize::try_from(wakeup).unwrap_or(0);
        }

        self.open = true;
        self.begun = self.begun.wrapping_add(1);
        NonNull::new(self.private).ok_or(Refusal::NotMapped)
    }

    pub(super) fn end(&mut self, handle: &Handle, len: u64, flags: u64) {
        let overwrite = u64::from(bindings::PERF_AUX_FLAG_OVERWRITE);
        let truncated = flags & u64::from(bindings::PERF_AUX_FLAG_TRUNCATED) != 0;

        self.violate_if(!self.open, Violation::NotOpen);
        let (offset, flags) = match self.mode {
            Mode::Overwrite => {
                self.violate_if(truncated, Violation::TruncatedOverwrite);
                self.head = handle.head();
                (self.head, flags | overwrite)
            }
            Mode::Normal => {
                let offset = self.head;
                self.violate_if(len > handle.space(), Violation::TooLong);
                self.head = self.head.advance(len);
                (offset, flags)
            }
        };

        let format = u64::from(bindings::PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK);
        if len != 0 || flags & !(overwrite | format) != 0 {
            let record = Record {
                offset: offset.get(),
                size: len,
                flags,
            };
            let pushed = self.records.push_within_capacity(record);
            self.violate_if(pushed.is_err(), Violation::NoMemory);
        }
        if truncated {
            self.disabled = true;
        }
        self.wake_up();

        self.open = false;
    }

    pub(super) fn skip(&mut self, handle: &mut Handle, len: u64) -> Result {
        self.violate_if(!self.open, Violation::NotOpen);
        if len > handle.space() {
            return Err(ENOSPC);
        }

        if self.note_padding(len).is_err() {
            self.violate(Violation::NoMemory);
        }
        self.head = self.head.advance(len);
        if self.wake_up() {
            let wakeup = self.wakeup.advance(self.watermark).get();
            handle.0.wakeup = usize::try_from(wakeup)?;
        }
        handle.set_head(self.head);
        handle.0.size = handle.0.size.saturating_sub(usize::try_from(len)?);
        Ok(())
    }

    /// Records the next `len` bytes as padding, as the reader would see them now.
    fn note_padding(&mut self, len: u64) -> Result {
        for offset in 0..len {
            let byte = self.byte(self.head.advance(offset))?;
            self.padded.push_within_capacity(byte).or(Err(ENOMEM))?;
        }
        let padding = (self.head.get(), usize::try_from(len)?);
        self.paddings.push_within_capacity(padding).or(Err(ENOMEM))
    }

    /// The byte that the ring's memory has at `position` now.
    fn byte(&self, position: Pos) -> Result<u8> {
        let offset = self.size.offset(position);
        let (place, _) = self
            .pages
            .as_ref()
            .and_then(|pages| pages.at(offset))
            .ok_or(EINVAL)?;

        // SAFETY: `place` is valid for reads by the guarantee of `Pages::at()`. The read is
        // volatile, since the region writes through addresses of its own.
        Ok(unsafe { place.read_volatile() })
    }

    /// As `perf_output_copy_aux()`, which compares offsets: an empty range is the whole ring.
    pub(super) fn copy(&mut self, sampled: &mut Sampled<'_>, from: Pos, to: Pos) -> Result<u64> {
        let end = self.size.offset(to);
        let mut at = from;
        let mut copied = 0;
        let mut fits = true;

        self.violate_if(!self.open, Violation::NotOpen);
        loop {
            fits &= sampled.push(self.byte(at)?);
            at = at.advance(1);
            copied += 1;
            if self.size.offset(at) == end {
                break;
            }
        }
        self.violate_if(!fits, Violation::SampleTooLong);
        Ok(copied)
    }

    /// Wakes the reader if the wakeup point was passed, and sets the next one.
    fn wake_up(&mut self) -> bool {
        let due =
            self.mode == Mode::Normal && self.head.distance_from(self.wakeup) >= self.watermark;

        if due {
            let over = self.head.get().checked_rem(self.watermark).unwrap_or(0);
            self.wakeup = self.head.retreat(over);
        }
        due
    }
}
