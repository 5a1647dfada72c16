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
use crate::ring::{AuxArea, Backward, DataArea, Newest, Reader, IN_FLIGHT};
use crate::size::bytes;
use crate::sys::{self, Count, Event, Field, Mapping};

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

/// No clock of events takes as long for a step, not even one that goes by the timer's ticks: ns.
const STEP: u64 = 20_000_000;

/// How much trace in an area of `aux` bytes wakes the recorder, if nothing is said.
///
/// As much as there can be: it costs the most to be woken. Behind what has come then there must be room for as much again, and for
/// what a driver writes beyond it, or the next time the driver finds its place full before it may wake anybody. One byte always
/// stays free, so half is too much. A quarter where Intel PT is written by a processor: that is interrupted only at the end of a
/// region of its memory, and `rb_alloc_aux()` makes regions as large as the watermark, or the next power of two.
pub(crate) fn default_watermark(aux: usize, events: &[(EventSpec, Role)]) -> u32 {
    let page = sys::page_size();
    let regions = |event: &EventSpec| {
        event
            .pmu
            .caps
            .get("topa_output")
            .is_some_and(|on| on == "1")
    };
    let most = aux / 16 * 7;
    let watermark = if most < page || events.iter().any(|(event, _)| regions(event)) {
        aux / 4
    } else {
        most - most % page
    };
    u32::try_from(watermark).unwrap_or(u32::MAX)
}

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
    /// Whether what is told beside the trace, too, goes into rings in which the newest overwrites the oldest.
    pub overwrite: bool,
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
            Role::Other(_) => {
                common.flags.set(Flags::WRITE_BACKWARD, self.overwrite);
                common
            }
        }
    }

    /// Makes the rings as much smaller as the limits demand; whether that was so.
    ///
    /// # Errors
    /// If not even the smallest are allowed, or of use.
    pub(crate) fn shrink(&mut self, limits: &Limits) -> Result<bool> {
        let page = sys::page_size();
        let rings = self.pairs().len() * self.aux().count();
        let beside = if self.overwrite { 2 } else { 1 };
        let Some((data, aux)) = limits.fit(rings, beside, self.data, self.aux, page) else {
            // It says why.
            let each = u64::try_from(3 * page).unwrap_or(u64::MAX);
            return limits.preflight(rings, each).map(|()| false);
        };
        self.check_overwrite(data)?;
        let smaller = (data, aux) != (self.data, self.aux);
        if self.aux != aux {
            // With more of the area a driver might stop before it wakes anybody.
            self.watermark = self.watermark.min(default_watermark(aux, &self.events));
        }
        (self.data, self.aux) = (data, aux);
        Ok(smaller)
    }

    /// Whether a data ring of this length can be overwritten, if that is what it is for.
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

    /// Length of the ring of what is told beside the trace, if that has one of its own.
    fn beside(&self) -> usize {
        if self.overwrite {
            sys::page_size() + self.data
        } else {
            0
        }
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
        flags.set(Flags::WRITE_BACKWARD, self.overwrite);
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
    /// Events that write trace, as they were at the beginning; the first owns the rings.
    first: Arc<[Opened]>,
    /// What those counted that stand no more in the place of each.
    before: Vec<Count>,
    /// The same events, or those that were opened in their place.
    switched: Switched,
    /// Events in their groups.
    members: Vec<Opened>,
    tracking: Vec<Opened>,
    /// Where those write that share no ring with the trace.
    beside: Option<Beside>,
    /// All of them, as the file knows them.
    known: Vec<Known>,
    /// Ids of events that were opened in the place of others, with those that the file knows.
    renamed: Vec<(u64, u64)>,
    /// What is to be opened again when the rings' CPU was offline; of rings of tasks, nothing.
    again: Option<Hotplug>,
    /// Reader of the data ring.
    pub data: Reader,
    /// Reader of the AUX area.
    pub aux: Reader,
}

/// A data ring in which the newest records overwrite the oldest. That of the trace cannot be one: the kernel reads from its control
/// page where the AUX area is, so it must be writable, and how far the area was read.
#[derive(Debug)]
struct Beside {
    // Before the event, as with the others.
    map: Mapping,
    owner: Event,
    reader: Backward,
}

/// An event with what stands for it in the file.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Which of the plan's events it is.
    pub number: usize,
    /// Its id.
    pub id: u64,
    /// Its thread.
    pub thread: Option<u32>,
}

/// The events of a pair of rings that are switched on and off: that is done under this lock, and those who start an event again
/// that the kernel has turned off, or open another in its place, hold it too.
#[derive(Debug, Clone)]
struct Switched(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Whether trace is wanted.
    on: bool,
    /// Events that write trace.
    events: Arc<[Opened]>,
    /// Others that only share the data ring, and whether each is on.
    others: Vec<(Opened, bool)>,
}

impl Switched {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody who held the lock has left it half changed: an event is pushed, or a flag set.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds out that the kernel has taken the events of a CPU off, which it does without a word when that goes offline, and does
/// not take back when it returns.
#[derive(Debug)]
struct Hotplug {
    plan: Arc<Plan>,
    cpu: i32,
    /// An event that is always on: its time goes on for as long as its CPU has its events.
    probe: Probe,
    /// For how long the CPU had no events until this one was opened, ns.
    dark: u64,
}

#[derive(Debug)]
struct Probe {
    event: Event,
    /// When it was opened, ns.
    opened: u64,
    /// When it was looked at last, ns, and what its time was.
    looked: (u64, u64),
}

impl Probe {
    fn open(cpu: i32) -> std::io::Result<Self> {
        let attr = Attr {
            kind: 1,
            config: 9,
            flags: Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
            read_format: Read::FORMAT,
            ..Attr::default()
        };
        let event = Event::open(&attr, -1, cpu)?;
        let now = sys::now();
        Ok(Self {
            event,
            opened: now,
            looked: (now, 0),
        })
    }

    /// Whether its time stands still since the last look.
    fn is_dead(&mut self) -> bool {
        let Ok(Some(count)) = self.event.count() else {
            return false;
        };
        let (at, enabled) = self.looked;
        let now = sys::now();
        if now.saturating_sub(at) < STEP {
            return false;
        }
        self.looked = (now, count.enabled);
        count.enabled == enabled
    }

    /// For how long it was off, ns.
    fn dark(&self) -> u64 {
        let all = sys::now().saturating_sub(self.opened);
        all.saturating_sub(self.looked.1)
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
    switched: Switched,
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
            let mut state = ring.switched.lock();
            if named(ring.number) {
                state.events.iter().try_for_each(switch)?;
                state.on = on;
            }
            for (opened, state) in &mut state.others {
                if named(opened.number) {
                    switch(opened)?;
                    *state = on;
                }
            }
        }
        Ok(())
    }
}

fn refused(what: &str, name: &str, error: &std::io::Error) -> Error {
    Error::failed(format!(
        "cannot {what} `{name}`: the PMU may be gone, its module unloaded ({error})"
    ))
}

impl Opened {
    fn known(&self) -> Known {
        Known {
            number: self.number,
            id: self.id,
            thread: self.thread,
        }
    }
}

/// An event with who it is for.
#[derive(Debug)]
pub struct Opened {
    /// The event.
    pub event: Event,
    /// Which of the plan's events it is.
    pub number: usize,
    /// Its id; of one that was opened in the place of another, that one's, which is in the file.
    pub id: u64,
    /// Its thread.
    pub thread: Option<u32>,
}

/// All rings of a recording.
#[derive(Debug)]
pub struct Session {
    plan: Arc<Plan>,
    rings: Vec<Rings>,
}

impl Session {
    /// Opens all events, disabled, and maps their rings.
    ///
    /// # Errors
    /// If the system refuses: the error says what it means and what to do.
    pub fn open(plan: Plan, limits: &Limits) -> Result<Self> {
        let plan = Arc::new(plan);
        let pairs = plan.pairs();
        let all: Vec<usize> = plan.aux().collect();
        let each = sys::page_size() + plan.data + plan.aux + plan.beside();
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
                ring.switched.lock().on = true;
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

    /// The CPUs that were offline, and for how long each had no events, ns.
    #[must_use]
    pub fn offline(&mut self) -> Vec<(u32, u64)> {
        let look = |rings: &mut Rings| {
            let (cpu, hotplug) = rings.cpu.zip(rings.again.as_mut())?;
            let dead = hotplug.probe.is_dead();
            let now = if dead { hotplug.probe.dark().max(1) } else { 0 };
            Some((cpu, hotplug.dark.saturating_add(now)))
        };
        if self.rings.iter().all(|rings| rings.again.is_none()) {
            return Vec::new();
        }
        for rings in &mut self.rings {
            look(rings);
        }
        std::thread::sleep(Duration::from_nanos(STEP));
        let mut all: Vec<_> = self.rings.iter_mut().filter_map(look).collect();
        all.retain(|(_, dark)| *dark != 0);
        all
    }

    /// What switches the trace on and off.
    #[must_use]
    pub fn switch(&self) -> Switch {
        let of = |ring: &Rings| SwitchOf {
            number: ring.number,
            switched: ring.switched.clone(),
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
                ring.known.iter().map(|known| IdIndexEntry {
                    id: known.id,
                    idx: u64::from(ring.idx),
                    cpu: signed(ring.cpu),
                    tid: signed(known.thread),
                })
            })
            .collect()
    }

    /// The ids of the event of this number; of the one that tells of names and threads, after the last.
    #[must_use]
    pub fn ids(&self, number: usize) -> Vec<u64> {
        let all = self.rings.iter().flat_map(|ring| &ring.known);
        all.filter(|known| known.number == number)
            .map(|known| known.id)
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
        plan: &Arc<Plan>,
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
        let join = |opened: &Opened, owner: &Event| {
            let set = opened.event.set_output(owner);
            set.map_err(|e| {
                Error::failed(format!(
                    "cannot send the records of two events to one ring ({e})"
                ))
            })
        };
        let of_trace = events.iter().skip(1).chain(&members);
        let told: Vec<&Opened> = others.iter().chain(&tracking).collect();
        for opened in of_trace {
            join(opened, &owner.event)?;
        }
        let beside = match told.split_first() {
            Some((first, rest)) if plan.overwrite => {
                let len = page + plan.data;
                let map = Mapping::new(&first.event, 0, len, false);
                let map = map.map_err(|e| limits.explain_mmap(&e, "data ring", ring(len), all))?;
                for opened in rest {
                    join(opened, &first.event)?;
                }
                Some(Beside {
                    map,
                    owner: first.event.try_clone().map_err(|e| {
                        Error::failed(format!("cannot keep the event of a ring ({e})"))
                    })?,
                    reader: Backward::new(plan.data)?,
                })
            }
            _ => {
                for opened in told {
                    join(opened, &owner.event)?;
                }
                None
            }
        };
        if let Some(filter) = &plan.filter {
            for opened in &events {
                let set = opened.event.set_filter(filter);
                set.map_err(|e| limits.explain_filter(&e, filter, plan.name(number)))?;
            }
        }
        let probe = match (cpu, &plan.threads) {
            (Some(cpu), None) => Some(i32::try_from(cpu).unwrap_or(-1)),
            _ => None,
        };
        let again = probe.map(|cpu| {
            let probe = Probe::open(cpu);
            let probe = probe.map_err(|e| limits.explain_open(&e, TRACKING, "a CPU"))?;
            Ok::<_, Error>(Hotplug {
                plan: plan.clone(),
                cpu,
                probe,
                dark: 0,
            })
        });
        let all = events.iter().chain(&members).chain(&others);
        let known = all.chain(&tracking).map(Opened::known).collect();
        let events: Arc<[Opened]> = events.into();
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
            before: vec![Count::default(); events.len()],
            switched: Switched(Arc::new(Mutex::new(State {
                on: false,
                events: events.clone(),
                others: others.into_iter().map(|opened| (opened, false)).collect(),
            }))),
            first: events,
            members,
            tracking,
            beside,
            known,
            renamed: Vec::new(),
            again: again.transpose()?,
        })
    }

    /// The events that write trace, as they were opened at first: whoever waits for these is woken for those too that were opened in
    /// their place, as all have the same ring.
    #[must_use]
    pub fn events(&self) -> &[Opened] {
        &self.first
    }

    /// What the events that write trace have counted, each with those before it. One that cannot be read any more, its PMU being
    /// gone, has no count.
    #[must_use]
    pub fn counts(&self) -> Vec<(Known, Count)> {
        let events = self.switched.lock().events.clone();
        let all = events.iter().zip(&self.before);
        all.filter_map(|(opened, before)| {
            let now = opened.event.count().ok()??;
            Some((opened.known(), now.plus(before)))
        })
        .collect()
    }

    /// Looks whether the rings' CPU was offline, and opens its events again if it is back. To be called now and then, after the
    /// data ring was read.
    ///
    /// What cannot be opened, as the CPU has gone again, is tried again the next time; until then it counts as offline.
    pub(crate) fn revive(&mut self) {
        let dead = self.again.as_mut().is_some_and(|h| h.probe.is_dead());
        if dead {
            let _ = self.reopen();
        }
    }

    /// Opens all events again, for the same rings: so the positions in these go on. The rings still belong to the event that was
    /// mapped.
    ///
    /// The new ones have other ids, and those of a file stand at its beginning: so what the new events write gets the ids of the
    /// old ones. (perf gives up at an ID_INDEX with ids that are not there.)
    fn reopen(&mut self) -> std::io::Result<()> {
        let (Some(again), Some(owner)) = (&mut self.again, self.first.first()) else {
            return Ok(());
        };
        let plan = again.plan.clone();
        // First, as it fails at once if the CPU is not there.
        let probe = Probe::open(again.cpu)?;
        let mut renamed = Vec::new();
        let mut open = |number: usize, leader: Option<&Event>| -> std::io::Result<Opened> {
            let attr = plan.attr(number);
            let event = match &plan.cgroup {
                Some(group) => Event::open_cgroup(&attr, group.as_fd(), again.cpu, leader)?,
                None => Event::open_in(&attr, -1, again.cpu, leader)?,
            };
            let known = self.known.iter().find(|known| known.number == number);
            let known = known.ok_or(std::io::ErrorKind::NotFound)?;
            // Of the trace are the event that writes it and those in its group.
            let beside = self.beside.as_ref();
            let beside = beside.filter(|_| number != self.number && leader.is_none());
            event.set_output(beside.map_or(&owner.event, |beside| &beside.owner))?;
            renamed.push((event.id()?, known.id));
            Ok(Opened {
                event,
                number,
                id: known.id,
                thread: None,
            })
        };
        let new = open(self.number, None)?;
        if let Some(filter) = &plan.filter {
            new.event.set_filter(filter)?;
        }
        let members = self.members.iter();
        let members = members.map(|old| open(old.number, Some(&new.event)));
        let members = members.collect::<std::io::Result<Vec<_>>>()?;
        let tracking = self.tracking.iter().map(|old| open(old.number, None));
        let tracking = tracking.collect::<std::io::Result<Vec<_>>>()?;
        let mut state = self.switched.lock();
        let others = state.others.iter();
        let others = others.map(|(old, on)| Ok((open(old.number, None)?, *on)));
        let others = others.collect::<std::io::Result<Vec<_>>>()?;
        for opened in &tracking {
            opened.event.enable()?;
        }
        for (opened, _) in others.iter().filter(|(_, on)| *on) {
            opened.event.enable()?;
        }
        if state.on {
            new.event.enable()?;
        }
        for (before, old) in self.before.iter_mut().zip(state.events.iter()) {
            if let Some(count) = old.event.count()? {
                *before = count.plus(before);
            }
        }
        (state.events, state.others) = ([new].into(), others);
        (self.members, self.tracking) = (members, tracking);
        // What the old ones wrote was read.
        self.renamed = renamed;
        again.dark = again.dark.saturating_add(again.probe.dark().max(1));
        again.probe = probe;
        Ok(())
    }

    /// What came into the ring that is overwritten since the last time, and is still there. Meanwhile the kernel writes nothing
    /// into it, and counts what it would have written.
    ///
    /// # Errors
    /// If the kernel refuses, or there are no records.
    pub(crate) fn newest(&mut self) -> Result<Newest> {
        let Some(beside) = &mut self.beside else {
            return Ok(Newest::default());
        };
        let pause = |pause| {
            let done = beside.owner.pause_output(pause);
            done.map_err(|e| Error::failed(format!("cannot pause a data ring ({e})")))
        };
        pause(true)?;
        let newest = beside.reader.newest(&DataArea {
            base: &beside.map,
            page: sys::page_size(),
        });
        pause(false)?;
        newest
    }

    /// Gives records of events that were opened in the place of others those others' ids.
    ///
    /// # Errors
    /// If these are no records.
    pub(crate) fn rename(&self, records: &mut [u8]) -> Result<()> {
        if self.renamed.is_empty() {
            return Ok(());
        }
        Ok(perfdata::rename(records, &|id| {
            let mut all = self.renamed.iter();
            all.find(|(new, _)| *new == id).map(|(_, known)| *known)
        })?)
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

    /// The AUX area, to look at.
    pub fn area(&self) -> AuxArea<'_> {
        AuxArea {
            base: &self.base,
            aux: &self.aux_map,
        }
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
        let state = self.switched.lock();
        if !state.on {
            return Ok(());
        }
        state.events.iter().try_for_each(|opened| {
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
        let switched = self.switched.clone();
        let state = switched.lock();
        let (on, events) = (state.on, &state.events);
        let begin = sys::now();
        if on {
            events
                .iter()
                .try_for_each(|opened| opened.event.disable())?;
        }
        let out = still(self);
        if on {
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
