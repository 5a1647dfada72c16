// SPDX-License-Identifier: GPL-2.0

//! A table of regions that a device reads.

use super::{
    dma::{
        Coherent,
        DmaMapping, //
    },
    pages::Pages,
    table::{
        Cursor,
        Entry,
        Layout,
        Marks,
        NoEnd,
        Table,
        PAGE, //
    }, //
};
use crate::context::DropInTask;
use auxcore::ring::Pos;
use core::{
    ops::{
        Deref,
        DerefMut, //
    },
    ptr::{
        self,
        NonNull, //
    },
    slice, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Entries in a table of one page, so that the chain in memory and in [`Layout`] are the same.
const CAPACITY: usize = 512;

/// A chain of tables in coherent memory, which directs a device round the AUX area.
///
/// Made by [`Pages::table`] for a [`DmaMapping`] and kept with it in
/// [`AuxPmu::Buffer`](super::AuxPmu::Buffer). It is freed when it is dropped, in any context, and
/// at the latest when the device is unbound; after that it places no marks. The addresses that it
/// returns do not keep the memory: the driver stops the device before it drops the table.
///
/// Entries are written while the device is stopped. The device sees what was written before the
/// register that starts it: `writel()` and its like order the two.
///
/// C counterpart: `struct topa` in `arch/x86/events/intel/pt.c`, `struct tmc_sg_table`.
pub struct DeviceTable {
    coherent: Coherent,
    table: DropInTask<Table<Entries, KVVec<u64>>>,
}

/// The entries in memory.
///
/// # Invariants
///
/// `start` points to `len` entries, which nothing else of the kernel's refers to, for as long as
/// the memory is not revoked. [`DeviceTable`] dereferences it in `setup_aux()`, where the device is
/// bound, and else only while it holds [`Coherent::access()`]: the memory is not revoked then.
struct Entries {
    start: NonNull<Entry>,
    len: usize,
}

// SAFETY: This is memory of the kernel's, which is mapped for all tasks alike.
unsafe impl Send for Entries {}
// SAFETY: Methods with `&self` only read.
unsafe impl Sync for Entries {}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        // SAFETY: By the type invariant. The device only reads the entries, and any bits are a
        // valid `Entry`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Entries {
    fn deref_mut(&mut self) -> &mut [Entry] {
        // SAFETY: By the type invariant. The device only reads the entries, and any bits are a
        // valid `Entry`.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl DeviceTable {
    #[inline(never)]
    fn new(pages: &Pages, mapping: &DmaMapping, largest: u64) -> Result<Self> {
        let chunks = || mapping.chunks().map(Into::into);
        let layout = |at| Layout::new(at, CAPACITY).map(|layout| layout.largest(largest));
        let needed = layout(0)
            .ok_or(EINVAL)?
            .needed(chunks())
            .map_err(|_| EINVAL)?;
        let size = needed
            .entries
            .checked_mul(size_of::<Entry>())
            .and_then(|size| size.checked_next_multiple_of(PAGE_SIZE))
            .ok_or(ENOMEM)?;
        // User space chooses the size. A failure is `ENOMEM`, without a report in the log.
        let starts = KVVec::from_elem(0, needed.starts, GFP_KERNEL | __GFP_NOWARN)?;
        let coherent = Coherent::new(pages, size)?;
        // INVARIANT: `needed.entries` entries fit. The memory is not revoked: this is in
        // `setup_aux()`, where the device is bound.
        let entries = Entries {
            start: coherent.start.cast(),
            len: needed.entries,
        };
        let layout = layout(coherent.address).ok_or(EINVAL)?;
        let table = Table::new(entries, starts, layout, chunks()).map_err(|_| EINVAL)?;

        Ok(Self {
            // SAFETY: This function is compiled into this crate's module.
            table: unsafe { DropInTask::new(table, ptr::null_mut())? },
            coherent,
        })
    }

    /// The cursor at which the device must start so that it writes to position `head` next.
    pub fn seek(&self, head: Pos) -> Option<Cursor> {
        let _access = self.coherent.access()?;

        Some(self.table.seek(head))
    }

    /// The position that the device writes to next: see [`Table::position`].
    pub fn position(&self, from: Pos, cursor: Cursor) -> Option<Pos> {
        let _access = self.coherent.access()?;

        self.table.position(from, cursor)
    }

    /// Marks where the device raises an interrupt and stops, for a transaction: see
    /// [`Table::mark`].
    pub fn mark(&mut self, head: Pos, space: u64, wakeup: Pos) -> Result<Marks, NoEnd> {
        let Some(_access) = self.coherent.access() else {
            return Err(NoEnd);
        };

        self.table.mark(head, space, wakeup)
    }

    /// Removes the marks, for overwrite mode, so that the device wraps without an interrupt: see
    /// [`Table::clear`].
    pub fn clear(&mut self) {
        if let Some(_access) = self.coherent.access() {
            self.table.clear();
        }
    }
}

impl Pages {
    /// A table for the device of `mapping`, with regions of at most `largest` bytes: see
    /// [`Layout::largest`]. It is charged like bounce memory.
    ///
    /// [`EINVAL`] if the device's addresses do not fit into a table, [`ENOMEM`] if there is no
    /// memory. To be called from a task that may sleep: in
    /// [`AuxPmu::setup_aux`](super::AuxPmu::setup_aux).
    pub fn table(&self, mapping: &DmaMapping, largest: u64) -> Result<DeviceTable> {
        DeviceTable::new(self, mapping, largest.max(PAGE))
    }
}
