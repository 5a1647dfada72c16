// SPDX-License-Identifier: GPL-2.0

//! perf PMU drivers, in particular those with an AUX area.
//!
//! The AUX area is the ring buffer through which the kernel hands hardware trace to user space. A
//! driver in C takes three steps for each piece of trace:
//!
//! 1. Open a transaction (`perf_aux_output_begin()`) and let the unit write.
//! 2. Quiesce the unit and make its writes visible (barrier (B)).
//! 3. Close the transaction (`perf_aux_output_end()`).
//!
//! Each step runs on the event's CPU with interrupts off, perhaps under any raw lock or in NMI.
//! Transactions do not nest, and none is open when `stop()` has returned. Meanwhile user space may
//! unmap the AUX area, redirect the event and write any value to the tail.
//!
//! **The framework owns the transaction and the driver owns the hardware.** A driver implements
//! [`Pmu`] and [`AuxPmu`] and makes a [`Registration`](aux::Registration). It never calls begin or
//! end. Its callbacks get an [`aux::Transaction`] with the [`aux::Region`] that they may write.
//! They report the bytes that were written as an [`aux::Commit`].
//!
//! ```text
//!            begin               start                 quiesce           (B), end
//!   Idle ───────────► opened ─────────────► Tracing ─────────────► Commit ────────────► Idle
//!    │                                       │   ▲                    │                   │
//!    │ no AUX area, no space                 │   └─── begin, start ◄──┘ Next::Flush       │ no space
//!    ▼                                       ▼                                            ▼
//!  stopped                            Next::Continue                                  disabled
//! ```
//!
//! # Soundness
//!
//! No safe code in a driver causes undefined behaviour, or touches a page of an AUX area outside of
//! its transaction. Bytes that the driver stored are visible before perf publishes their position.
//! A driver can commit bytes that it did not store: then the reader gets zeroes or older bytes of
//! the same AUX area, and no other memory of the kernel. `rust/compile-fail/` and the suite of
//! hostile drivers (`rust/hostile/`) test this. The framework cannot check what a driver programs
//! into its hardware: see [`AuxPmu::quiesce`].
//!
//! # Modules
//!
//! - [`pmu`]: what a PMU is and does; [`counter`]: PMUs without an AUX area.
//! - [`aux`]: AUX areas: transactions, regions, padding, loss; pages, mappings, tables of regions.
//! - [`interrupt`]: the driver's own interrupt.
//! - [`event`]: one event of a PMU.
//! - [`format`](mod@format): `attr.config`, declared once, and its sysfs `format/` files.
//! - [`filter`]: address filters.
//! - [`sysfs`]: a PMU's files for user space.
//! - [`context`]: the context that a callback runs in.
//! - [`module_pmu!`]: a module that is one PMU.
//! - `testing`: a bench for drivers, in builds with `CONFIG_RUST_PERF_TESTING`.
//!
//! C header: [`include/linux/perf_event.h`](srctree/include/linux/perf_event.h)
//!
//! Reference: <https://docs.kernel.org/userspace-api/perf_ring_buffer.html>

// kbuild passes these to the compiler, but rustdoc does not when it extracts examples.
#![cfg_attr(doctest, no_std, feature(asm_goto, used_with_arg))]

use kernel::{
    error::to_result,
    prelude::*, //
};

#[cfg(not(CONFIG_64BIT))]
compile_error!("AUX positions are 64 bits wide here, as `unsigned long` is on 64-bit kernels only");

pub mod aux;
mod bindings;
pub mod clock;
pub mod context;
pub mod counter;
pub mod event;
pub mod filter;
pub mod format;
mod guard;
mod hotplug;
pub mod interrupt;
mod local;
mod module;
mod module_ref;
mod percpu;
pub mod pmu;
mod registration;
mod stats;
mod suspend;
pub mod sysfs;
#[cfg(CONFIG_RUST_PERF_TESTING)]
pub mod testing;
mod vtable;

pub use aux::AuxPmu;
pub use event::{
    Attr,
    Event, //
};
pub use pmu::Pmu;

/// A registered PMU without an AUX area.
pub type Registration<T> = registration::Registration<T, counter::Counter>;

module! {
    type: Perf,
    name: "rust_perf",
    authors: ["The auxpmu authors"],
    description: "Rust abstractions for perf PMU drivers with AUX areas",
    license: "GPL",
}

/// The module of the framework, which holds the state that all PMUs share.
struct Perf {
    _registry: Registry,
    _hotplug: hotplug::State,
}

impl kernel::Module for Perf {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _registry: Registry::new()?,
            _hotplug: hotplug::State::new()?,
        })
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // Waits for tasks that were preempted in this module's code after they dropped the
        // reference to a driver's module: see `module_ref`.
        //
        // SAFETY: This is a task that may sleep.
        unsafe { bindings::rust_perf_synchronize_rcu_tasks() };
    }
}

/// Watches for modules that leave a registered PMU behind.
///
/// # Invariants
///
/// The module notifier is registered.
struct Registry(());

impl Registry {
    fn new() -> Result<Self> {
        // SAFETY: The module's init calls this, once.
        to_result(unsafe { bindings::rust_perf_registry_init() })?;
        // INVARIANT: Just registered.
        Ok(Self(()))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // SAFETY: The registry is set up, by the type invariant.
        unsafe { bindings::rust_perf_registry_exit() };
    }
}
