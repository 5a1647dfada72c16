// SPDX-License-Identifier: GPL-2.0

//! PMUs with an AUX area.
//!
//! C counterpart: `perf_aux_output_*()` in `kernel/events/ring_buffer.c`, and the callbacks of
//! `struct pmu` for AUX.

use crate::{
    context,
    event::Event,
    pmu::Pmu, //
};
use kernel::{
    error::VTABLE_DEFAULT_ERROR,
    prelude::*, //
};

mod bounce;
mod buffer;
pub(crate) mod core;
pub(crate) mod cpu;
mod device_table;
pub(crate) mod dma;
mod loss;
pub(crate) mod pages;
mod region;
mod ring;
pub(crate) mod sample;
mod transaction;
mod vmap;
mod vtable;

pub use auxcore::table;
pub use bounce::{
    Bounce,
    BounceMemory, //
};
pub use device_table::DeviceTable;
pub use dma::{
    CoherentBounce,
    DeviceChunk,
    DmaMapping, //
};
pub use loss::Loss;
pub use pages::{
    Chunk,
    Mode,
    Pages, //
};
pub use region::{
    Full,
    Region,
    Writer, //
};
pub use sample::{
    Copied,
    Sample, //
};
pub use transaction::{
    Commit,
    Format,
    Next,
    Parts,
    Transaction, //
};
pub use vmap::VirtualMapping;
pub use vtable::Aux;

pub(crate) use buffer::Buffer;

/// A registered PMU with an AUX area.
pub type Registration<T> = crate::registration::Registration<T, Aux>;

/// A PMU with an AUX area.
///
/// The framework owns the transaction: it calls [`start`](Self::start) after
/// `perf_aux_output_begin()`, and `perf_aux_output_end()` after [`quiesce`](Self::quiesce). The
/// driver owns the hardware.
///
/// The state of a driver lives in three places, and nowhere else:
///
/// - The value that [`Pmu::event_init`] returns belongs to the event.
/// - The value that [`setup_aux`](Self::setup_aux) returns belongs to the AUX area.
/// - The value that [`start`](Self::start) returns belongs to one transaction on one CPU.
///
/// C counterpart: `struct pmu`.
///
/// # Examples
///
/// A unit that writes a byte at every tick. `Documentation/driver-tutorial.md` develops a longer
/// example step by step.
///
/// ```
/// use kernel::{prelude::*, time::Delta};
/// use perf::{aux, Attr, AuxPmu, Event, Pmu};
///
/// struct Dots;
///
/// #[vtable]
/// impl Pmu for Dots {
///     type Config = ();
///     type Event = ();
///     type Count = ();
///
///     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
///         Ok(())
///     }
/// }
///
/// #[vtable]
/// impl AuxPmu for Dots {
///     type Buffer = ();
///     type Trace = ();
///
///     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
///         Ok(())
///     }
///
///     fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
///         transaction.set_timer(Delta::from_millis(1));
///         Ok(())
///     }
///
///     fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) -> aux::Next {
///         let mut region = transaction.region();
///         let written = region.reserve(1).and_then(|mut writer| {
///             writer.put(b".")?;
///             writer.commit();
///             Ok(())
///         });
///
///         match written {
///             Ok(()) if !region.wakeup_due() => aux::Next::Continue,
///             _ => aux::Next::Flush,
///         }
///     }
///
///     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
///         aux::Commit::written(transaction, aux::Loss::None)
///     }
/// }
///
/// # use perf::testing::{Bench, Setup};
/// # let mut bench = Bench::new(Dots, &Setup::default())?;
/// # bench.add()?;
/// # assert!(bench.tick() && bench.tick());
/// # bench.del();
/// # assert!(bench.read()?.as_slice() == b"..");
/// # Ok::<(), Error>(())
/// ```
#[vtable]
pub trait AuxPmu: Pmu {
    /// State of an AUX area. Outlives the event and the PMU if user space keeps the mapping.
    type Buffer: Send + 'static;

    /// State of a transaction.
    ///
    /// Plain data: it may be dropped in NMI, so a type with drop glue is refused at compile time.
    /// Small: it is moved at each start and stop. Large state belongs in [`Buffer`](Self::Buffer).
    type Trace: Send;

    /// User space maps an AUX area for `event`.
    ///
    /// perf turns every error into [`ENOMEM`].
    ///
    /// Context: task, may sleep; `mmap_lock` is held.
    ///
    /// C counterpart: `pmu->setup_aux()`. The returned value is dropped in `pmu->free_aux()`.
    fn setup_aux(&self, event: &Event<'_, Self>, pages: &Pages) -> Result<Self::Buffer>;

    /// The mapping through which the unit writes to the AUX area, if it does so by DMA: see
    /// [`Pages::map_dma`]. The framework synchronises it before [`start`](Self::start) and after
    /// [`quiesce`](Self::quiesce).
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `dma_sync_sgtable_for_device()` and `dma_sync_sgtable_for_cpu()`.
    fn dma<'a>(&self, _buffer: &'a Self::Buffer) -> Option<&'a DmaMapping> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Starts the unit. It may write to the transaction's region from now on.
    ///
    /// Context: interrupts off on the event's CPU, under perf's raw locks: no sleeping, no
    /// allocation, no `SpinLock`.
    ///
    /// C counterpart: `pmu->start()`, after `perf_aux_output_begin()`.
    fn start(&self, transaction: &mut Transaction<'_, Self>) -> Result<Self::Trace>;

    /// Stops the unit, for good or for a commit, and reports what it wrote.
    ///
    /// When this returns, the unit writes no more, and what it has written is in memory.
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `pmu->stop()`, before `perf_aux_output_end()`.
    fn quiesce(&self, transaction: &mut Transaction<'_, Self>, trace: Self::Trace) -> Commit;

    /// The timer that was [set](Transaction::set_timer) has expired.
    ///
    /// The work of one call must be bounded: no user code runs on the CPU meanwhile.
    ///
    /// Context: hard interrupt on the event's CPU.
    fn tick(&self, _transaction: &mut Transaction<'_, Self>, _trace: &mut Self::Trace) -> Next {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The unit has raised its interrupt: see [`Entry`](crate::interrupt::Entry).
    ///
    /// Called if a transaction is open on the unit's CPU. Interrupts merge. An interrupt that
    /// arrives while the unit is stopped is not reported. [`quiesce`](Self::quiesce) and
    /// [`start`](Self::start) must leave no interrupt pending: the next transaction would take it
    /// for its own.
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: the driver's interrupt handler, between its lookup of the open handle and its
    /// `perf_aux_output_end()` and `begin()`.
    fn interrupt(
        &self,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Self::Trace,
    ) -> Next {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Pauses the unit until [`resume`](Self::resume), by the cheapest means. The transaction stays
    /// open.
    ///
    /// A driver that implements this implements [`resume`](Self::resume) too, and the PMU gets the
    /// capability `PERF_PMU_CAP_AUX_PAUSE`. Its [`start`](Self::start) leaves the unit paused. The
    /// framework then calls `resume`, unless the event is paused.
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `pmu->stop()` with `PERF_EF_PAUSE`.
    fn pause(&self, _transaction: &mut Transaction<'_, Self>, _trace: &mut Self::Trace) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Resumes the unit, which is paused.
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `pmu->start()` with `PERF_EF_RESUME`.
    fn resume(&self, _transaction: &mut Transaction<'_, Self>, _trace: &mut Self::Trace) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Does the work for which the driver called [`Transaction::defer`]. Requests merge: there is
    /// one call for all requests since the last call. The transaction may have ended since, and the
    /// event may be gone.
    ///
    /// It runs outside of a transaction, but may enter one by
    /// [`Entry::with_transaction`](crate::interrupt::Entry::with_transaction). If it calls
    /// `defer()` there, another interrupt calls `deferred` again as soon as it has returned,
    /// without a bound. A driver that always does so leaves no time to user code. To poll, set a
    /// timer.
    ///
    /// Context: hard interrupt on the CPU that asked, never NMI; no lock of perf's or of the
    /// scheduler's is held.
    ///
    /// C counterpart: the function of a `struct irq_work`.
    fn deferred(&self, _cpu: &context::Cpu) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A sample of another event requests the newest trace: the driver reports how far the unit has
    /// written, by [`Sample::copy`].
    ///
    /// The bytes must not change while they are copied. A unit that writes by itself must be
    /// stopped before, and started again afterwards unless it is paused. The transaction stays
    /// open.
    ///
    /// perf requests this only on kernels that export `perf_output_copy_aux()`; others refuse such
    /// samples with `EINVAL`. If no transaction is open, and in an NMI that interrupted a callback,
    /// the driver is not called and the sample contains zeroes. The patches in
    /// `Documentation/patches` add the export, and make perf fill the rest of a shorter sample with
    /// zeroes.
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `pmu->snapshot_aux()`.
    fn snapshot<'a>(
        &self,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Self::Trace,
        _sample: Sample<'a>,
    ) -> Copied<'a> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}
