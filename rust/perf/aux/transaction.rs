// SPDX-License-Identifier: GPL-2.0

//! The open transaction, as a driver's callbacks see it.
//!
//! C counterpart: an open `struct perf_output_handle`, `perf_aux_output_skip()`.

use super::{
    buffer::OpenBuffer,
    core::Handle,
    loss::Losses,
    pages::Mode,
    region::{
        Extent,
        Full,
        Region,
        Writer, //
    },
    AuxPmu,
    Loss, //
};
use crate::{
    bindings,
    context,
    event::Event,
    filter::Filter,
    pmu::at_least_shortest, //
};
use core::marker::PhantomData;
use kernel::{
    prelude::*,
    sync::barrier,
    time::Delta, //
};

/// The state that the callbacks of an open transaction share, from the driver's `start()` to its
/// `quiesce()`.
pub(crate) struct Open<T: AuxPmu> {
    pub(super) buffer: OpenBuffer<T>,
    pub(super) extent: Extent,
    /// The interval of the timer that the driver has asked for.
    pub(super) timer: Option<Delta>,
}

/// Adds `len` bytes of padding to the transaction that is open on `handle`.
///
/// # Safety
///
/// As for [`Core::skip`](super::core::Core::skip).
pub(super) type Skip = unsafe fn(handle: &mut Handle, len: u64) -> Result;

/// An open transaction.
///
/// It exists for one callback. Between callbacks the framework keeps the transaction, on the
/// event's CPU. Everything that a driver borrows from it ends with the callback. Its lifetime is
/// invariant, so that nothing of one transaction can take the place of another's.
///
/// C counterpart: an open `struct perf_output_handle`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, testing::{Bench, Setup}, Attr, AuxPmu, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Count = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// # }
/// # #[vtable]
/// # impl AuxPmu for Driver {
/// #     type Buffer = ();
/// #     type Trace = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
///     let region = transaction.region();
///
///     pr_debug!("{} bytes from {} on", region.size().get(), region.head().get());
///     transaction.count(1);
///     Ok(())
/// }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
/// let mut bench = Bench::new(Driver, &Setup::default())?;
///
/// bench.add()?;
/// assert_eq!(bench.counter(), 1);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// A transaction is open on `handle`, begun on this CPU with interrupts off, and stays open while
/// `self` exists. `skip` is that of the [`Core`](super::core::Core) that it was begun with.
pub struct Transaction<'a, T: AuxPmu> {
    event: &'a Event<'a, T>,
    cpu: &'a context::Cpu,
    open: &'a mut Open<T>,
    handle: &'a mut Handle,
    deferred: &'a mut bool,
    skip: Skip,
    _invariant: PhantomData<fn(&'a ()) -> &'a ()>,
}

/// The parts of a [`Transaction`], to be used at the same time.
pub struct Parts<'a, T: AuxPmu> {
    /// The event that is traced.
    pub event: &'a Event<'a, T>,
    /// What [`AuxPmu::setup_aux`] returned for this AUX area.
    pub buffer: &'a mut T::Buffer,
    /// The part of the AUX area that may be written.
    pub region: Region<'a>,
}

impl<'a, T: AuxPmu> Transaction<'a, T> {
    /// # Safety
    ///
    /// A transaction must be open on `handle`, begun on this CPU with interrupts off, and stay open
    /// for `'a`. `skip` must be that of the [`Core`](super::core::Core) that it was begun with.
    #[inline]
    pub(super) unsafe fn new(
        event: &'a Event<'a, T>,
        cpu: &'a context::Cpu,
        open: &'a mut Open<T>,
        handle: &'a mut Handle,
        deferred: &'a mut bool,
        skip: Skip,
    ) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            event,
            cpu,
            open,
            handle,
            deferred,
            skip,
            _invariant: PhantomData,
        }
    }

    /// The event that is traced.
    #[inline]
    pub fn event(&self) -> &'a Event<'a, T> {
        self.event
    }

    /// The CPU that this runs on.
    #[inline]
    pub fn cpu(&self) -> &'a context::Cpu {
        self.cpu
    }

    /// What [`AuxPmu::setup_aux`] returned for this AUX area.
    ///
    /// Exclusive: one transaction at a time is open on an AUX area.
    #[inline]
    pub fn buffer(&mut self) -> &mut T::Buffer {
        self.open.buffer.data()
    }

    /// The part of the AUX area that may be written.
    #[inline]
    pub fn region(&mut self) -> Region<'_> {
        Region::new(self.open.buffer.pages(), &mut self.open.extent)
    }

    /// The event, the buffer and the region at once.
    #[inline]
    pub fn parts(&mut self) -> Parts<'_, T> {
        let (buffer, pages) = self.open.buffer.parts();

        Parts {
            event: self.event,
            buffer,
            region: Region::new(pages, &mut self.open.extent),
        }
    }

    /// The address filters of the event, as the hardware needs them.
    ///
    /// They do not change while the transaction is open: a copy that [`AuxPmu::start`] has made
    /// stays valid.
    #[inline]
    pub fn filters(&self) -> &'a [Filter] {
        // SAFETY: The transaction is open for `'a`, by the type invariant.
        unsafe { self.event.filters() }
    }

    /// Arms a timer that calls [`AuxPmu::tick`] at this interval, in hard interrupt context, until
    /// the transaction ends. The first tick comes after at most the interval. Missed ticks are not
    /// made up for. An interval below [`SHORTEST_TIMER`](crate::pmu::SHORTEST_TIMER) becomes that.
    ///
    /// Every transaction starts without a timer.
    #[inline]
    pub fn set_timer(&mut self, interval: Delta) {
        const_assert!(T::HAS_TICK, "a timer needs AuxPmu::tick()");
        self.open.timer = Some(at_least_shortest(interval));
    }

    /// Requests a call of [`AuxPmu::deferred`] soon, for work that must not be done here, such as
    /// waking a task. May be called in NMI.
    ///
    /// C counterpart: `irq_work_queue()`.
    pub fn defer(&mut self) {
        const_assert!(T::HAS_DEFERRED, "deferred work needs AuxPmu::deferred()");
        *self.deferred = true;
    }

    /// Publishes the next `len` bytes of the region as padding, for a unit that can begin only at
    /// aligned positions. `pad` writes all of them, in a form that the trace's decoder skips. The
    /// region then begins behind them.
    ///
    /// In non-overwrite mode only, and only while the region holds no trace that is not committed:
    /// in [`AuxPmu::start`] before the unit runs, or while [`Region::written`] is 0 and the unit
    /// has written nothing by itself. perf writes no `PERF_RECORD_AUX` for padding; `aux_head`
    /// moves.
    ///
    /// After an error nothing has changed: [`EOPNOTSUPP`] in overwrite mode, [`EBUSY`] if something
    /// is written, [`ENOSPC`] if the region has less space, [`EINVAL`] if `pad` wrote fewer or more
    /// bytes than `len`.
    ///
    /// C counterpart: `perf_aux_output_skip()`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// # use perf::{aux, testing::{Bench, Setup}, Attr, AuxPmu, Event, Pmu};
    /// # struct Driver;
    /// # #[vtable]
    /// # impl Pmu for Driver {
    /// #     type Config = ();
    /// #     type Event = ();
    /// #     type Count = ();
    /// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
    /// #         Ok(())
    /// #     }
    /// # }
    /// # #[vtable]
    /// # impl AuxPmu for Driver {
    /// #     type Buffer = ();
    /// #     type Trace = ();
    /// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
    /// #         Ok(())
    /// #     }
    /// fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
    ///     // This unit begins at multiples of 64.
    ///     let over = usize::try_from(transaction.region().head().get() % 64)?;
    ///
    ///     if over != 0 {
    ///         transaction.skip(64 - over, |writer| (over..64).try_for_each(|_| writer.put(&[0x55])))?;
    ///     }
    ///     # let mut region = transaction.region();
    ///     # let mut writer = region.reserve(1).map_err(|_| ENOSPC)?;
    ///     # writer.put(&[1]).map_err(|_| ENOSPC)?;
    ///     # writer.commit();
    ///     Ok(())
    /// }
    /// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
    /// #         aux::Commit::written(transaction, aux::Loss::None)
    /// #     }
    /// # }
    /// let mut bench = Bench::new(Driver, &Setup::default())?;
    ///
    /// // A byte of trace, then padding up to the next byte of trace.
    /// for _ in 0..2 {
    ///     bench.add()?;
    ///     bench.del();
    /// }
    /// assert_eq!(bench.head(), 65);
    /// assert_eq!(bench.byte(63), Some(0x55));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn skip(
        &mut self,
        len: usize,
        pad: impl FnOnce(&mut Writer<'_>) -> Result<(), Full>,
    ) -> Result {
        let mut region = self.region();

        if region.mode() == Mode::Overwrite {
            return Err(EOPNOTSUPP);
        }
        if region.written() != 0 {
            return Err(EBUSY);
        }

        let mut writer = region.reserve(len).map_err(|Full| ENOSPC)?;
        pad(&mut writer).map_err(|Full| EINVAL)?;
        if !writer.is_filled() {
            return Err(EINVAL);
        }

        // (B): orders the stores of padding before the store of `aux_head` in
        // `perf_aux_output_skip()`, which has no barrier. Pairs with (C), user space's load
        // barrier between its load of `aux_head` and its loads of trace.
        barrier::smp_mb(barrier::Write);
        // SAFETY:
        // - A transaction is open on the handle, begun on this CPU, by the type invariant.
        // - The padding is stored, and (B) stands above.
        unsafe { (self.skip)(self.handle, u64::try_from(len)?)? };

        self.open.extent.skipped(self.handle);
        Ok(())
    }

    /// Adds `n` to the event's counter, which `read()` and `perf stat` show.
    #[inline]
    pub fn count(&self, n: u64) {
        self.event.count(n, self.cpu);
    }

    /// Where the transaction may write.
    pub(super) fn extent(&self) -> &Extent {
        &self.open.extent
    }

    /// The handle, for calls that leave the transaction open.
    pub(super) fn handle(&mut self) -> &mut Handle {
        self.handle
    }
}

/// What [`AuxPmu::quiesce`] returns: how much of the region holds trace, and what was lost.
///
/// The framework performs barrier (B) after `quiesce()` has returned, and then publishes.
///
/// C counterpart: the size and the flags of `perf_aux_output_end()`.
///
/// # Examples
///
/// A unit that writes through the region need not count:
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, Attr, AuxPmu, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Count = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// # }
/// # #[vtable]
/// # impl AuxPmu for Driver {
/// #     type Buffer = ();
/// #     type Trace = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// #     fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
/// #         let mut region = transaction.region();
/// #         let mut writer = region.reserve(3).map_err(|_| ENOSPC)?;
/// #         writer.put(b"abc").map_err(|_| EINVAL)?;
/// #         writer.commit();
/// #         Ok(())
/// #     }
/// fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
///     aux::Commit::written(transaction, aux::Loss::Gap { bytes: None })
/// }
/// # }
/// # let mut bench = perf::testing::Bench::new(Driver, &perf::testing::Setup::default())?;
/// # bench.add()?;
/// # bench.del();
/// # assert_eq!(bench.head(), 3);
/// # assert!(bench.records().iter().all(|record| record.is_partial()));
/// # Ok::<(), Error>(())
/// ```
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub(super) len: u64,
    pub(super) losses: Losses,
    pub(super) format: Format,
    /// Whether in overwrite mode `aux_head` is an offset.
    pub(super) is_offset: bool,
}

impl Commit {
    /// The first `len` bytes of the region hold trace.
    ///
    /// In non-overwrite mode `len` is at most [`Region::space`]. In overwrite mode it is the number
    /// of all bytes that the unit wrote, however often it wrapped.
    #[inline]
    pub fn new(len: u64, loss: Loss) -> Self {
        Self {
            len,
            losses: loss.into(),
            format: Format::default(),
            is_offset: false,
        }
    }

    /// The bytes that the region's [`Writer`]s have written hold trace.
    #[inline]
    pub fn written<T: AuxPmu>(transaction: &Transaction<'_, T>, loss: Loss) -> Self {
        Self::new(transaction.open.extent.written(), loss)
    }

    /// Adds a loss: trace can be lost for more than one reason.
    #[inline]
    pub fn and_lost(self, loss: Loss) -> Self {
        Self {
            losses: self.losses.and(loss),
            ..self
        }
    }

    /// In overwrite mode: the unit does not know how often it wrapped, so the length counts modulo
    /// the size of the area.
    ///
    /// perf then publishes the head as an offset in the area, and a record of the area's size. A
    /// reader must find out by itself whether the area wrapped. A unit that counts its bytes should
    /// not use this. In non-overwrite mode this has no effect.
    ///
    /// C counterpart: `handle->head` in `pt_event_stop()`, `arch/x86/events/intel/pt.c`.
    #[inline]
    pub fn as_offset(self) -> Self {
        Self {
            is_offset: true,
            ..self
        }
    }

    /// The trace is in this format, if the PMU has more than one.
    #[inline]
    pub fn in_format(self, format: Format) -> Self {
        Self { format, ..self }
    }
}

/// A format of trace. The numbers are the PMU's own; the default is 0.
///
/// C counterpart: `PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Format(u8);

impl Format {
    /// The format with this number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// As flags of a record.
    #[inline]
    pub(super) const fn flags(self) -> u64 {
        // CAST: Widens. The mask is that of bits 8 to 15.
        (self.0 as u64) << bindings::PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK.trailing_zeros()
    }
}

/// What happens after a callback.
///
/// C counterpart: none. Drivers end and begin transactions in their interrupt handlers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// The transaction stays open.
    Continue,
    /// The wakeup position is reached, or the region is full: the framework quiesces the unit,
    /// commits, and begins a new transaction if there is space.
    Flush,
}
