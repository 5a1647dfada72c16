// SPDX-License-Identifier: GPL-2.0

//! Units that raise an NMI.

use super::Entry;
use crate::{
    aux::AuxPmu,
    bindings,
    context::DropInTask,
    pmu::Pmu, //
};
use kernel::{
    container_of,
    error::to_result,
    module::this_module,
    prelude::*,
    types::Opaque, //
};

/// A handler for units that raise an NMI through the local APIC of their CPU.
///
/// x86 only. When this is dropped, in any context, the handler is removed. If it is forgotten, the
/// handler is removed when the module is unloaded, but its memory is not freed.
///
/// C counterpart: `register_nmi_handler()` with `NMI_LOCAL`.
///
/// # Examples
///
/// ```
/// use kernel::prelude::*;
/// use perf::{interrupt::{Entry, Nmi}, AuxPmu};
///
/// fn request<T: AuxPmu>(entry: Entry<T>, has_raised: fn(&T) -> bool) -> Result<Nmi<T>> {
///     Nmi::new(entry, has_raised)
/// }
/// ```
pub struct Nmi<T: AuxPmu>(#[expect(dead_code, reason = "only dropped")] DropInTask<Added<T>>);

/// A node that is removed from the list when it is dropped.
///
/// # Invariants
///
/// `0` was added to the list. Only the module notifier may have removed it.
struct Added<T: AuxPmu>(Pin<KBox<Node<T>>>);

/// # Invariants
///
/// `node` is on the list of handlers, with [`Self::handle`], until it is dropped or the module is
/// unloaded.
#[pin_data]
struct Node<T: AuxPmu> {
    #[pin]
    node: Opaque<bindings::rust_perf_nmi>,
    entry: Entry<T>,
    has_raised: fn(&T) -> bool,
}

// SAFETY: An entry may be used on any CPU, and C locks the list.
unsafe impl<T: AuxPmu> Send for Node<T> {}
// SAFETY: NMIs only read it, on any CPU: an entry and a function pointer are `Sync`. C locks the
// list.
unsafe impl<T: AuxPmu> Sync for Node<T> {}

impl<T: AuxPmu> Nmi<T> {
    /// At each NMI on a CPU, the handler calls `has_raised` to find out whether the unit of that
    /// CPU has raised it. If so, it calls [`Entry::interrupt`], and the NMI counts as handled.
    ///
    /// `has_raised` runs in NMI. It must acknowledge the interrupt in the unit, since the next NMI
    /// on the same CPU may be that of another unit.
    ///
    /// Context: task, may sleep.
    pub fn new(entry: Entry<T>, has_raised: fn(&T) -> bool) -> Result<Self> {
        let node = KBox::pin_init(
            try_pin_init!(Node {
                node: Opaque::new(bindings::rust_perf_nmi {
                    handle: Some(Node::<T>::handle),
                    module: this_module::<<T as Pmu>::OwnerModule>().as_ptr(),
                    ..Default::default()
                }),
                entry,
                has_raised,
            }? Error),
            GFP_KERNEL,
        )?;

        // INVARIANT: The node is removed when it is dropped, or by the module notifier.
        //
        // SAFETY: The node is pinned, and is removed before it is freed.
        to_result(unsafe { bindings::rust_perf_nmi_add(node.node.get()) })?;
        // INVARIANT: Just added.
        let added = Added(node);
        let module = this_module::<<T as Pmu>::OwnerModule>().as_ptr();

        // SAFETY: `this_module()` is the module into which this is compiled.
        Ok(Self(unsafe { DropInTask::new(added, module)? }))
    }
}

impl<T: AuxPmu> Node<T> {
    /// # Safety
    ///
    /// `node` must be that of a `Node<T>` on the list.
    unsafe extern "C" fn handle(node: *mut bindings::rust_perf_nmi) -> bool {
        // SAFETY: The caller guarantees that this is the node of a `Node<T>`.
        let this = unsafe { container_of!(Opaque::cast_from(node), Self, node) };
        // SAFETY: The node is removed before it is freed, and the removal waits for this function.
        let this = unsafe { &*this };

        (this.has_raised)(this.entry.driver()) && {
            this.entry.interrupt();
            true
        }
    }
}

impl<T: AuxPmu> Drop for Added<T> {
    fn drop(&mut self) {
        // SAFETY: The node was added, by the type invariant. This is a task that may sleep:
        // `DropInTask` ensures that.
        unsafe { bindings::rust_perf_nmi_del(self.0.node.get()) };
    }
}

#[cfg(CONFIG_RUST_PERF_TESTING)]
#[kunit_tests(rust_perf_interrupt_nmi)]
mod tests {
    use super::*;
    use crate::{
        aux,
        event::{
            Attr,
            Event, //
        },
        pmu::Description, //
    };
    use kernel::{
        interrupt::local_interrupt_disable,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        }, //
    };

    /// How often `has_raised()` was called in NMI, and elsewhere.
    struct Counts {
        nmi: Atomic<i32>,
        other: Atomic<i32>,
    }

    struct Unit(Arc<Counts>);

    #[vtable]
    impl Pmu for Unit {
        type Config = ();
        type Event = ();
        type Count = ();

        fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
            Ok(())
        }
    }

    #[vtable]
    impl AuxPmu for Unit {
        type Buffer = ();
        type Trace = ();

        fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
            Ok(())
        }

        fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
            Ok(())
        }

        fn interrupt(
            &self,
            _transaction: &mut aux::Transaction<'_, Self>,
            _trace: &mut (),
        ) -> aux::Next {
            aux::Next::Continue
        }

        fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
            aux::Commit::written(transaction, aux::Loss::None)
        }
    }

    /// Takes every NMI for that of the test, and counts it.
    fn has_raised(unit: &Unit) -> bool {
        // SAFETY: Reading the context has no requirements.
        let asked = match unsafe { bindings::rust_perf_in_nmi() } {
            true => &unit.0.nmi,
            false => &unit.0.other,
        };
        asked.fetch_add(1, Relaxed);
        true
    }

    /// Raises `times` NMIs. After each, waits for a while until `counts` changes, unless it was
    /// `wanted` already.
    fn raise(counts: &Counts, times: i32, wanted: i32) {
        for _ in 0..times {
            let before = counts.nmi.load(Relaxed);
            // SAFETY: An NMI may be sent anywhere: a handler takes it, or the kernel treats it as
            // unknown.
            unsafe { bindings::rust_perf_nmi_raise() };
            for _ in 0..1_000_000 {
                if counts.nmi.load(Relaxed) != before || before == wanted {
                    break;
                }
                core::hint::spin_loop();
            }
        }
    }

    #[test]
    fn nmis_reach_the_entry() -> Result {
        let counts = Arc::new(
            Counts {
                nmi: Atomic::new(0),
                other: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;
        let unit = Unit(counts.clone());
        let pmu = aux::Registration::new(Description::new(c"rust_perf_nmi"), unit)?;
        let first = Nmi::new(pmu.entry(), has_raised)?;

        raise(&counts, 5, 5);
        assert_eq!(counts.nmi.load(Relaxed), 5);
        // Two handlers are on the list, which both count the NMI. Then the second is there alone.
        let second = Nmi::new(pmu.entry(), has_raised)?;
        raise(&counts, 1, 7);
        assert_eq!(counts.nmi.load(Relaxed), 7);
        drop(first);
        raise(&counts, 1, 8);
        assert_eq!(counts.nmi.load(Relaxed), 8);
        assert_eq!(counts.other.load(Relaxed), 0);
        // The entry outlives the PMU.
        drop(pmu);
        raise(&counts, 1, 9);
        assert_eq!(counts.nmi.load(Relaxed), 9);
        // With interrupts off, a worker removes the handler, and drops the last entry with it.
        let off = local_interrupt_disable();
        drop(second);
        drop(off);
        // SAFETY: This is a task that may sleep, and none of the workers that it waits for.
        unsafe { bindings::rust_perf_later_flush() };
        assert!(Arc::into_unique_or_drop(counts).is_some());
        Ok(())
    }
}
