// SPDX-License-Identifier: GPL-2.0

//! perf PMU drivers with an AUX buffer.
//!
//! AUX is the ring through which the kernel hands hardware trace to user space. A driver has to
//! open a transaction on it (`perf_aux_output_begin()`), let its unit write, quiesce the unit,
//! make what was written visible (barrier (B)), and close the transaction
//! (`perf_aux_output_end()`): on the right CPU, never nested, never left open when `stop()`
//! returns, with interrupts off or in NMI, and while user space unmaps, redirects and lies about
//! its tail.
//!
//! Here the framework owns the transaction and the driver owns the hardware. A driver implements
//! [`Pmu`] and registers it with a [`Registration`]; it never calls begin or end, but is handed an
//! [`aux::Session`] whose [`aux::Window`] it may write, and hands back what it wrote as
//! [`aux::Written`].
//!
//! ```text
//!           begin            start                quiesce           commit(published, loss)
//!   Idle ─────────► Session ───────► Running ─────────────► Written ──────────────────────► Idle
//!    │                                │   ▲                    │                              │
//!    │ no AUX, no space               │   └── begin, start ◄───┘ tick: Commit                 │ no space
//!    ▼                                ▼                                                       ▼
//!  Stopped                          tick: Continue                                        Disabled
//! ```
//!
//! - [`pmu`]: the trait and its registration.
//! - [`aux`]: sessions, windows, padding, loss; pages, their mapping, tables of regions.
//! - [`event`]: one event of a PMU.
//! - [`format`](mod@format): `attr.config`, declared once, and its sysfs `format/` files.
//! - [`filter`]: address filters.
//! - [`sysfs`]: a PMU's files for user space.
//! - [`context`]: what a callback may rely on.
//! - `user`: user code, stepped through and followed into the kernel; on x86.
//! - [`module_pmu!`]: a module that is one PMU.
//! - `testing`: a bench for drivers, where the kernel has KUnit built in.
//!
//! C header: [`include/linux/perf_event.h`](srctree/include/linux/perf_event.h)
//!
//! Reference: <https://docs.kernel.org/userspace-api/perf_ring_buffer.html>

// kbuild says so to the compiler; rustdoc does not listen when it looks for examples.
#![cfg_attr(doctest, no_std, feature(used_with_arg))]

use kernel::prelude::*;

#[cfg(not(CONFIG_64BIT))]
compile_error!("AUX positions are 64 bits wide here, as `unsigned long` is on 64-bit kernels only");

#[path = "perf/aux.rs"]
pub mod aux;
#[path = "bindings/bindings.rs"]
mod bindings;
#[path = "perf/clock.rs"]
pub mod clock;
#[path = "perf/context.rs"]
pub mod context;
#[path = "perf/event.rs"]
pub mod event;
#[path = "perf/filter.rs"]
pub mod filter;
#[path = "perf/format.rs"]
pub mod format;
#[path = "perf/held.rs"]
mod held;
#[path = "perf/hotplug.rs"]
mod hotplug;
#[path = "perf/module.rs"]
mod module;
#[path = "perf/percpu.rs"]
mod percpu;
#[path = "perf/pmu.rs"]
pub mod pmu;
#[path = "perf/stats.rs"]
mod stats;
#[path = "perf/sysfs.rs"]
pub mod sysfs;
#[cfg(CONFIG_KUNIT = "y")]
#[path = "perf/testing.rs"]
pub mod testing;
#[cfg(CONFIG_X86_64)]
#[path = "perf/user.rs"]
pub mod user;

pub use event::{
    Attr,
    Event, //
};
pub use pmu::{
    Pmu,
    Registration, //
};

module! {
    type: Perf,
    name: "rust_perf",
    authors: ["The auxpmu authors"],
    description: "Rust abstractions for perf PMU drivers with AUX buffers",
    license: "GPL",
}

/// A library for the drivers that depend on it, and what they share.
struct Perf {
    _hotplug: hotplug::State,
}

impl kernel::Module for Perf {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _hotplug: hotplug::State::new()?,
        })
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // A task may have been preempted on its last steps in this module's code, after it gave
        // back the reference to a driver's module: see `held`.
        //
        // SAFETY: This is a task that may sleep.
        unsafe { bindings::rust_perf_synchronize_rcu_tasks() };
    }
}
