// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The plan of a session: which events are opened with which attributes, and how large their rings are.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use perfdata::{Attr, Flags, Read, SampleType};

use auxview::trace::Mode;

use crate::code::Code;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::pmu::{Action, EventSpec, Format, Role};
use crate::ring::IN_FLIGHT;
use crate::sys::{self, Event, Of, System};
use auxview::size::bytes;

/// The name of the tracking event. Its records report names, threads and mappings.
pub const TRACKING: &str = "dummy:u";

/// Further sideband records that help a decoder: context switches, namespaces, changes of kernel
/// code, and build-ids.
pub const SIDEBAND: [Flags; 5] = [
    Flags::CONTEXT_SWITCH,
    Flags::NAMESPACES,
    Flags::KSYMBOL.union(Flags::BPF_EVENT),
    Flags::TEXT_POKE,
    Flags::BUILD_ID,
];

/// The flags of [`SIDEBAND`] that this kernel knows. It refuses an event with any other.
#[must_use]
pub(crate) fn known_sideband(system: &'static dyn System) -> Flags {
    let base = Flags::MMAP | Flags::MMAP2 | Flags::DISABLED;
    SIDEBAND
        .into_iter()
        .filter(|flags| {
            let attr = Attr {
                kind: 1,
                config: 9,
                flags: base | *flags | Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
                ..Attr::default()
            };
            Event::of(system, &attr, Of::Thread(0), -1, None).is_ok()
        })
        .fold(Flags::empty(), |all, flags| all | flags)
}

/// The default watermark: how much trace in an area of `aux` bytes wakes the recorder.
///
/// Wakeups are the main cost, so the watermark is the largest that loses nothing. Behind it the area needs space for as much trace again,
/// and for what the driver writes before its next wakeup. Otherwise the driver finds the area full before it can wake the recorder. One
/// byte always stays free, so half of the area is too much.
///
/// For Intel PT that a processor writes it is a quarter. The processor raises an interrupt only at the
/// end of a region of its memory. `rb_alloc_aux()` makes regions as large as the watermark, rounded
/// up to a power of two.
pub(crate) fn default_watermark(aux: usize, events: &[(EventSpec, Role)]) -> u32 {
    let page = sys::page_size();
    let regions = |event: &EventSpec| {
        event
            .pmu
            .caps
            .get("topa_output")
            .is_some_and(|on| on == "1")
    };
    let max = aux / 16 * 7;
    let watermark = if max < page || events.iter().any(|(event, _)| regions(event)) {
        aux / 4
    } else {
        max - max % page
    };
    u32::try_from(watermark).unwrap_or(u32::MAX)
}

/// Number of open files other than events: the recording, signals, timers.
const OTHER_FILES: usize = 64;

/// Number of open files of each thread that drains rings, such as its epoll set, its timer, and its output.
pub(crate) const FILES_OF_A_THREAD: usize = 5;

/// The maximum number of open files of a recording with `events` events and `owners` pairs of rings on each of `places` CPUs.
pub(crate) fn max_files(events: usize, owners: usize, places: usize) -> usize {
    // Each pair of rings has at most one probe and one thread. A thread has twice as many files if it writes a file of its own.
    events * places + (places * (1 + 2 * FILES_OF_A_THREAD) + 1) * owners + OTHER_FILES
}

/// What the recorder does when the kernel has disabled an event because its area was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTruncate {
    /// Restarts the event.
    #[default]
    Resume,
    /// Ends the recording.
    Stop,
    /// Ends the recording with an error.
    Fail,
}

/// What a session opens.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The events with their roles. At least one of them writes trace. If there are no events, the tracking event has the rings.
    pub events: Vec<(EventSpec, Role)>,
    /// The control group to record; [`None`]: the events are not limited to one.
    pub cgroup: Option<Arc<OwnedFd>>,
    /// What the recorder does when an area was full.
    pub on_truncate: OnTruncate,
    /// The sideband records: flags of [`SIDEBAND`] that the kernel knows.
    pub sideband: Flags,
    /// The address filter, in the kernel's syntax.
    pub filter: Option<CString>,
    /// Length of the data ring.
    pub data: usize,
    /// Length of the AUX area; 0: there is none.
    pub aux: usize,
    /// How much trace in the AUX area wakes the recorder, in bytes.
    pub watermark: u32,
    /// How the AUX area is used.
    pub mode: Mode,
    /// The CPUs that get rings; [`None`]: the rings follow the threads.
    pub cpus: Option<Vec<u32>>,
    /// The threads to record; [`None`]: everything on the CPUs.
    pub threads: Option<Vec<u32>>,
    /// The processes whose threads these are. The session lists them again.
    pub processes: Vec<u32>,
    /// Whether children inherit the events.
    pub inherit: bool,
    /// Whether the thread's next exec starts the recording.
    pub on_exec: bool,
    /// Whether the trace begins only when it is enabled.
    pub delayed: bool,
    /// Whether sideband records go into rings of their own in overwrite mode.
    pub overwrite: bool,
    /// Stores the code that a tracer reports.
    pub code: Option<Arc<Code>>,
    /// The number of the event that reports the trigger's hits. The events after it pause and resume the trace.
    pub trigger: Option<usize>,
}

impl Plan {
    const SAMPLE: SampleType = SampleType::IDENTIFIER
        .union(SampleType::IP)
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::CPU);

    /// Whether the events use the recorder's clock. Trace that perf decodes has time stamps of the processor, which perf converts only to
    /// its own clock. A recording without trace also uses perf's clock, because it may be read together with such a trace.
    #[must_use]
    pub fn has_own_clock(&self) -> bool {
        self.format().is_none() && !self.events.is_empty()
    }

    /// The format of the trace, if perf has a decoder for it. If there are several, it is Intel PT, or the first.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        let all = || {
            self.events
                .iter()
                .filter_map(|(event, _)| event.pmu.format())
        };
        all()
            .find(|format| *format == Format::IntelPt)
            .or_else(|| all().next())
    }

    /// Whether the trace is Intel PT.
    #[must_use]
    pub fn writes_intel_pt(&self) -> bool {
        self.events
            .iter()
            .any(|(event, _)| event.pmu.writes_intel_pt())
    }

    fn common(&self, attr: &Attr) -> Attr {
        let mut flags = attr.flags | Flags::DISABLED | Flags::SAMPLE_ID_ALL;
        let own_clock = self.has_own_clock();
        flags.set(Flags::USE_CLOCKID, own_clock);
        flags.set(Flags::INHERIT, self.inherit);
        flags.set(Flags::ENABLE_ON_EXEC, self.on_exec);
        Attr {
            flags,
            sample_period: attr.sample_period.max(1),
            sample_type: attr.sample_type | Self::SAMPLE,
            read_format: Read::FORMAT,
            clockid: if own_clock { sys::CLOCK } else { 0 },
            ..attr.clone()
        }
    }

    /// The attribute of the event of this number. Events that write trace are in no group with the
    /// tracking event: when the kernel disables one because its area is full, it disables its group.
    #[must_use]
    pub fn attr(&self, number: usize) -> Attr {
        let Some((event, role)) = self.events.get(number) else {
            return match &self.code {
                Some(code) if number == self.code_number() => self.common(code.attr()),
                _ => self.tracking_attr(),
            };
        };
        let mut common = self.common(&event.attr());
        if self.delayed {
            common.flags.remove(Flags::ENABLE_ON_EXEC);
        }
        match role {
            Role::Aux => Attr {
                aux_watermark: if self.mode == Mode::Normal {
                    self.watermark
                } else {
                    0
                },
                ..common
            },
            // The leader enables and disables its group.
            Role::Member(_) => {
                common.flags -= Flags::ENABLE_ON_EXEC;
                // The event that resumes a paused trace starts disabled. The recorder enables it, and each of its samples wakes the
                // recorder.
                let resumes = event.action == Some(Action::Resume);
                let waits = resumes && self.trigger.is_some_and(|first| number > first);
                common.flags.set(Flags::DISABLED, waits);
                common.wakeup = u32::from(waits);
                common
            }
            // Each hit wakes the recorder. The ring of the hits is not in overwrite mode: the recorder reads it at each wakeup.
            Role::Other(_) if self.trigger == Some(number) => Attr {
                wakeup: 1,
                ..common
            },
            Role::Other(_) => {
                common.flags.set(Flags::WRITE_BACKWARD, self.overwrite);
                common
            }
        }
    }

    /// The attribute of this event in the file. The trigger's tracepoint no longer exists when the file is read, and perf refuses a file
    /// without the tracepoint's format. So the file describes it as an event that counts nothing.
    #[must_use]
    pub(crate) fn attr_in_file(&self, number: usize) -> Attr {
        let attr = self.attr(number);
        if !self.is_probe(number) {
            return attr;
        }
        let tracking = self.tracking_attr();
        Attr {
            kind: tracking.kind,
            config: tracking.config,
            ..attr
        }
    }

    /// Whether the event of this number is of the trigger's tracepoint.
    pub(super) fn is_probe(&self, number: usize) -> bool {
        let event = self.events.get(number);
        self.trigger.is_some_and(|first| number >= first)
            && event.is_some_and(|(event, _)| event.pmu.kind == sys::TRACEPOINT)
    }

    /// Shrinks the rings to fit the limits. Returns whether they are smaller now.
    ///
    /// # Errors
    /// If the limits do not allow the smallest rings, or these are too small for the plan.
    pub(crate) fn shrink(&mut self, limits: &Limits) -> Result<bool> {
        let page = sys::page_size();
        let rings = self.pairs();
        let beside = if self.overwrite { 2 } else { 1 };
        let Some((data, aux)) = limits.fit(rings, beside, self.data, self.aux, page) else {
            // The error of preflight() says why.
            let each = u64::try_from(3 * page).unwrap_or(u64::MAX);
            return limits.preflight(rings, each).map(|()| false);
        };
        self.check_overwrite(data)?;
        let smaller = (data, aux) != (self.data, self.aux);
        if self.aux != aux {
            // With a larger watermark the driver may find the area full before it wakes the recorder.
            self.watermark = self.watermark.min(default_watermark(aux, &self.events));
        }
        (self.data, self.aux) = (data, aux);
        Ok(smaller)
    }

    /// Checks that a data ring of this length is large enough for `overwrite`.
    pub(crate) fn check_overwrite(&self, data: usize) -> Result<()> {
        if self.overwrite && data <= IN_FLIGHT {
            let text = |n: usize| bytes(u64::try_from(n).unwrap_or(u64::MAX));
            return Err(Error::usage(format!(
                "a data ring of {} is too small for --overwrite: it must be larger than {}",
                text(data),
                text(IN_FLIGHT),
            )));
        }
        Ok(())
    }

    /// The number of the event that reports code, after that of the tracking event. The file does not have this event.
    pub(super) fn code_number(&self) -> usize {
        self.events.len() + 1
    }

    /// The numbers of the event that reports code, and of the tracking event.
    pub(crate) fn numbers_for_code(&self) -> [usize; 2] {
        [self.code_number(), self.events.len()]
    }

    /// The target of an event: the control group, or this thread.
    pub(super) fn of(&self, thread: i32) -> Of<'_> {
        match &self.cgroup {
            Some(group) => Of::Group(group.as_fd()),
            None => Of::Thread(thread),
        }
    }

    /// The numbers of the events that have rings: those that write trace, or the tracking event if none does.
    pub fn owners(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.events.iter().enumerate();
        let aux = all.filter(|(_, (_, role))| *role == Role::Aux);
        let tracking = self.events.is_empty().then_some(0);
        aux.map(|(number, _)| number).chain(tracking)
    }

    /// The name of an event.
    #[must_use]
    pub fn name(&self, number: usize) -> &str {
        self.events
            .get(number)
            .map_or(TRACKING, |(event, _)| event.text.as_str())
    }

    /// Length of the mapping of the sideband records, if they have a ring of their own.
    pub(super) fn beside(&self) -> usize {
        if self.overwrite {
            sys::page_size() + self.data
        } else {
            0
        }
    }

    /// Whether samples hold the trace. The recorder does not read the areas then.
    #[must_use]
    pub fn samples(&self) -> bool {
        self.events
            .iter()
            .any(|(event, _)| event.aux_sample.is_some())
    }

    /// The attribute of the tracking event. It counts nothing.
    #[must_use]
    pub fn tracking_attr(&self) -> Attr {
        let flags = Flags::MMAP | Flags::MMAP2 | Flags::COMM | Flags::COMM_EXEC | Flags::TASK;
        let mut flags = flags | self.sideband;
        flags.set(Flags::WRITE_BACKWARD, self.overwrite);
        let own_clock = self.has_own_clock();
        if self.cpus.is_none() && !own_clock && self.format() != Some(Format::CoreSight) {
            // Each ring has the trace of one thread: perf's decoders must not look for switches. With CoreSight perf records them.
            flags.remove(Flags::CONTEXT_SWITCH);
        }
        self.common(&Attr {
            kind: 1,
            config: 9,
            flags: flags | Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
            ..Attr::default()
        })
    }

    /// Number of the pairs of rings that have the events' trace.
    pub(super) fn pairs(&self) -> usize {
        let threads = self.threads.as_ref().map_or(1, Vec::len);
        match &self.cpus {
            Some(_) => self.places().len(),
            None => threads * self.owners().count(),
        }
    }

    /// The pairs of rings on CPUs: the number of the event that has the rings, and the CPU.
    ///
    /// A PMU may be on some CPUs only. On the others the tracking event has a data ring.
    pub(super) fn places(&self) -> Vec<(usize, u32)> {
        let cpus = || self.cpus.iter().flatten().copied();
        let on = |number: usize| cpus().filter(move |cpu| self.is_on(number, Some(*cpu)));
        let traced = self
            .owners()
            .flat_map(|number| on(number).map(move |cpu| (number, cpu)));
        let first = self.owners().next();
        let others = cpus().filter(|cpu| first.is_some_and(|first| !self.is_on(first, Some(*cpu))));
        traced
            .chain(others.map(|cpu| (self.events.len(), cpu)))
            .collect()
    }

    /// Whether the event of this number can be opened on this CPU.
    pub(super) fn is_on(&self, number: usize, cpu: Option<u32>) -> bool {
        match (self.events.get(number), cpu) {
            (Some((event, _)), Some(cpu)) => event.pmu.is_on(cpu),
            _ => true,
        }
    }

    /// Whether the rings of this event have only sideband records, while those of other events also have an AUX area.
    pub(super) fn only_tracks(&self, number: usize) -> bool {
        number == self.events.len() && !self.events.is_empty()
    }

    /// The attribute of the event of this number in the rings of event `owner`.
    pub(super) fn attr_in(&self, owner: usize, number: usize) -> Attr {
        let mut attr = self.attr(number);
        // The owner's own ring is not overwritten.
        if owner == number {
            attr.flags.remove(Flags::WRITE_BACKWARD);
        }
        attr
    }

    /// Checks that each event that writes trace can be opened on one of the CPUs.
    ///
    /// # Errors
    /// If one cannot.
    pub(crate) fn check_cpus(&self) -> Result<()> {
        let Some(cpus) = &self.cpus else {
            return Ok(());
        };
        let list = |cpus: &[u32]| {
            let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
            cpus.join(", ")
        };
        for number in self.owners() {
            let Some((event, _)) = self.events.get(number) else {
                continue;
            };
            if !cpus.iter().any(|cpu| event.pmu.is_on(*cpu)) {
                return Err(Error::usage(format!(
                    "PMU `{}` cannot trace any of the CPUs {}: it is on CPU {} only; record that with -C, or all with -a",
                    event.pmu.name,
                    list(cpus),
                    list(event.pmu.cpus.as_deref().unwrap_or_default()),
                )));
            }
        }
        Ok(())
    }

    /// The maximum number of files that the recorder has open while it records, if no new thread is found.
    pub(super) fn files(&self) -> usize {
        let threads = self.threads.as_ref().map_or(1, Vec::len);
        let places = self.cpus.as_ref().map_or(1, Vec::len);
        let code = usize::from(self.code.is_some());
        let tracking = usize::from(!self.events.is_empty()) + code;
        let events = (self.events.len().max(1) + tracking) * threads;
        max_files(events, self.owners().count(), places)
    }

    /// The threads that the processes have now.
    pub(super) fn list_again(&self, system: &dyn System) -> Vec<u32> {
        // Without other events there are only tracking events, which are of no exclusive PMU. The kernel would not refuse one for a thread
        // that has already inherited one.
        if self.inherit && self.events.is_empty() {
            return Vec::new();
        }
        let all = self
            .processes
            .iter()
            .flat_map(|pid| system.threads(*pid).ok());
        all.flatten().collect()
    }
}
