// SPDX-License-Identifier: GPL-2.0

//! What a PMU is, as known when it is registered.

use super::Capabilities;
use crate::{
    bindings,
    sysfs::{
        Attribute,
        OwnedAttribute, //
    },
};
use kernel::{
    cpumask::Cpumask,
    device::{
        Bound,
        Device, //
    },
    fmt,
    prelude::*, //
};

/// Where perf schedules the events of a PMU.
///
/// C counterpart: `pmu->task_ctx_nr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Context {
    /// With software events: an event is scheduled whatever the CPU's counters do, and can lead a
    /// group or follow in one. What trace units use.
    #[default]
    Software,
    /// With the events of the hardware: at the risk of waiting for them.
    Hardware,
    /// Events of CPUs only: opening one for a task fails.
    CpuOnly,
}

impl Context {
    pub(crate) fn as_raw(self) -> c_int {
        match self {
            Self::Software => bindings::perf_event_task_context_perf_sw_context,
            Self::Hardware => bindings::perf_event_task_context_perf_hw_context,
            Self::CpuOnly => bindings::perf_event_task_context_perf_invalid_context,
        }
    }
}

/// Which CPUs have a unit.
#[derive(Clone, Copy, Default)]
pub enum Scope<'a> {
    /// Each CPU has one.
    #[default]
    EachCpu,
    /// These CPUs have one each: the file `cpumask`. Opening an event on another CPU fails with
    /// [`ENODEV`], and an event of a task does not run there.
    Cpus(&'a Cpumask),
    /// All CPUs share one. Its events live on one CPU, that of the file `cpumask`: at first the one
    /// that registers the PMU. They move to another one when it goes offline. Opening an event for a
    /// task fails with [`EOPNOTSUPP`].
    ///
    /// C counterpart: `perf_pmu_migrate_context()`.
    System,
}

/// A PMU, as known when it is registered: what the hardware said, or what the driver chose.
///
/// C counterpart: the fields of `struct pmu`.
///
/// # Examples
///
/// ```
/// use perf::pmu::{Capabilities, Description};
///
/// # fn filters() -> u32 { 2 }
/// let description = Description::new(c"my_unit")
///     .capabilities(Capabilities::EXCLUSIVE.and(Capabilities::ITRACE))
///     // As many as its registers say.
///     .filters(filters())
///     .cap(c"num_filters", fmt!("{}", filters()))?;
/// # drop(description);
/// # use kernel::prelude::*;
/// # Ok::<(), Error>(())
/// ```
#[must_use]
pub struct Description<'a> {
    pub(crate) name: &'a CStr,
    pub(crate) parent: Option<&'a Device<Bound>>,
    pub(crate) capabilities: Option<Capabilities>,
    pub(crate) filters: u32,
    pub(crate) scope: Scope<'a>,
    pub(crate) context: Context,
    pub(crate) events: &'static [Attribute],
    pub(crate) caps: &'static [Attribute],
    pub(crate) more_events: KVec<OwnedAttribute>,
    pub(crate) more_caps: KVec<OwnedAttribute>,
    pub(crate) more_files: KVec<OwnedAttribute>,
}

impl<'a> Description<'a> {
    /// A PMU `name` with a unit on each CPU and nothing special. One with an AUX area is
    /// [`Capabilities::EXCLUSIVE`].
    pub fn new(name: &'a CStr) -> Self {
        Self {
            name,
            parent: None,
            capabilities: None,
            filters: 0,
            scope: Scope::EachCpu,
            context: Context::Software,
            events: &[],
            caps: &[],
            more_events: KVec::new(),
            more_caps: KVec::new(),
            more_files: KVec::new(),
        }
    }

    /// The device that the PMU is part of, under which sysfs shows it. The PMU is unregistered when
    /// the device is unbound, if it is not before.
    pub fn parent(self, parent: &'a Device<Bound>) -> Self {
        Self {
            parent: Some(parent),
            ..self
        }
    }

    /// Its capabilities, instead of the default.
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        Self {
            capabilities: Some(capabilities),
            ..self
        }
    }

    /// How many address filters an event can have, 16 at most. A driver with filters has
    /// [`filters_validate`](super::Pmu::filters_validate).
    pub fn filters(self, filters: u32) -> Self {
        Self { filters, ..self }
    }

    /// Which CPUs have a unit.
    pub fn scope(self, scope: Scope<'a>) -> Self {
        Self { scope, ..self }
    }

    /// Where perf schedules its events.
    pub fn context(self, context: Context) -> Self {
        Self { context, ..self }
    }

    /// The files of sysfs `events/`: names for sets of terms, which `perf list` shows. See
    /// [`attributes!`](crate::attributes!).
    pub fn events(self, events: &'static [Attribute]) -> Self {
        Self { events, ..self }
    }

    /// The files of sysfs `caps/`: what a reader of the trace must know of the unit.
    pub fn caps(self, caps: &'static [Attribute]) -> Self {
        Self { caps, ..self }
    }

    /// Adds a file to `events/` whose text is known now. One that is not to be visible is not added.
    pub fn event(mut self, name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        self.more_events
            .push(OwnedAttribute::new(name, text)?, GFP_KERNEL)?;
        Ok(self)
    }

    /// Adds a file to `caps/` whose text is known now.
    pub fn cap(mut self, name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        self.more_caps
            .push(OwnedAttribute::new(name, text)?, GFP_KERNEL)?;
        Ok(self)
    }

    /// Adds a file beside these directories whose text is known now: where readers of such a unit's trace
    /// look for it, such as `tsc_art_ratio` of Intel PT. Not one that perf makes itself.
    pub fn file(mut self, name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        self.more_files
            .push(OwnedAttribute::new(name, text)?, GFP_KERNEL)?;
        Ok(self)
    }

    /// Whether it makes sense; logs why not.
    pub(crate) fn check(&self, has_filters: bool) -> Result {
        let name = self.name;

        if !is_file_name(name) {
            pr_err!(
                "cannot register a PMU with the name \"{name}\": give one that a file can have\n"
            );
            return Err(EINVAL);
        }
        if self.filters > MAX_FILTERS {
            pr_err!(
                "cannot register {name}: it has {} address filters, the framework takes {MAX_FILTERS} at most\n",
                self.filters
            );
            return Err(E2BIG);
        }
        if has_filters != (self.filters != 0) {
            pr_err!(
                "cannot register {name}: it has {} address filters, but filters_validate() is {}\n",
                self.filters,
                if has_filters { "there" } else { "missing" }
            );
            return Err(EINVAL);
        }
        for (directory, fixed, owned, taken) in [
            ("events/", self.events, &self.more_events, &[][..]),
            ("caps/", self.caps, &self.more_caps, &[]),
            ("its own directory", &[], &self.more_files, TAKEN),
        ] {
            let names = || {
                let fixed = fixed.iter().map(Attribute::name);
                Iterator::chain(fixed, owned.iter().map(OwnedAttribute::name))
            };
            let bad = names().enumerate().find(|(n, file)| {
                !is_file_name(file)
                    || taken.contains(file)
                    || names().take(*n).any(|before| before == *file)
            });
            if let Some((_, file)) = bad {
                pr_err!(
                    "cannot register {name}: the file \"{file}\" in {directory} is there twice, or has no name for a file\n"
                );
                return Err(EINVAL);
            }
        }
        let both = Capabilities::NO_SG.and(Capabilities::PREFER_LARGE);
        if self.capabilities.is_some_and(|all| all.contains(both)) {
            pr_err!("cannot register {name}: NO_SG and PREFER_LARGE exclude each other\n");
            return Err(EINVAL);
        }
        Ok(())
    }
}

/// Address filters that a PMU can have: `vtable.rs` has a callback for each number.
const MAX_FILTERS: u32 = 16;

/// What perf, the driver core and the framework have in the directory of a PMU.
const TAKEN: &[&CStr] = &[
    c"caps",
    c"cpumask",
    c"device",
    c"events",
    c"format",
    c"nr_addr_filters",
    c"perf_event_mux_interval_ms",
    c"power",
    c"subsystem",
    c"type",
    c"uevent",
];

/// Whether sysfs can have a file of this name, and show it.
fn is_file_name(name: &CStr) -> bool {
    let bytes = name.to_bytes();

    !bytes.is_empty()
        && bytes.len() <= MAX_NAME
        && !bytes.starts_with(b".")
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_graphic() && *byte != b'/')
}

/// `NAME_MAX`, less the "perf-" that debugfs puts before it.
const MAX_NAME: usize = 250;
