// SPDX-License-Identifier: GPL-2.0

//! The part of the ring that a session may write.

use super::{
    bounce::Bounce,
    buffer::Pages,
    output::Handle,
    Mode, //
};
use crate::bindings;
use auxcore::ring::{
    Pos,
    Size, //
};
use core::ptr;
use kernel::prelude::*;

/// No room for what was to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The part of the ring that a session may write: from the head on.
///
/// C counterpart: `head`, `size` and `wakeup` of `struct perf_output_handle`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, testing::{Bench, Setup}, Attr, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Buffer = ();
/// #     type Run = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// fn start(&self, session: &mut aux::Session<'_, Self>) -> Result {
///     // perf keeps one byte of the ring free, so that a full ring is no empty one.
///     if session.window.space() != Some(4095) || session.window.reserve(4096).is_ok() {
///         return Err(EINVAL);
///     }
///
///     // In pieces, as they come. What is not committed does not count.
///     for piece in [b"first ", b"second"] {
///         let mut writer = session.window.reserve(piece.len()).map_err(|_| ENOSPC)?;
///         writer.put(piece).map_err(|_| ENOSPC)?;
///         writer.commit();
///     }
///     let _ = session.window.reserve(100);
///     Ok(())
/// }
/// #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
/// #         aux::Written::by_writer(session.window, aux::Loss::None)
/// #     }
/// # }
/// let mut bench = Bench::new(Driver, &Setup { pages: 1, ..Setup::default() })?;
///
/// bench.add()?;
/// bench.del();
/// assert!(bench.read()?.as_slice() == b"first second");
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// - `pages` are those of a ring that is not freed while the window exists.
/// - In linear mode `written` is at most `space`, which is less than the ring.
pub struct Window {
    pages: Pages,
    head: Pos,
    mode: Mode,
    space: u64,
    wakeup: Pos,
    written: u64,
}

impl Window {
    /// # Safety
    ///
    /// `pages` must be those of the ring of an open transaction which outlives the window.
    pub(super) unsafe fn new(pages: Pages, head: Pos, space: u64, wakeup: Pos) -> Self {
        // Overwrite mode has no end: what limits a write is the ring itself. In linear mode perf
        // never offers more than one byte less than the ring.
        let mode = pages.mode();
        let space = match mode {
            Mode::Linear => space.min(pages.size().len().saturating_sub(1)),
            Mode::Overwrite => u64::MAX,
        };

        // INVARIANT: The pages by the safety requirement; nothing is written yet.
        Self {
            pages,
            head,
            mode,
            space,
            wakeup,
            written: 0,
        }
    }

    /// Goes on from where the handle of its transaction is now. Nothing may have been written.
    pub(super) fn begin_at(&mut self, handle: &Handle) {
        // INVARIANT: Less than the ring, as before: perf gives what it gave, less what was skipped.
        self.space = handle.space().min(self.space);
        self.head = handle.head();
        self.wakeup = handle.wakeup();
        self.written = 0;
    }

    /// The position of the window's first byte.
    pub fn head(&self) -> Pos {
        self.head
    }

    /// The size of the whole ring.
    pub fn size(&self) -> Size {
        self.pages.size()
    }

    /// How user space mapped the ring.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many bytes may be written in all; [`None`] in overwrite mode, where there is no end.
    pub fn space(&self) -> Option<u64> {
        match self.mode {
            Mode::Linear => Some(self.space),
            Mode::Overwrite => None,
        }
    }

    /// How many bytes have been written by [`Writer`]s.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the wakeup point has been reached, so that user space wants a commit.
    pub fn wakeup_due(&self) -> bool {
        match self.mode {
            Mode::Linear => {
                self.written > 0 && self.head.advance(self.written).reached(self.wakeup)
            }
            Mode::Overwrite => false,
        }
    }

    /// Where user space wants to be woken: a commit that reaches this position does. Perhaps past, or
    /// beyond the space. [`None`] in overwrite mode, where nobody is woken.
    pub fn wakeup(&self) -> Option<Pos> {
        match self.mode {
            Mode::Linear => Some(self.wakeup),
            Mode::Overwrite => None,
        }
    }

    /// Writes `bytes` as a unit in software does, which got `address` from a table: `way` bytes after
    /// the head, where `address` must be the physical address; else [`EFAULT`]. [`ENOSPC`] beyond the
    /// [space](Self::space). After an error some of the bytes may have been written.
    ///
    /// A unit in hardware does the same by itself: what is written does not count as
    /// [written](Self::written), but has to be told by [`Written::new`](super::Written::new).
    pub fn store(&mut self, way: u64, address: u64, bytes: &[u8]) -> Result {
        let end = way.checked_add(u64::try_from(bytes.len())?).ok_or(ENOSPC)?;

        if end > self.space {
            return Err(ENOSPC);
        }
        let offset = self.size().offset(self.head.advance(way));
        self.pages.store(offset, address, bytes)
    }

    /// Takes the next `len` bytes of the window to write them; [`Full`] if there are fewer, or more
    /// are asked for than the ring has.
    pub fn reserve(&mut self, len: usize) -> Result<Writer<'_>, Full> {
        let wanted = u64::try_from(len).map_err(|_| Full)?;

        if len > self.size().get() || wanted > self.space.saturating_sub(self.written) {
            return Err(Full);
        }

        Ok(Writer {
            at: self.head.advance(self.written),
            left: len,
            window: self,
        })
    }
}

/// Writes a part of a [`Window`], across the end of the ring where need be.
///
/// What was [`put`](Self::put) counts as written only after [`commit`](Self::commit).
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, testing::{Bench, Setup}, Attr, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Buffer = ();
/// #     type Run = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// fn start(&self, session: &mut aux::Session<'_, Self>) -> Result {
///     let mut record = || {
///         let mut writer = session.window.reserve(12)?;
///
///         // Its fields, one after the other, and not a byte more than was reserved.
///         writer.put(&7u64.to_le_bytes())?;
///         writer.put(&1u32.to_le_bytes())?;
///         # if writer.put(&[0]).is_ok() { return Err(aux::Full); }
///         writer.commit();
///         Ok(())
///     };
///
///     record().map_err(|_: aux::Full| ENOSPC)
/// }
/// #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
/// #         aux::Written::by_writer(session.window, aux::Loss::None)
/// #     }
/// # }
/// let mut bench = Bench::new(Driver, &Setup::default())?;
///
/// bench.add()?;
/// bench.del();
/// assert_eq!(bench.head(), 12);
/// assert_eq!(bench.byte(8), Some(1));
/// # Ok::<(), Error>(())
/// ```
#[must_use]
pub struct Writer<'a> {
    window: &'a mut Window,
    at: Pos,
    left: usize,
}

impl Writer<'_> {
    /// Writes `bytes` behind what was put before; [`Full`] if less was reserved, and then nothing
    /// is written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.take(bytes.len())?;

        let split = self.window.size().split(self.at, bytes.len()).ok_or(Full)?;
        let (front, back) = bytes.split_at_checked(split.first.len()).ok_or(Full)?;

        self.window.pages.copy_in(split.first.start, front)?;
        self.window.pages.copy_in(split.second.start, back)?;

        self.at = self
            .at
            .advance(u64::try_from(bytes.len()).map_err(|_| Full)?);
        Ok(())
    }

    /// Writes `len` bytes of `bounce`, from position `pos` on, behind what was put before; [`Full`]
    /// if less was reserved, or `bounce` has less, and then nothing is written.
    ///
    /// What a unit writes to `bounce` meanwhile may or may not be among it.
    pub fn copy(&mut self, bounce: &Bounce, mut pos: Pos, len: usize) -> Result<(), Full> {
        if len > bounce.size().get() {
            return Err(Full);
        }
        let mut left = len;
        self.take(len)?;

        while left > 0 {
            let offset = self.window.size().offset(self.at);
            let (to, room) = self.window.pages.at(offset).ok_or(Full)?;
            let (from, there) = bounce.at(pos).ok_or(Full)?;
            let now = left.min(room).min(there);

            // The function of C, since a unit may write to this memory while it runs: in the
            // kernel's memory model that garbles bytes, and nothing more.
            //
            // SAFETY:
            // - `from` is valid for reads of `there` bytes, by the guarantee of `Bounce::at()`, and
            //   `to` for writes of `room`, by that of `Pages::at()`: neither is fewer than `now`.
            // - They do not overlap: a page of perf's and one of the bounce memory's own.
            unsafe { bindings::memcpy(to.as_ptr().cast(), from.as_ptr().cast(), now) };

            // Cannot overflow: at most what is left.
            left = left.wrapping_sub(now);
            let now = u64::try_from(now).map_err(|_| Full)?;
            pos = pos.advance(now);
            self.at = self.at.advance(now);
        }
        Ok(())
    }

    /// Takes `len` bytes of what was reserved.
    fn take(&mut self, len: usize) -> Result<(), Full> {
        self.left = self.left.checked_sub(len).ok_or(Full)?;
        Ok(())
    }

    /// Whether all that was reserved has been put.
    pub(super) fn is_filled(&self) -> bool {
        self.left == 0
    }

    /// Counts what was put as written.
    pub fn commit(self) {
        // INVARIANT: `reserve()` checked the room for all that `put()` let through.
        self.window.written = self.at.distance_from(self.window.head);
    }
}

impl Pages {
    /// Copies `bytes` to the ring, from `offset` on; they must end within it.
    fn copy_in(&mut self, mut offset: usize, mut bytes: &[u8]) -> Result<(), Full> {
        while !bytes.is_empty() {
            let (place, room) = self.at(offset).ok_or(Full)?;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));

            // SAFETY:
            // - `now` is valid for reads of its length.
            // - `place` is valid for writes of `room` bytes, no fewer than that, by the guarantee
            //   of `Pages::at()`: a page of the ring, which perf keeps until the transaction ends.
            // - They do not overlap: nobody has a Rust reference to the ring's pages.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), now.len()) };

            // Cannot overflow: an offset in the ring.
            offset = offset.wrapping_add(now.len());
            bytes = rest;
        }

        Ok(())
    }

    /// Copies `bytes` to the ring, from `offset` on, where `address` must be the physical address; else
    /// [`EFAULT`], perhaps after some of them.
    pub(super) fn store(
        &mut self,
        mut offset: usize,
        mut address: u64,
        mut bytes: &[u8],
    ) -> Result {
        while !bytes.is_empty() {
            let (place, room) = self.at(offset).ok_or(EFAULT)?;
            // SAFETY: The address of a page in the direct mapping of memory.
            let physical = unsafe { bindings::rust_perf_virt_to_phys(place.as_ptr().cast()) };
            if physical != address {
                return Err(EFAULT);
            }
            let (now, rest) = bytes.split_at(room.min(bytes.len()));

            // SAFETY: As in `copy_in()`.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), now.len()) };

            // Cannot overflow: an offset in the memory, and an address of it.
            offset = offset.wrapping_add(now.len());
            address = address.wrapping_add(u64::try_from(now.len())?);
            bytes = rest;
        }

        Ok(())
    }
}

#[kunit_tests(rust_perf_aux_window)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use kernel::page::PAGE_SIZE;

    /// A ring's memory as perf makes it: pages, and an array of their addresses.
    struct Memory {
        pages: KVec<KBox<[u8; PAGE_SIZE]>>,
        addresses: KVec<*mut c_void>,
    }

    impl Memory {
        fn new(nr_pages: usize) -> Result<Self> {
            let mut pages = KVec::new();
            let mut addresses = KVec::new();

            for _ in 0..nr_pages {
                let mut page = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;

                addresses.push(ptr::from_mut(&mut *page).cast(), GFP_KERNEL)?;
                pages.push(page, GFP_KERNEL)?;
            }
            Ok(Self { pages, addresses })
        }

        fn byte(&self, offset: usize) -> Option<u8> {
            let page = self.pages.get(offset / PAGE_SIZE)?;
            let place = ptr::from_ref(page.get(offset % PAGE_SIZE)?);

            // SAFETY: Valid for reads. Volatile, since the window writes through the addresses.
            Some(unsafe { place.read_volatile() })
        }
    }

    /// A window on `memory`, from `head` on.
    ///
    /// # Safety
    ///
    /// `memory` must outlive it.
    unsafe fn window(
        memory: &mut Memory,
        head: u64,
        space: u64,
        wakeup: u64,
        overwrite: bool,
    ) -> Result<Window> {
        let nr_pages = memory.pages.len().try_into()?;
        // SAFETY: The array holds the addresses of that many pages, which live long enough by the
        // safety requirement.
        let pages = unsafe { Pages::new(memory.addresses.as_mut_ptr(), nr_pages, overwrite)? };

        // SAFETY: As above.
        Ok(unsafe { Window::new(pages, Pos::new(head), space, Pos::new(wakeup)) })
    }

    struct Case {
        head: u64,
        space: u64,
        overwrite: bool,
        /// Lengths to write, one after the other, and whether they fit.
        writes: &'static [(usize, bool)],
        written: u64,
    }

    const RING: u64 = 2 * 4096;

    const CASES: &[Case] = &[
        // To the last byte, and not one more.
        Case {
            head: 0,
            space: 100,
            overwrite: false,
            writes: &[(60, true), (41, false), (40, true), (1, false), (0, true)],
            written: 100,
        },
        // Over the end of a page, and over the end of the ring, from a head that went round.
        Case {
            head: 5 * RING + 4090,
            space: RING - 1,
            overwrite: false,
            writes: &[
                (10, true),
                (4090, true),
                (4000, true),
                (92, false),
                (91, true),
            ],
            written: RING - 1,
        },
        // A head at the end of the counter.
        Case {
            head: u64::MAX - 9,
            space: 64,
            overwrite: false,
            writes: &[(64, true), (1, false)],
            written: 64,
        },
        // perf never offers the whole ring; if it did, we would not take it.
        Case {
            head: 0,
            space: u64::MAX,
            overwrite: false,
            writes: &[(2 * 4096, false), (2 * 4096 - 1, true), (1, false)],
            written: RING - 1,
        },
        // No end in overwrite mode, whatever the handle's size says.
        Case {
            head: 17,
            space: 0,
            overwrite: true,
            writes: &[
                (2 * 4096 + 1, false),
                (2 * 4096, true),
                (2 * 4096, true),
                (3, true),
            ],
            written: 2 * RING + 3,
        },
    ];

    /// Runs a case; true if every byte is where it must be, and no other was touched.
    fn check(case: &Case) -> Result<bool> {
        let mut memory = Memory::new(2)?;
        // SAFETY: `memory` is dropped last.
        let mut window = unsafe { window(&mut memory, case.head, case.space, 0, case.overwrite)? };
        let mut model = KVec::from_elem(0u8, 2 * PAGE_SIZE, GFP_KERNEL)?;
        let mut at = case.head;

        for (i, &(len, fits)) in (1u8..).zip(case.writes) {
            let bytes = KVec::from_elem(i, len, GFP_KERNEL)?;

            match window.reserve(len) {
                Ok(mut writer) if fits => {
                    // In two pieces; a third would be one too many.
                    let (front, back) = bytes.split_at(len / 3);
                    if writer.put(front).is_err()
                        || writer.put(back).is_err()
                        || writer.put(&[0]).is_ok()
                    {
                        return Ok(false);
                    }
                    writer.commit();
                }
                Err(Full) if !fits => continue,
                _ => return Ok(false),
            }

            for _ in 0..len {
                let place = usize::try_from(at % RING)?;
                *model.get_mut(place).ok_or(EINVAL)? = i;
                at = at.wrapping_add(1);
            }
        }

        Ok(window.written() == case.written
            && (0..2 * PAGE_SIZE).all(|i| memory.byte(i) == model.get(i).copied()))
    }

    #[test]
    fn writes_land_where_they_must() {
        for case in CASES {
            assert!(check(case) == Ok(true));
        }
    }

    /// What is put but not committed does not count.
    #[test]
    fn dropped_writer_counts_nothing() {
        let written = || -> Result<u64> {
            let mut memory = Memory::new(1)?;
            // SAFETY: `memory` is dropped last.
            let mut window = unsafe { window(&mut memory, 0, 100, 0, false)? };

            if let Ok(mut writer) = window.reserve(10) {
                writer.put(&[1; 10]).map_err(|_| EINVAL)?;
            }
            Ok(window.written())
        };

        assert!(written() == Ok(0));
    }

    #[test]
    fn wakeup_is_a_position() {
        // Head, wakeup point, bytes written, due; also where the counter wraps.
        let table = [
            (0, 64, 63, false),
            (0, 64, 64, true),
            (100, 64, 0, false),
            (100, 64, 1, true),
            (u64::MAX - 9, 20, 29, false),
            (u64::MAX - 9, 20, 30, true),
        ];

        for (head, wakeup, len, due) in table {
            let seen = || -> Result<bool> {
                let mut memory = Memory::new(1)?;
                // SAFETY: `memory` is dropped last.
                let mut window = unsafe { window(&mut memory, head, 4095, wakeup, false)? };
                let mut writer = window.reserve(len).map_err(|_| EINVAL)?;

                writer
                    .put([0; 64].get(..len).ok_or(EINVAL)?)
                    .map_err(|_| EINVAL)?;
                writer.commit();
                Ok(window.wakeup_due())
            };

            assert!(seen() == Ok(due));
        }
    }
}
