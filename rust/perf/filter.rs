// SPDX-License-Identifier: GPL-2.0

//! Address filters: trace only these ranges.
//!
//! User space sets them with `PERF_EVENT_IOC_SET_FILTER`; ranges in files get their addresses when
//! the traced task maps the file, and anew at each exec.
//!
//! C header: [`include/linux/perf_event.h`](srctree/include/linux/perf_event.h),
//! `struct perf_addr_filter`.
//!
//! # Examples
//!
//! A unit with two pairs of address registers. It supports ranges, but no start or stop addresses:
//!
//! ```
//! # use kernel::prelude::*;
//! # use perf::{aux, filter, testing::{Bench, Setup}, Attr, AuxPmu, Event, Pmu};
//! # struct Driver;
//! # #[vtable]
//! # impl Pmu for Driver {
//! #     type Config = ();
//! #     type Event = ();
//! #     type Count = ();
//! #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
//! #         Ok(())
//! #     }
//! fn filters_validate(filters: &[filter::AddrFilter]) -> Result {
//!     if filters.iter().all(|filter| filter.action == filter::Action::Filter) {
//!         Ok(())
//!     } else {
//!         Err(EOPNOTSUPP)
//!     }
//! }
//!
//! # }
//! # #[vtable]
//! # impl AuxPmu for Driver {
//! #     type Buffer = ();
//! #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
//! #         Ok(())
//! #     }
//! // The register values; no trace where the file is not mapped yet.
//! type Trace = [Option<(u64, u64)>; 2];
//!
//! fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Self::Trace> {
//!     let mut registers = [None; 2];
//!
//!     for (register, filter) in registers.iter_mut().zip(transaction.filters()) {
//!         *register = filter.range;
//!     }
//!     # transaction.count(registers.iter().flatten().count().try_into()?);
//!     Ok(registers)
//! }
//! #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: Self::Trace) -> aux::Commit {
//! #         aux::Commit::written(transaction, aux::Loss::None)
//! #     }
//! # }
//!
//! let in_file = filter::AddrFilter {
//!     action: filter::Action::Filter,
//!     in_file: true,
//!     offset: 0x1000,
//!     size: 0x20,
//! };
//! let mut bench = Bench::new(Driver, &Setup { filters: 2, ..Setup::default() })?;
//!
//! bench.set_filters(&[in_file, in_file], Some(0x40_0000))?;
//! assert!(bench.set_filters(&[in_file; 3], None) == Err(EOPNOTSUPP));
//! # bench.add()?;
//! # assert_eq!(bench.counter(), 2);
//! # Ok::<(), Error>(())
//! ```

use crate::bindings;
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    prelude::*, //
};

/// What a filter does.
///
/// C counterpart: `enum perf_addr_filter_action_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Trace while in the range.
    Filter,
    /// Start when the address is reached.
    Start,
    /// Stop when the address is reached.
    Stop,
}

impl Action {
    fn from_raw(action: bindings::perf_addr_filter_action_t) -> Option<Self> {
        match action {
            bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_FILTER => {
                Some(Self::Filter)
            }
            bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_START => Some(Self::Start),
            bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_STOP => Some(Self::Stop),
            _ => None,
        }
    }

    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn as_raw(self) -> bindings::perf_addr_filter_action_t {
        match self {
            Self::Filter => bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_FILTER,
            Self::Start => bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_START,
            Self::Stop => bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_STOP,
        }
    }
}

/// An address filter, as user space sets it.
///
/// C counterpart: `struct perf_addr_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddrFilter {
    /// What the filter does.
    pub action: Action,
    /// Whether `offset` counts from the beginning of a file; else it is an address.
    pub in_file: bool,
    /// Where the filter begins.
    pub offset: u64,
    /// Length in bytes; 0 for a single address.
    pub size: u64,
}

/// An address filter, as the hardware needs it.
///
/// C counterpart: `struct perf_addr_filter_range`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// What the filter does.
    pub action: Action,
    /// First and last address; [`None`] while the task has not mapped the file.
    pub range: Option<(u64, u64)>,
}

/// The filters of perf's list.
///
/// # Safety
///
/// `list` must be the head of a list of `struct perf_addr_filter`s that does not change in the
/// lifetime that the caller picks.
unsafe fn iter<'a>(
    list: NonNull<bindings::list_head>,
) -> impl Iterator<Item = &'a bindings::perf_addr_filter> {
    let head = list.as_ptr();
    // SAFETY: The caller guarantees that this is the head of a list that does not change.
    let mut next = unsafe { (*head).next };

    core::iter::from_fn(move || {
        if next == head {
            return None;
        }

        // SAFETY: The caller guarantees that this is a list of filters, and `next` is not its head:
        // it is part of a filter.
        let filter = unsafe { &*container_of!(next, bindings::perf_addr_filter, entry) };
        next = filter.entry.next;
        Some(filter)
    })
}

/// The filters of perf's list, at most `max`.
///
/// perf leaves the check of their number to the driver, and indexes an array of
/// `pmu->nr_addr_filters` entries with them. So more than `max` filters give [`EOPNOTSUPP`].
///
/// # Safety
///
/// `list` must be what perf passes to `addr_filters_validate()`.
pub(crate) unsafe fn of_list(
    list: NonNull<bindings::list_head>,
    max: usize,
) -> Result<KVec<AddrFilter>> {
    let mut filters = KVec::new();

    // SAFETY: The caller guarantees that perf passes this list to `addr_filters_validate()`. It is
    // perf's own, and does not change during that call.
    for filter in unsafe { iter(list) } {
        if filters.len() >= max {
            return Err(EOPNOTSUPP);
        }

        filters.push(
            AddrFilter {
                action: Action::from_raw(filter.action).ok_or(EINVAL)?,
                in_file: !filter.path.dentry.is_null(),
                offset: filter.offset.try_into()?,
                size: filter.size.try_into()?,
            },
            GFP_KERNEL,
        )?;
    }

    Ok(filters)
}

/// The address filters of an event, as its hardware needs them.
///
/// # Invariants
///
/// The list is written in [`Self::sync`] only: on the event's CPU, while no transaction of the
/// event is open.
pub(crate) struct Filters(UnsafeCell<KVec<Filter>>);

// SAFETY: The list is written on the event's CPU while no transaction of the event is open, by the
// type invariant. It is read in an open transaction of the event, by the safety requirement of
// `get()`.
unsafe impl Sync for Filters {}

impl Filters {
    /// An empty list with space for `max` filters.
    pub(crate) fn new(max: usize) -> Result<Self> {
        // INVARIANT: No event has the list yet, so no transaction reads it.
        Ok(Self(UnsafeCell::new(KVec::with_capacity(max, GFP_KERNEL)?)))
    }

    /// The filters.
    ///
    /// # Safety
    ///
    /// A transaction of the event must be open, or about to be in this callback, for as long as the
    /// slice is used.
    pub(crate) unsafe fn get(&self) -> &[Filter] {
        // SAFETY: The caller guarantees that a transaction is open, or about to be. By the type
        // invariant the list is not written then.
        unsafe { &*self.0.get() }
    }

    /// Copies perf's filters, with the addresses that perf has resolved.
    ///
    /// # Safety
    ///
    /// - `list` must be the list of the event's filters, locked; `ranges` an array with an entry
    ///   for each.
    /// - No transaction of the event may be open, and this must be its CPU, with interrupts off.
    pub(crate) unsafe fn sync(
        &self,
        list: NonNull<bindings::list_head>,
        ranges: *const bindings::perf_addr_filter_range,
    ) {
        // SAFETY: The caller guarantees that no transaction of the event is open, so nothing reads
        // the list, and that this is the event's CPU, so nothing else writes it.
        let filters = unsafe { &mut *self.0.get() };
        let mut entry = ranges;
        filters.clear();

        // SAFETY: The caller guarantees that this is the list of the event's filters, and that it
        // is locked.
        for filter in unsafe { iter(list) } {
            // SAFETY: The caller guarantees that `ranges` has an entry for each filter.
            let found = unsafe { entry.read() };
            let mapped = filter.path.dentry.is_null() || found.start != 0;
            let range = mapped.then(|| range(found.start, found.size));

            if let Some(action) = Action::from_raw(filter.action) {
                // Fits: `of_list()` has accepted no more filters than there is space for.
                let _ = filters.push_within_capacity(Filter { action, range });
            }
            // SAFETY: The next entry is in the array, or right behind it.
            entry = unsafe { entry.add(1) };
        }
    }
}

/// First and last address of a range that may reach the end of the address space.
fn range(start: c_ulong, size: c_ulong) -> (u64, u64) {
    // CAST: Both have 64 bits: the crate refuses to be built for others.
    let (start, size) = (start as u64, size as u64);

    (start, start.saturating_add(size.saturating_sub(1)))
}

/// A list of filters like perf's, made by a test.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) struct List {
    head: KBox<bindings::list_head>,
    _filters: KVec<KBox<bindings::perf_addr_filter>>,
}

#[cfg(CONFIG_KUNIT = "y")]
impl List {
    /// A list of filters, each given as its action, offset, size and whether it is in a file.
    pub(crate) fn new(wanted: impl IntoIterator<Item = (u32, usize, usize, bool)>) -> Result<Self> {
        let mut head = KBox::new(bindings::list_head::default(), GFP_KERNEL)?;
        let mut filters = KVec::new();
        let mut last = core::ptr::from_mut(&mut *head);

        for (action, offset, size, in_file) in wanted {
            let mut filter = KBox::new(
                // SAFETY: All fields are pointers and integers, for which 0 is a value.
                unsafe { core::mem::zeroed::<bindings::perf_addr_filter>() },
                GFP_KERNEL,
            )?;
            filter.action = action;
            filter.offset = offset;
            filter.size = size;
            if in_file {
                filter.path.dentry = NonNull::dangling().as_ptr();
            }

            let entry = &raw mut filter.entry;
            // SAFETY: `last` points to the head or to the entry of the last filter: boxed, owned by
            // this function, and without a reference to it now.
            unsafe { (*last).next = entry };
            last = entry;
            filters.push(filter, GFP_KERNEL)?;
        }
        let first = core::ptr::from_mut(&mut *head);
        // SAFETY: `last` points to the head or to the entry of the last filter: boxed, owned by
        // this function, and without a reference to it now.
        unsafe { (*last).next = first };

        Ok(Self {
            head,
            _filters: filters,
        })
    }

    pub(crate) fn head(&mut self) -> NonNull<bindings::list_head> {
        NonNull::from(&mut *self.head)
    }
}

#[kunit_tests(rust_perf_filter)]
mod tests {
    use super::*;
    use core::ptr;

    const FILTER: u32 = bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_FILTER;
    const START: u32 = bindings::perf_addr_filter_action_t_PERF_ADDR_FILTER_ACTION_START;

    #[test]
    fn number_is_bounded() -> Result {
        let three = [(FILTER, 0, 1, false); 3];

        for (n, max, good) in [(0, 0, true), (1, 0, false), (2, 2, true), (3, 2, false)] {
            let mut list = List::new(three.into_iter().take(n))?;
            // SAFETY: This is a list of filters, of our own.
            let wanted = unsafe { of_list(list.head(), max) };

            assert_eq!(wanted.is_ok(), good);
            assert!(good || wanted.err() == Some(EOPNOTSUPP));
        }
        Ok(())
    }

    #[test]
    fn asked_for_is_told() -> Result {
        let mut list = List::new([(START, 0x1000, 0, true), (77, 0, 0, false)])?;

        // SAFETY: This is a list of filters, of our own. The second has an action that perf does
        // not know.
        assert!(unsafe { of_list(list.head(), 8) }.err() == Some(EINVAL));

        let mut list = List::new([(START, 0x1000, 0, true)])?;
        // SAFETY: This is a list of filters, of our own.
        let wanted = unsafe { of_list(list.head(), 8)? };
        let expected = AddrFilter {
            action: Action::Start,
            in_file: true,
            offset: 0x1000,
            size: 0,
        };
        assert!(wanted.first() == Some(&expected));
        Ok(())
    }

    #[test]
    fn addresses_are_taken_over() -> Result {
        // Address and size that perf has resolved, whether the filter is in a file, and the
        // expected range.
        let table = [
            (0x1000, 0x10, false, Some((0x1000, 0x100f))),
            (0x1000, 0x10, true, Some((0x1000, 0x100f))),
            // Not mapped yet.
            (0, 0x10, true, None),
            (0, 0x10, false, Some((0, 0xf))),
            // A single address, and the end of the address space.
            (0x2000, 0, false, Some((0x2000, 0x2000))),
            (usize::MAX - 1, 0x100, false, Some((u64::MAX - 1, u64::MAX))),
        ];
        let filters = Filters::new(1)?;

        for (start, size, in_file, range) in table {
            let mut list = List::new([(FILTER, 0, size, in_file)])?;
            let found = bindings::perf_addr_filter_range { start, size };

            // SAFETY: The list and the range are the test's own: one filter, one range. `filters`
            // is the test's own too: no event has it, so no transaction is open, and no other CPU
            // or interrupt uses it.
            unsafe { filters.sync(list.head(), &found) };
            let expected = Filter {
                action: Action::Filter,
                range,
            };
            // SAFETY: Nothing writes to them meanwhile.
            assert!(unsafe { filters.get() } == [expected]);
        }

        // User space removes all filters.
        let mut list = List::new([])?;
        // SAFETY: The list is the test's own and empty, so no range is read. `filters` is the
        // test's own too: no event has it, so no transaction is open, and no other CPU or interrupt
        // uses it.
        unsafe { filters.sync(list.head(), ptr::null()) };
        // SAFETY: Nothing writes to them meanwhile.
        assert!(unsafe { filters.get() }.is_empty());
        Ok(())
    }
}
