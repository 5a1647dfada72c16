// SPDX-License-Identifier: GPL-2.0

//! The AUX ring, from a driver's side.
//!
//! C counterpart: `perf_aux_output_begin()`, `perf_aux_output_end()`, `perf_aux_output_skip()` and
//! `perf_aux_output_flag()` in `kernel/events/ring_buffer.c`.

use crate::{
    bindings,
    context,
    event::Event,
    pmu::Pmu, //
};
use kernel::{
    prelude::*,
    sync::barrier,
    time::Delta, //
};
use loss::Losses;

#[cfg(CONFIG_KUNIT = "y")]
#[path = "aux/bench.rs"]
pub(crate) mod bench;
#[path = "aux/bounce.rs"]
mod bounce;
#[path = "aux/buffer.rs"]
mod buffer;
#[cfg(CONFIG_KUNIT = "y")]
#[path = "aux/fake.rs"]
pub(crate) mod fake;
#[path = "aux/gate.rs"]
mod gate;
#[path = "aux/loss.rs"]
mod loss;
#[path = "aux/mapping.rs"]
mod mapping;
#[path = "aux/output.rs"]
mod output;
#[path = "aux/sample.rs"]
mod sample;
#[cfg(CONFIG_KUNIT = "y")]
#[path = "aux/skip.rs"]
mod skip;
#[path = "aux/slot.rs"]
mod slot;
#[cfg(CONFIG_KUNIT = "y")]
#[path = "aux/tests.rs"]
mod tests;
#[path = "aux/unit.rs"]
mod unit;
#[path = "aux/window.rs"]
mod window;

pub use auxcore::table;
pub use bounce::Bounce;
pub use buffer::{
    Chunk,
    Mode,
    Pages, //
};
pub use loss::Loss;
pub use mapping::Mapping;
pub use sample::{
    Sample,
    Taken, //
};
pub use window::{
    Full,
    Window,
    Writer, //
};

pub(crate) use buffer::{
    Buffer,
    Live, //
};
pub(crate) use slot::Slot;
pub(crate) use unit::{
    Shared,
    Start, //
};

/// An open transaction, as a driver's callbacks see it.
///
/// It lives for one callback; between callbacks the framework keeps the transaction, on the
/// event's CPU.
///
/// C counterpart: an open `struct perf_output_handle`.
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
///     pr_debug!("{} bytes from {} on", session.window.size().get(), session.window.head().get());
///     session.count(1);
///     Ok(())
/// }
/// #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
/// #         aux::Written::by_writer(session.window, aux::Loss::None)
/// #     }
/// # }
/// let mut bench = Bench::new(Driver, &Setup::default())?;
///
/// bench.add()?;
/// assert_eq!(bench.counter(), 1);
/// # Ok::<(), Error>(())
/// ```
pub struct Session<'a, T: Pmu> {
    /// The event that is traced.
    pub event: &'a Event<'a, T>,
    /// What [`Pmu::setup_aux`] returned for this ring.
    ///
    /// Exclusive: perf opens one transaction on a ring at a time.
    pub buffer: &'a mut T::Buffer,
    /// The part of the ring that may be written.
    pub window: &'a mut Window,
    /// The CPU that this runs on, with interrupts off.
    pub cpu: &'a context::Cpu,
    timer: &'a mut Option<Delta>,
    wanted: &'a mut bool,
    transaction: output::Transaction<'a>,
}

impl<T: Pmu> Session<'_, T> {
    /// Has [`Pmu::tick`] called in this interval from now on, in hard interrupt context, until the
    /// session ends. Intervals that are missed are not made up for.
    ///
    /// Every session starts with no timer.
    pub fn set_timer(&mut self, interval: Delta) {
        const_assert!(T::HAS_TICK, "a timer needs Pmu::tick()");
        *self.timer = Some(interval);
    }

    /// Has [`Pmu::deferred`] called soon, for what must not be done here: to take a lock that is
    /// not raw, or to wake somebody up. May be asked for in NMI.
    ///
    /// C counterpart: `irq_work_queue()`.
    pub fn defer(&mut self) {
        const_assert!(T::HAS_DEFERRED, "what is deferred needs Pmu::deferred()");
        *self.wanted = true;
    }

    /// Gives the next `len` bytes of the window to the reader as padding, for a unit that begins at
    /// multiples of something only. `pad` writes them all, in a way that the trace's decoder skips;
    /// the window then begins behind them, with what perf says is left and with its wakeup point.
    ///
    /// Only in linear mode, and while nothing has been written that is not committed: in
    /// [`Pmu::start`] before the unit runs, or while [`Window::written`] is 0 and the unit has not
    /// written by itself. No `PERF_RECORD_AUX` tells of padding, but `aux_head` does.
    ///
    /// Nothing has happened after an error: [`EOPNOTSUPP`] in overwrite mode, [`EBUSY`] if
    /// something has been written, [`ENOSPC`] if the window has less space, [`EINVAL`] if `pad`
    /// wrote less than `len`, or more.
    ///
    /// C counterpart: `perf_aux_output_skip()`.
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
    ///     // This unit begins at multiples of 64.
    ///     let over = usize::try_from(session.window.head().get() % 64)?;
    ///
    ///     if over != 0 {
    ///         session.skip(64 - over, |writer| (over..64).try_for_each(|_| writer.put(&[0x55])))?;
    ///     }
    ///     # let mut writer = session.window.reserve(1).map_err(|_| ENOSPC)?;
    ///     # writer.put(&[1]).map_err(|_| ENOSPC)?;
    ///     # writer.commit();
    ///     Ok(())
    /// }
    /// #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
    /// #         aux::Written::by_writer(session.window, aux::Loss::None)
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
        if self.window.mode() == Mode::Overwrite {
            return Err(EOPNOTSUPP);
        }
        if self.window.written() != 0 {
            return Err(EBUSY);
        }

        let mut writer = self.window.reserve(len).map_err(|Full| ENOSPC)?;
        pad(&mut writer).map_err(|Full| EINVAL)?;
        if !writer.is_filled() {
            return Err(EINVAL);
        }

        // perf publishes `aux_head` at once, without a barrier of its own: (B) stands here, between
        // the stores of padding and that.
        let handle = self
            .transaction
            .skip(u64::try_from(len)?, Published::cpu_stores())?;

        self.window.begin_at(handle);
        Ok(())
    }

    /// Adds `n` to the event's counter, which `read()` and `perf stat` show.
    pub fn count(&self, n: u64) {
        self.event.count(n, self.cpu);
    }
}

/// A run of the unit without a ring, as a driver's callbacks see it: there is a counter, and nowhere
/// to write.
///
/// It lives for one callback, as a [`Session`] does.
pub struct Counting<'a, T: Pmu> {
    /// The event that counts.
    pub event: &'a Event<'a, T>,
    /// The CPU that this runs on, with interrupts off.
    pub cpu: &'a context::Cpu,
    timer: &'a mut Option<Delta>,
}

impl<T: Pmu> Counting<'_, T> {
    /// Has [`Pmu::count_tick`] called in this interval from now on; as [`Session::set_timer`].
    pub fn set_timer(&mut self, interval: Delta) {
        const_assert!(T::HAS_COUNT_TICK, "a timer needs Pmu::count_tick()");
        *self.timer = Some(interval);
    }

    /// Adds `n` to the event's counter, which `read()` and `perf stat` show.
    pub fn count(&self, n: u64) {
        self.event.count(n, self.cpu);
    }
}

/// Proof that all that was written to the ring can be seen by other CPUs: barrier (B) of the perf
/// ring buffer's protocol.
///
/// (B) stands between the stores of trace and the store of `aux_head`; it pairs with (C), user
/// space's load barrier between its load of `aux_head` and its loads of trace. perf leaves it to
/// the driver, since only the driver knows who stored.
///
/// C counterpart: the `smp_wmb()`, or the drain of the unit, in a driver before
/// `perf_aux_output_end()`.
///
/// # Examples
///
/// ```
/// use perf::aux::{Loss, Published, Written};
///
/// // A timer function copied 32 bytes.
/// let by_cpu = Written::new(32, Published::cpu_stores(), Loss::None);
///
/// // A unit stored them by DMA: `drain` waits until it says that its buffers are empty.
/// let drain = || while !is_drained() {};
/// let by_unit = Written::new(32, Published::device(drain), Loss::None);
/// # fn is_drained() -> bool { true }
/// ```
pub struct Published(());

impl Published {
    /// A CPU stored the trace, with ordinary stores.
    #[inline]
    pub fn cpu_stores() -> Self {
        // (B): orders the stores of trace or of padding before the store of `aux_head` in
        // `perf_aux_output_end()` or `perf_aux_output_skip()`. Pairs with (C), the reader's
        // `smp_rmb()` or load-acquire.
        barrier::smp_mb(barrier::Write);

        Self(())
    }

    /// A device stored the trace, and `drain` returns when all of it has reached memory, in an
    /// order that other CPUs respect.
    #[inline]
    pub fn device(drain: impl FnOnce()) -> Self {
        drain();

        Self(())
    }
}

/// What [`Pmu::quiesce`] hands back: how much of the window now holds trace.
///
/// C counterpart: the length that `perf_aux_output_end()` takes, and the flags.
///
/// # Examples
///
/// A unit that copies through the window need not count:
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, Attr, Event, Pmu};
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
/// #     fn start(&self, session: &mut aux::Session<'_, Self>) -> Result {
/// #         let mut writer = session.window.reserve(3).map_err(|_| ENOSPC)?;
/// #         writer.put(b"abc").map_err(|_| EINVAL)?;
/// #         writer.commit();
/// #         Ok(())
/// #     }
/// fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
///     aux::Written::by_writer(session.window, aux::Loss::Gap { bytes: None })
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
pub struct Written {
    len: u64,
    losses: Losses,
    format: Format,
    _published: Published,
}

impl Written {
    /// The first `len` bytes of the window hold trace.
    ///
    /// In linear mode `len` is at most [`Window::space`]; in overwrite mode it is what the unit
    /// wrote in all, however often that went round.
    pub fn new(len: u64, published: Published, loss: Loss) -> Self {
        Self {
            len,
            losses: loss.into(),
            format: Format::default(),
            _published: published,
        }
    }

    /// All that went through the window's [`Writer`]s holds trace.
    pub fn by_writer(window: &Window, loss: Loss) -> Self {
        Self::new(window.written(), Published::cpu_stores(), loss)
    }

    /// And this was lost, too: trace can be lost for more than one reason.
    pub fn and_lost(self, loss: Loss) -> Self {
        Self {
            losses: self.losses.and(loss),
            ..self
        }
    }

    /// The trace is in this format, if the PMU has more than one.
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
    const fn flags(self) -> u64 {
        // CAST: Widens. The mask is that of bits 8 to 15.
        (self.0 as u64) << bindings::PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK.trailing_zeros()
    }
}

/// What is to happen after a [`Pmu::tick`].
///
/// C counterpart: none; drivers commit and begin anew in their interrupt handlers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// Go on in this session.
    Continue,
    /// Quiesce, commit, and go on in a new session if there is room: the wakeup point was reached,
    /// or the window is full.
    Commit,
}
