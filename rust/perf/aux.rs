// SPDX-License-Identifier: GPL-2.0

//! The AUX ring, from a driver's side.
//!
//! C counterpart: `perf_aux_output_begin()`, `perf_aux_output_end()`, `perf_aux_output_skip()` and
//! `perf_aux_output_flag()` in `kernel/events/ring_buffer.c`.

use crate::{
    context,
    event::Event,
    pmu::Pmu, //
};
use kernel::{
    prelude::*,
    sync::barrier,
    time::Delta, //
};

#[cfg(CONFIG_KUNIT = "y")]
#[path = "aux/bench.rs"]
pub(crate) mod bench;
#[path = "aux/buffer.rs"]
mod buffer;
#[cfg(CONFIG_KUNIT = "y")]
#[path = "aux/fake.rs"]
pub(crate) mod fake;
#[path = "aux/gate.rs"]
mod gate;
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
pub use buffer::{
    Chunk,
    Mode,
    Pages, //
};
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
    /// Nothing has happened after an error: [`EOPNOTSUPP`] in overwrite mode, [`EBUSY`] if something
    /// has been written, [`ENOSPC`] if the window has less space, [`EINVAL`] if `pad` wrote less than
    /// `len`, or more.
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
        // SAFETY: The event is live by its type invariant, and this is its CPU with interrupts
        // off, by the invariant of `Cpu`.
        unsafe { crate::bindings::rust_perf_event_count(self.event.as_ptr(), n) };
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

/// What was lost between the start of a session and its end.
///
/// The number of bytes is [`None`] where the unit cannot tell.
///
/// C counterpart: `PERF_AUX_FLAG_*`; the bytes have none.
///
/// # Examples
///
/// ```
/// use perf::aux::Loss;
///
/// /// What a unit's counter of bytes that found no room means.
/// fn loss(lost: u64) -> Loss {
///     match lost {
///         0 => Loss::None,
///         bytes => Loss::NoSpace { bytes: Some(bytes) },
///     }
/// }
///
/// assert!(loss(0) == Loss::None);
/// assert!(loss(8) == Loss::NoSpace { bytes: Some(8) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Loss {
    /// Nothing.
    None,
    /// Trace is missing, but there is room: the unit overflowed inside, say.
    /// `PERF_AUX_FLAG_PARTIAL`.
    Gap {
        /// Bytes lost.
        bytes: Option<u64>,
    },
    /// The ring was full. `PERF_AUX_FLAG_TRUNCATED`: perf disables the event until user space has
    /// made room and enables it again.
    ///
    /// A ring in overwrite mode is never full; there this is a [`Loss::Gap`].
    NoSpace {
        /// Bytes lost.
        bytes: Option<u64>,
    },
    /// The unit reports that samples collided. `PERF_AUX_FLAG_COLLISION`.
    Collision {
        /// Bytes lost.
        bytes: Option<u64>,
    },
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
    loss: Loss,
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
            loss,
            _published: published,
        }
    }

    /// All that went through the window's [`Writer`]s holds trace.
    pub fn by_writer(window: &Window, loss: Loss) -> Self {
        Self::new(window.written(), Published::cpu_stores(), loss)
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
