// SPDX-License-Identifier: GPL-2.0

//! The memory that the unit writes to, and the copy from there to the AUX area. Each kind of sink
//! works like that of a unit in hardware.

use super::{
    broken,
    config::{
        Kind,
        Plan,
        MAX_BOUNCE, //
    },
    fault::Fault,
    stream::Stream,
    unit::{
        pad,
        Outcome,
        Regions,
        Unit, //
    },
    Pattern, //
};
use auxcore::{
    circular::{
        CircularReader,
        Packets, //
    },
    ring::{
        Pos,
        Size, //
    },
    table::{
        self,
        Entry,
        Layout,
        Table,
        Walker, //
    },
};
use core::num::NonZero;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use pattern_codec::PACKET_UNIT;
use perf::aux::{
    Bounce,
    Format,
    Full,
    Mode,
    Pages,
    Region,
    Transaction, //
};

/// Address of the unit's table. The unit is software, so the address is arbitrary.
const TABLE_AT: u64 = 0x1000;
/// Number of entries in a table, which is one page long.
const TABLE_LEN: usize = 512;

/// The memory that the unit of an AUX area writes to.
pub(crate) enum Sink {
    /// The pages of the AUX area, through a table: like Intel PT.
    Direct(Regions),
    /// Scattered pages, through a table: like CoreSight's ETR in scatter-gather mode.
    Sg(Bounced),
    /// One contiguous buffer, in which the unit wraps: like the ETR in flat mode.
    Flat(Bounced),
}

/// Bounce memory, and the table that describes it.
pub(crate) struct Bounced {
    table: Regions,
    memory: Bounce,
}

impl Sink {
    pub(crate) fn new(plan: &Plan, pages: &Pages) -> Result<Self> {
        let size = pages.size();
        let count = size.get() / PAGE_SIZE;
        // Neither a packet nor the padding before it takes more than half of the area.
        let holds = |size: Size| usize::from(plan.packet.get()) <= size.get() / 2;

        if plan.fault == Fault::Setup {
            return Err(EIO);
        }
        if count < plan.min || !holds(size) || plan.align.get() > size.len() / 2 {
            return Err(EINVAL);
        }
        if plan.sink == Kind::Direct {
            // The unit stops only at a page end, and perf keeps a byte free: one page is too small.
            if count < 2 {
                return Err(EINVAL);
            }
            return Ok(Self::Direct(regions(plan, pages.chunks(), table::PAGE)?));
        }

        let bounce = plan.bounce.unwrap_or(count.min(MAX_BOUNCE));
        let bounce = bounce.checked_mul(PAGE_SIZE).and_then(Size::new);
        let bounce = bounce.filter(|size| holds(*size)).ok_or(EINVAL)?;
        let (memory, largest) = match plan.sink {
            Kind::Flat => (pages.bounce_contiguous(bounce)?, bounce.len()),
            _ => (pages.bounce_scattered(bounce)?, table::PAGE),
        };
        let bounced = Bounced {
            table: regions(plan, memory.chunks(), largest)?,
            memory,
        };

        Ok(match plan.sink {
            Kind::Flat => Self::Flat(bounced),
            _ => Self::Sg(bounced),
        })
    }

    /// Format of the trace: 1 if it can contain barriers.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Direct(_) | Self::Sg(_) => Format::default(),
            Self::Flat(_) => Format::new(1),
        }
    }

    /// Sets where the unit writes in this transaction. `has_space`: whether the AUX area has space.
    ///
    /// The region supplies the position in the AUX area each time; the sink keeps no copy of it.
    #[inline]
    pub(crate) fn seek(&mut self, region: &Region<'_>, unit: &mut Unit, has_space: bool) {
        match self {
            Self::Direct(_) if !has_space => unit.seek(None),
            Self::Direct(table) => {
                let head = region.head().advance(region.written());
                let marked = match region.space().zip(region.wakeup()) {
                    Some((space, wakeup)) => table.mark(head, space, wakeup).is_ok(),
                    None => {
                        table.clear();
                        true
                    }
                };

                // Without a mark nothing stops the unit within the space, so it does not write.
                unit.seek(marked.then(|| Walker::new(table.seek(head))));
            }
            Self::Sg(bounced) => {
                let (start, len) = (Pos::new(0), bounced.memory.size().len());
                // The space is the whole memory, so a region ends within it: this cannot fail.
                let _ = bounced.table.mark(start, len, start.advance(len / 2));

                bounced.restart(unit);
            }
            Self::Flat(bounced) => {
                bounced.table.clear();
                bounced.restart(unit);
            }
        }
    }

    /// A tick of the unit's clock. With bounce memory, [`Outcome::raised`] is also set at the
    /// wakeup position.
    pub(crate) fn tick(
        &mut self,
        region: &mut Region<'_>,
        plan: &Plan,
        unit: &mut Unit,
    ) -> Outcome {
        let base = region.written();

        match self {
            Self::Direct(table) => {
                let mut buffer = broken::StoreBuffer::default();
                let outcome = unit.tick(plan, table, |offset, address, bytes| {
                    buffer.store(offset, address, bytes, |offset, address, bytes| {
                        region.store(base.wrapping_add(offset), address, bytes)
                    })
                });

                unit.lost.no_space = unit.lost.no_space.saturating_add(outcome.dropped);
                outcome
            }
            Self::Sg(bounced) | Self::Flat(bounced) => {
                let memory = &mut bounced.memory;
                let mut outcome = unit.tick(plan, &bounced.table, |offset, address, bytes| {
                    memory.store(Pos::new(offset), address, bytes)
                });
                // The unit has no interrupt at the wakeup position, so the driver compares
                // positions.
                let head = region.head().advance(base.wrapping_add(unit.written));

                unit.lost.gap = unit.lost.gap.saturating_add(outcome.dropped);
                outcome.raised |=
                    unit.written != 0 && region.wakeup().is_some_and(|wakeup| head.reached(wakeup));
                outcome
            }
        }
    }

    /// Copies the trace from bounce memory into the region, and restarts the unit at the beginning
    /// of that memory. Returns the length of the trace in the region. Bytes that do not fit are
    /// added to [`Unit::lost`]. `has_space`: whether the AUX area has space.
    #[inline]
    pub(crate) fn take(
        &mut self,
        region: &mut Region<'_>,
        stream: &Stream,
        unit: &mut Unit,
        has_space: bool,
    ) -> u64 {
        match self {
            Self::Direct(_) => region.written().saturating_add(unit.written),
            Self::Sg(_) | Self::Flat(_) => self.copy(region, stream, unit, has_space),
        }
    }

    /// [`take`](Self::take) for bounce memory.
    fn copy(
        &mut self,
        region: &mut Region<'_>,
        stream: &Stream,
        unit: &mut Unit,
        has_space: bool,
    ) -> u64 {
        let space = match region.space() {
            _ if !has_space => Some(0),
            space => space.map(|space| space.saturating_sub(region.written())),
        };

        match self {
            Self::Direct(_) => (),
            Self::Sg(bounced) => {
                let packet = NonZero::<u64>::from(stream.plan.packet);
                let fits = space.unwrap_or(u64::MAX).min(unit.written);
                let len = fits.saturating_sub(fits % packet);
                let copied = bounced.copy(region, Pos::new(0), len);

                unit.lost.no_space = unit
                    .lost
                    .no_space
                    .saturating_add(unit.written.saturating_sub(copied));
                bounced.restart(unit);
            }
            Self::Flat(bounced) => {
                bounced.take_newest(region, stream, unit, space);
                bounced.restart(unit);
            }
        }
        region.written()
    }
}

impl Bounced {
    /// Restarts the unit at the beginning of the memory.
    fn restart(&mut self, unit: &mut Unit) {
        unit.seek(Some(Walker::new(self.table.seek(Pos::new(0)))));
    }

    /// Copies the newest packets. A barrier precedes them if packets were lost before.
    fn take_newest(
        &self,
        region: &mut Region<'_>,
        stream: &Stream,
        unit: &mut Unit,
        space: Option<u64>,
    ) {
        let packets = Packets {
            len: stream.plan.packet.into(),
            barrier: PACKET_UNIT.into(),
        };
        let written = Pos::new(unit.written);
        let mut reader = CircularReader::new(self.memory.size());
        let mut extent = reader.read(written, packets, space, stream.owed());
        broken::overwritten(&mut extent);

        unit.lost.gap = unit.lost.gap.saturating_add(extent.overwritten);
        unit.lost.no_space = unit.lost.no_space.saturating_add(extent.no_space);
        if extent.len == 0 {
            if extent.overwritten != 0 || extent.no_space != 0 {
                stream.owe();
            }
            return;
        }

        if extent.barrier {
            let pos = unit.end.wrapping_sub(extent.len);
            let barrier = unit.barrier(pos, pos.wrapping_sub(stream.kept()));
            let _ = put(region, &barrier);
        }
        let copied = self.copy(region, extent.from, extent.len);
        unit.lost.no_space = unit
            .lost
            .no_space
            .saturating_add(extent.len.saturating_sub(copied));
        stream.keep(unit.end);
    }

    /// Copies `len` bytes from position `pos` on. Returns the number of bytes copied.
    fn copy(&self, region: &mut Region<'_>, mut pos: Pos, len: u64) -> u64 {
        let max = region.size().len().min(self.memory.size().len());
        let mut left = len;

        // In overwrite mode `len` can exceed the size of the AUX area.
        while left != 0 {
            let now = left.min(max);

            if self.copy_piece(region, pos, now).is_err() {
                break;
            }
            pos = pos.advance(now);
            left = left.saturating_sub(now);
        }
        len.saturating_sub(left)
    }

    fn copy_piece(&self, region: &mut Region<'_>, pos: Pos, len: u64) -> Result<(), Full> {
        let len = usize::try_from(len).map_err(|_| Full)?;
        let mut writer = region.reserve(len)?;

        writer.copy(&self.memory, pos, len)?;
        writer.commit();
        Ok(())
    }
}

/// Writes `bytes` to the region.
fn put(region: &mut Region<'_>, bytes: &[u8]) -> Result<(), Full> {
    let mut writer = region.reserve(bytes.len())?;

    writer.put(bytes)?;
    writer.commit();
    Ok(())
}

/// A table for memory that is made of `chunks`, with regions of at most `largest` bytes.
///
/// A sink with marks uses regions of one page. Marks are rounded to region ends, and larger regions
/// would depend on which pages happen to be contiguous.
fn regions<C: Into<table::Chunk>>(
    plan: &Plan,
    chunks: impl Iterator<Item = C> + Clone,
    largest: u64,
) -> Result<Regions> {
    let layout = Layout::new(TABLE_AT, TABLE_LEN)
        .ok_or(EINVAL)?
        .largest(largest);
    let chunks = chunks.map(Into::into);
    let needed = layout.needed(chunks.clone()).map_err(|_| EINVAL)?;

    if plan.fault == Fault::Memory {
        return Err(ENOMEM);
    }
    // The user chooses the number of entries, so a failed allocation must not log a warning.
    let flags = GFP_KERNEL | __GFP_NOWARN;
    let entries = KVVec::from_elem(Entry::default(), needed.entries, flags)?;
    let starts = KVVec::from_elem(0, needed.starts, flags)?;
    Table::new(entries, starts, layout, chunks).map_err(|_| EINVAL)
}

/// Pads the AUX area, so that the transaction begins at a multiple of the event's `align`. Fails
/// with [`ENOSPC`] if the area has no space for the padding.
#[inline]
pub(crate) fn align(transaction: &mut Transaction<'_, Pattern>) -> Result {
    let align = transaction.event().plan.align;

    // A power of two.
    match transaction.region().head().get() & align.get().wrapping_sub(1) {
        0 => Ok(()),
        over => align_by(transaction, align.get().saturating_sub(over)),
    }
}

#[cold]
fn align_by(transaction: &mut Transaction<'_, Pattern>, len: u64) -> Result {
    let header = transaction.buffer().unit.header;
    let len = usize::try_from(len)?;

    if transaction.region().mode() == Mode::Normal {
        return transaction.skip(len, |writer| pad(header, len, |bytes| writer.put(bytes)));
    }
    let mut region = transaction.region();
    let mut writer = region.reserve(len).map_err(|Full| ENOSPC)?;
    pad(header, len, |bytes| writer.put(bytes)).map_err(|Full| EINVAL)?;
    writer.commit();
    Ok(())
}
