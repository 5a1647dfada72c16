// SPDX-License-Identifier: GPL-2.0

//! The description of a PMU, with which it is registered.

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
    /// With software events: an event is scheduled whatever the CPU's hardware counters do, and can
    /// lead a group or follow in one. Trace units use this.
    #[default]
    Software,
    /// With hardware events: an event may have to wait for them.
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
    /// Only these CPUs have one each. The file `cpumask` lists them. Opening an event on another
    /// CPU fails with [`ENODEV`], and an event of a task does not run there.
    Cpus(&'a Cpumask),
    /// All CPUs share one. Its events run on one CPU, which the file `cpumask` shows: at first the
    /// CPU that registers the PMU. When that CPU goes offline, they move to another one. Opening an
    /// event for a task fails with [`EOPNOTSUPP`].
    ///
    /// C counterpart: `perf_pmu_migrate_context()`.
    System,
}

/// The description of a PMU: what the driver has found in the hardware, or has chosen.
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
    /// Describes a PMU `name` with a unit on each CPU and default properties. By default a PMU with
    /// an AUX area is [`Capabilities::EXCLUSIVE`].
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

    /// The device that the PMU is part of, under which sysfs shows it. The PMU is unregistered at
    /// the latest when the device is unbound.
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

    /// How many address filters an event can have, 16 at most. A driver with filters implements
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

    /// The files of sysfs `caps/`: properties of the unit that a reader of the trace must know.
    pub fn caps(self, caps: &'static [Attribute]) -> Self {
        Self { caps, ..self }
    }

    /// Adds a file to `events/` with a text that is made at run time. To hide a file, do not add
    /// it.
    pub fn event(mut self, name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        self.more_events
            .push(OwnedAttribute::new(name, text)?, GFP_KERNEL)?;
        Ok(self)
    }

    /// Adds a file to `caps/` with a text that is made at run time.
    pub fn cap(mut self, name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        self.more_caps
            .push(OwnedAttribute::new(name, text)?, GFP_KERNEL)?;
        Ok(self)
    }

    /// Adds a file to the PMU's own directory with a text that is made at run time. Some readers of
    /// trace look for such files, for example `tsc_art_ratio` of Intel PT. The names that perf, the
    /// driver core and the framework use are refused.
    pub fn file(mut self, name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        self.more_files
            .push(OwnedAttribute::new(name, text)?, GFP_KERNEL)?;
        Ok(self)
    }

    /// Checks the description. Logs why it is invalid.
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

/// The most address filters of a PMU: `vtable.rs` has a callback for each number.
const MAX_FILTERS: u32 = 16;

/// The names that perf, the driver core and the framework use in the directory of a PMU.
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

/// Whether `name` is valid as the name of a sysfs file.
fn is_file_name(name: &CStr) -> bool {
    let bytes = name.to_bytes();

    !bytes.is_empty()
        && bytes.len() <= MAX_NAME
        && !bytes.starts_with(b".")
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_graphic() && *byte != b'/')
}

/// `NAME_MAX`, less the "perf-" of the PMU's directory in debugfs.
const MAX_NAME: usize = 250;
