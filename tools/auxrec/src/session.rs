// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events of a recording and their rings, as the kernel has them.

use std::ffi::CString;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use perfdata::{Attr, Auxtrace, Flags, IdIndexEntry, Read, SampleType, TimeConv};

use crate::drain::OnTruncate;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::pmu::{EventSpec, Role};
use crate::ring::{AuxArea, DataArea, Reader};
use crate::sys::{self, Event, Field, Mapping};

/// The name of the event that tells of names, threads and mappings.
pub const TRACKING: &str = "dummy:u";

/// What a decoder of trace can use beside names, threads and mappings: context switches, namespaces, what the kernel does to its
/// own code, and build-ids. In an order in which older kernels know fewer.
pub const SIDEBAND: [Flags; 5] = [
    Flags::CONTEXT_SWITCH,
    Flags::NAMESPACES,
    Flags::KSYMBOL.union(Flags::BPF_EVENT),
    Flags::TEXT_POKE,
    Flags::BUILD_ID,
];

/// Those of [`SIDEBAND`] that this kernel knows: it refuses an event with a flag that it does not.
#[must_use]
pub fn known_sideband() -> Flags {
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
            Event::open(&attr, 0, -1).is_ok()
        })
        .fold(Flags::empty(), |all, flags| all | flags)
}

/// No clock of events takes as long for a step, not even one that goes by the timer's ticks.
const STEP: Duration = Duration::from_millis(20);

/// How the AUX area is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Every byte is read, and what finds no room is lost.
    #[default]
    Linear,
    /// The newest bytes overwrite the oldest; the area is read when a snapshot is asked for.
    Overwrite,
}

/// What to open.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The events, each with its part. One at least writes trace.
    pub events: Vec<(EventSpec, Role)>,
    /// Only what runs in this control group is recorded.
    pub cgroup: Option<Arc<OwnedFd>>,
    /// What is done when an area was full.
    pub on_truncate: OnTruncate,
    /// What else is told of: those of [`SIDEBAND`] that the kernel knows.
    pub sideband: Flags,
    /// Of which code there is to be trace, in the kernel's words.
    pub filter: Option<CString>,
    /// Length of the data ring.
    pub data: usize,
    /// Length of the AUX area.
    pub aux: usize,
    /// When the AUX area wakes the recorder, in bytes.
    pub watermark: u32,
    /// How the AUX area is used.
    pub mode: Mode,
    /// CPUs that get rings; [`None`]: the rings follow the threads.
    pub cpus: Option<Vec<u32>>,
    /// Threads that are recorded; [`None`]: all that runs on the CPUs.
    pub threads: Option<Vec<u32>>,
    /// Whether children are recorded too.
    pub inherit: bool,
    /// Whether the thread's next exec starts the recording.
    pub on_exec: bool,
    /// Whether trace begins only when it is switched on.
    pub delayed: bool,
}

impl Plan {
    const SAMPLE: SampleType = SampleType::IDENTIFIER
        .union(SampleType::IP)
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::CPU);

    /// Whether the events have the recorder's clock. Intel PT is stamped with the processor's, and perf's own is the one
    /// that it can be turned into.
    #[must_use]
    pub fn has_own_clock(&self) -> bool {
        !self.writes_intel_pt()
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

    /// The event of this number, as the kernel gets it. Events that write trace are in no group with the one that tells of names:
    /// when the kernel turns one off for want of room, its group goes too.
    #[must_use]
    pub fn attr(&self, number: usize) -> Attr {
        let Some((event, role)) = self.events.get(number) else {
            return self.tracking_attr();
        };
        let mut common = self.common(&event.attr());
        if self.delayed {
            common.flags.remove(Flags::ENABLE_ON_EXEC);
        }
        match role {
            Role::Aux => Attr {
                aux_watermark: if self.mode == Mode::Linear {
                    self.watermark
                } else {
                    0
                },
                ..common
            },
            // The leader switches its group.
            Role::Member(_) => {
                common.flags -= Flags::DISABLED | Flags::ENABLE_ON_EXEC;
                common
            }
            Role::Other(_) => common,
        }
    }

    /// Makes the rings as much smaller as the limits demand; whether that was so.
    ///
    /// # Errors
    /// If not even the smallest are allowed.
    pub(crate) fn shrink(&mut self, limits: &Limits) -> Result<bool> {
        let page = sys::page_size();
        let rings = self.pairs().len() * self.aux().count();
        let Some((data, aux)) = limits.fit(rings, self.data, self.aux, page) else {
            // It says why.
            let each = u64::try_from(3 * page).unwrap_or(u64::MAX);
            return limits.preflight(rings, each).map(|()| false);
        };
        let smaller = (data, aux) != (self.data, self.aux);
        let aux_bytes = u32::try_from(aux).unwrap_or(u32::MAX);
        if self.aux != aux {
            // As the default is: with more of the area a driver would stop before it wakes anybody.
            self.watermark = self.watermark.min(aux_bytes / 4);
        }
        (self.data, self.aux) = (data, aux);
        Ok(smaller)
    }

    /// The numbers of the events that write trace.
    pub fn aux(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.events.iter().enumerate();
        all.filter(|(_, (_, role))| *role == Role::Aux)
            .map(|(number, _)| number)
    }

    /// The name of an event.
    #[must_use]
    pub fn name(&self, number: usize) -> &str {
        self.events
            .get(number)
            .map_or(TRACKING, |(event, _)| event.text.as_str())
    }

    /// Whether trace goes into samples, and the areas are not read.
    #[must_use]
    pub fn samples(&self) -> bool {
        self.events
            .iter()
            .any(|(event, _)| event.aux_sample.is_some())
    }

    /// The event that writes of names, threads and mappings. It counts nothing.
    #[must_use]
    pub fn tracking_attr(&self) -> Attr {
        let flags = Flags::MMAP | Flags::MMAP2 | Flags::COMM | Flags::COMM_EXEC | Flags::TASK;
        let mut flags = flags | self.sideband;
        if self.cpus.is_none() && !self.has_own_clock() {
            // A thread's trace is its own: the decoder of Intel PT is not to look for switches.
            flags.remove(Flags::CONTEXT_SWITCH);
        }
        self.common(&Attr {
            kind: 1,
            config: 9,
            flags: flags | Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
            ..Attr::default()
        })
    }
}

/// A pair of rings, with the events that write into them.
#[derive(Debug)]
pub struct Rings {
    /// Their number.
    pub idx: u32,
    /// Their CPU.
    pub cpu: Option<u32>,
    /// Their thread.
    pub thread: Option<u32>,
    // The mappings stand before the events, so that they go first: an area that is unmapped stops its events' trace.
    aux_map: Mapping,
    base: Mapping,
    /// The number of the event that writes trace here.
    number: usize,
    /// What it is called, if there are several.
    event: Option<String>,
    /// Events that write trace; the first owns the rings.
    events: Arc<[Opened]>,
    /// Events in their groups, and with them others that only share the data ring.
    members: Vec<Opened>,
    others: Arc<[Opened]>,
    on: On,
    tracking: Vec<Opened>,
    /// Reader of the data ring.
    pub data: Reader,
    /// Reader of the AUX area.
    pub aux: Reader,
}

/// Whether trace is wanted: what switches events on and off does so under this lock, and those who start an event again
/// that the kernel has turned off ask it.
#[derive(Debug, Clone, Default)]
struct On(Arc<Mutex<bool>>);

impl On {
    fn lock(&self) -> MutexGuard<'_, bool> {
        // A flag is whole whoever held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Switches the trace of a session on and off, from any thread.
#[derive(Debug)]
pub struct Switch {
    rings: Vec<SwitchOf>,
    names: Vec<String>,
}

/// Of one pair of rings.
#[derive(Debug)]
struct SwitchOf {
    number: usize,
    on: On,
    events: Arc<[Opened]>,
    others: Arc<[Opened]>,
}

impl Switch {
    /// The names of the events.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Lets the events trace, or no more: all, or the one of this name. A member of a group is switched with its leader.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set(&self, on: bool, name: Option<&str>) -> Result<()> {
        let what = if on { "enable" } else { "disable" };
        for ring in &self.rings {
            let named = |number: usize| {
                name.is_none_or(|name| self.names.get(number).is_some_and(|n| n == name))
            };
            let switch = |opened: &Opened| {
                let result = if on {
                    opened.event.enable()
                } else {
                    opened.event.disable()
                };
                let name = self.names.get(opened.number).map_or("", String::as_str);
                result.map_err(|e| refused(what, name, &e))
            };
            if named(ring.number) {
                let mut state = ring.on.lock();
                ring.events.iter().try_for_each(switch)?;
                *state = on;
            }
            let mut others = ring.others.iter().filter(|opened| named(opened.number));
            others.try_for_each(switch)?;
        }
        Ok(())
    }
}

fn refused(what: &str, name: &str, error: &std::io::Error) -> Error {
    Error::failed(format!(
        "cannot {what} `{name}`: the PMU may be gone, its module unloaded ({error})"
    ))
}

/// An event with who it is for.
#[derive(Debug)]
pub struct Opened {
    /// The event.
    pub event: Event,
    /// Which of the plan's events it is.
    pub number: usize,
    /// Its id.
    pub id: u64,
    /// Its thread.
    pub thread: Option<u32>,
}

/// All rings of a recording.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    rings: Vec<Rings>,
}

impl Session {
    /// Opens all events, disabled, and maps their rings.
    ///
    /// # Errors
    /// If the system refuses: the error says what it means and what to do.
    pub fn open(plan: Plan, limits: &Limits) -> Result<Self> {
        let pairs = plan.pairs();
        let all: Vec<usize> = plan.aux().collect();
        let each = sys::page_size() + plan.data + plan.aux;
        let count = pairs.len() * all.len();
        limits.preflight(count, u64::try_from(each).unwrap_or(u64::MAX))?;
        let sum = u64::try_from(each * count).unwrap_or(u64::MAX);
        let of_all = all.iter().flat_map(|number| {
            pairs
                .iter()
                .map(move |(cpu, threads)| (*number, *cpu, threads))
        });
        let rings = (0..)
            .zip(of_all)
            .map(|(idx, (number, cpu, threads))| {
                Rings::open(&plan, number, idx, cpu, threads, limits, sum)
            })
            .collect::<Result<_>>()?;
        Ok(Self { plan, rings })
    }

    /// What was opened.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The rings.
    #[must_use]
    pub fn rings(&self) -> &[Rings] {
        &self.rings
    }

    /// The rings, to read them.
    pub fn rings_mut(&mut self) -> &mut [Rings] {
        &mut self.rings
    }

    /// Starts what does not wait for an exec: what tells of names and threads, and, with `trace`, what writes trace.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn enable(&self, trace: bool) -> Result<()> {
        if !self.plan.on_exec {
            for opened in self.rings.iter().flat_map(|ring| &ring.tracking) {
                let enabled = opened.event.enable();
                enabled.map_err(|e| refused("enable", TRACKING, &e))?;
            }
        }
        if trace && self.plan.on_exec && !self.plan.delayed {
            // The exec does it.
            for ring in &self.rings {
                *ring.on.lock() = true;
            }
        } else if trace {
            self.switch().set(true, None)?;
        }
        Ok(())
    }

    /// Ends the trace. Names and threads are still told of.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn disable(&self) -> Result<()> {
        self.switch().set(false, None)
    }

    /// The CPUs that have gone offline, and for how long each has had events, ns. The kernel takes off what is bound to a CPU that
    /// goes, without a word, and does not put it on again.
    #[must_use]
    pub fn gone(&self) -> Vec<(u32, u64)> {
        if self.plan.threads.is_some() {
            // These are with their threads, wherever they run.
            return Vec::new();
        }
        let all = self.rings.iter().filter_map(|ring| {
            let enabled = || Some(ring.tracking.first()?.event.count().ok()??.enabled);
            let before = enabled()?;
            Some((ring.cpu?, before, enabled))
        });
        let all: Vec<_> = all.collect();
        // The time of an event that is on goes on, whatever its clock's steps.
        std::thread::sleep(STEP);
        all.into_iter()
            .filter_map(|(cpu, before, enabled)| (enabled()? == before).then_some((cpu, before)))
            .collect()
    }

    /// What switches the trace on and off.
    #[must_use]
    pub fn switch(&self) -> Switch {
        let of = |ring: &Rings| SwitchOf {
            number: ring.number,
            on: ring.on.clone(),
            events: ring.events.clone(),
            others: ring.others.clone(),
        };
        Switch {
            rings: self.rings.iter().map(of).collect(),
            names: (0..=self.plan.events.len())
                .map(|number| self.plan.name(number).to_owned())
                .collect(),
        }
    }

    /// How to make perf's clock from the processor's, if the kernel says.
    #[must_use]
    pub fn clock(&self) -> TimeConv {
        self.rings
            .first()
            .and_then(|rings| rings.base.clock())
            .unwrap_or_default()
    }

    /// Which event has which id.
    #[must_use]
    pub fn id_index(&self) -> Vec<IdIndexEntry> {
        let signed = |n: Option<u32>| n.map_or(-1, i64::from);
        self.rings
            .iter()
            .flat_map(|ring| {
                ring.all().map(|opened| IdIndexEntry {
                    id: opened.id,
                    idx: u64::from(ring.idx),
                    cpu: signed(ring.cpu),
                    tid: signed(opened.thread),
                })
            })
            .collect()
    }

    /// The ids of the event of this number; of the one that tells of names and threads, after the last.
    #[must_use]
    pub fn ids(&self, number: usize) -> Vec<u64> {
        let all = self.rings.iter().flat_map(Rings::all);
        all.filter(|opened| opened.number == number)
            .map(|opened| opened.id)
            .collect()
    }
}

impl Plan {
    /// CPU and threads of each pair of rings.
    fn pairs(&self) -> Vec<(Option<u32>, Vec<Option<u32>>)> {
        let threads: Vec<Option<u32>> = match &self.threads {
            Some(threads) => threads.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        match &self.cpus {
            Some(cpus) => cpus
                .iter()
                .map(|&cpu| (Some(cpu), threads.clone()))
                .collect(),
            None => threads
                .into_iter()
                .map(|thread| (None, vec![thread]))
                .collect(),
        }
    }
}

impl Rings {
    fn open(
        plan: &Plan,
        number: usize,
        idx: u32,
        cpu: Option<u32>,
        threads: &[Option<u32>],
        limits: &Limits,
        all: u64,
    ) -> Result<Self> {
        let page = sys::page_size();
        let open_in =
            |number: usize, thread: Option<u32>, leader: Option<&Event>| -> Result<Opened> {
                let signed = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(-1));
                let what = match (thread, cpu) {
                    (None, Some(cpu)) => format!("all of CPU {cpu}"),
                    (Some(thread), None) => format!("thread {thread}"),
                    (Some(thread), Some(cpu)) => format!("thread {thread} on CPU {cpu}"),
                    (None, None) => "nobody".to_owned(),
                };
                let attr = plan.attr(number);
                let opened = match &plan.cgroup {
                    Some(group) => Event::open_cgroup(&attr, group.as_fd(), signed(cpu), leader),
                    None => Event::open_in(&attr, signed(thread), signed(cpu), leader),
                };
                opened
                    .and_then(|event| {
                        Ok(Opened {
                            id: event.id()?,
                            event,
                            number,
                            thread,
                        })
                    })
                    .map_err(|e| match plan.events.get(number) {
                        Some((event, Role::Member(leader))) => {
                            let pmu = plan
                                .events
                                .get(*leader)
                                .map_or("", |(event, _)| &event.pmu.name);
                            limits.explain_member(&e, event, pmu, &what)
                        }
                        _ if plan.cgroup.is_some() => {
                            limits.explain_cgroup(&e, plan.name(number), &what)
                        }
                        _ => limits.explain_open(&e, plan.name(number), &what),
                    })
            };
        let open = |number, thread| open_in(number, thread, None);
        let each = |number: usize| -> Result<Vec<Opened>> {
            threads.iter().map(|&thread| open(number, thread)).collect()
        };
        let with = |wanted: Role| {
            let all = plan.events.iter().enumerate();
            all.filter(move |(_, (_, role))| *role == wanted)
                .map(|(number, _)| number)
        };
        let events = each(number)?;
        let mut members = Vec::new();
        for member in with(Role::Member(number)) {
            for (leader, &thread) in events.iter().zip(threads) {
                members.push(open_in(member, thread, Some(&leader.event))?);
            }
        }
        let mut others = Vec::new();
        for other in with(Role::Other(number)) {
            others.extend(each(other)?);
        }
        // Names are told of once.
        let tracking = if plan.aux().next() == Some(number) {
            each(plan.events.len())?
        } else {
            Vec::new()
        };
        let Some(owner) = events.first() else {
            return Err(Error::usage("there is no thread to record"));
        };

        let ring = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let map = |offset: usize, len: usize, writable| {
            Mapping::new(&owner.event, ring(offset), len, writable)
        };
        let base = map(0, page + plan.data, true)
            .map_err(|e| limits.explain_mmap(&e, "data ring", ring(page + plan.data), all))?;
        // The kernel takes the place and length of the AUX area from these words, when it is mapped.
        let aux_at = page + plan.data;
        base.store(Field::AuxOffset, ring(aux_at), Ordering::Relaxed);
        base.store(Field::AuxSize, ring(plan.aux), Ordering::Relaxed);
        // A mapping that cannot be written asks for overwriting.
        let aux_map = map(aux_at, plan.aux, plan.mode == Mode::Linear)
            .map_err(|e| limits.explain_mmap(&e, "AUX area", ring(plan.aux), all))?;
        for opened in events
            .iter()
            .skip(1)
            .chain(&members)
            .chain(&others)
            .chain(&tracking)
        {
            opened.event.set_output(&owner.event).map_err(|e| {
                Error::failed(format!(
                    "cannot send the records of two events to one ring ({e})"
                ))
            })?;
        }
        if let Some(filter) = &plan.filter {
            for opened in &events {
                let set = opened.event.set_filter(filter);
                set.map_err(|e| limits.explain_filter(&e, filter, plan.name(number)))?;
            }
        }
        Ok(Self {
            idx,
            number,
            event: (plan.aux().count() > 1).then(|| plan.name(number).to_owned()),
            cpu,
            thread: if cpu.is_none() {
                threads.first().copied().flatten()
            } else {
                None
            },
            data: Reader::new(plan.data)?,
            aux: Reader::new(plan.aux)?,
            aux_map,
            base,
            events: events.into(),
            members,
            others: others.into(),
            on: On::default(),
            tracking,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Opened> {
        let traced = self.events.iter().chain(&self.members);
        traced.chain(self.others.iter()).chain(&self.tracking)
    }

    /// The events that write trace.
    #[must_use]
    pub fn events(&self) -> &[Opened] {
        &self.events
    }

    /// The data ring, with its reader.
    pub fn data(&mut self) -> (&mut Reader, DataArea<'_>) {
        let area = DataArea {
            base: &self.base,
            page: sys::page_size(),
        };
        (&mut self.data, area)
    }

    /// The AUX area, with its reader.
    pub fn aux(&mut self) -> (&mut Reader, AuxArea<'_>) {
        let area = AuxArea {
            base: &self.base,
            aux: &self.aux_map,
        };
        (&mut self.aux, area)
    }

    /// Starts the events that write trace again, after the kernel has turned one off for want of room.
    ///
    /// The kernel says that there is no room, and wakes the reader, *before* it turns the event off: that comes by an
    /// interrupt of its own (`perf_event_disable_inatomic()`). An enable that is earlier does nothing, as the event is still on, and
    /// then it goes off for good. So disable first: that, done on the event's CPU and under its context's lock, takes the
    /// request back (`event_sched_out()` clears `pending_disable`), and the interrupt finds nothing to do.
    ///
    /// Nothing is done to events that are not to trace.
    ///
    /// # Errors
    /// If the PMU is gone.
    pub fn restart(&self) -> std::io::Result<()> {
        let on = self.on.lock();
        if !*on {
            return Ok(());
        }
        self.events.iter().try_for_each(|opened| {
            opened.event.disable()?;
            opened.event.enable()
        })
    }

    /// Runs `still` while these events trace nothing, and says for how long at most that was, ns. Events that are not to trace
    /// stay off.
    ///
    /// # Errors
    /// If the PMU is gone.
    pub fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> std::io::Result<(T, u64)> {
        let on = self.on.clone();
        let on = on.lock();
        let events = self.events.clone();
        let begin = sys::now();
        if *on {
            events
                .iter()
                .try_for_each(|opened| opened.event.disable())?;
        }
        let out = still(self);
        if *on {
            events.iter().try_for_each(|opened| opened.event.enable())?;
            Ok((out, sys::now().saturating_sub(begin)))
        } else {
            Ok((out, 0))
        }
    }

    /// The record of the piece of trace at these positions.
    #[must_use]
    pub fn piece(&self, range: &Range<u64>, reference: u64) -> Auxtrace {
        Auxtrace {
            size: range.end.wrapping_sub(range.start).next_multiple_of(8),
            offset: range.start,
            reference,
            idx: self.idx,
            tid: self.thread.unwrap_or(u32::MAX),
            cpu: self.cpu.unwrap_or(u32::MAX),
        }
    }

    /// Where the rings belong, for people.
    #[must_use]
    pub fn name(&self) -> String {
        let place = match (self.cpu, self.thread) {
            (Some(cpu), _) => format!("CPU {cpu}"),
            (None, Some(thread)) => format!("thread {thread}"),
            (None, None) => format!("ring {}", self.idx),
        };
        match &self.event {
            Some(event) => format!("{place}, {event}"),
            None => place,
        }
    }
}
