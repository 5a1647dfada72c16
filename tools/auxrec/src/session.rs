// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events of a recording and their rings, as the kernel has them.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use perfdata::{Attr, Auxtrace, Flags, IdIndexEntry, Read, SampleType, TimeConv};

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::pmu::EventSpec;
use crate::ring::{AuxArea, DataArea, Reader};
use crate::sys::{self, Event, Field, Mapping};

/// How the AUX area is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every byte is read, and what finds no room is lost.
    Linear,
    /// The newest bytes overwrite the oldest; the area is read when a snapshot is asked for.
    Overwrite,
}

/// What to open.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The event that writes trace.
    pub event: EventSpec,
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
        !self.event.pmu.writes_intel_pt()
    }

    fn common(&self, attr: &Attr) -> Attr {
        let mut flags = attr.flags | Flags::DISABLED | Flags::SAMPLE_ID_ALL;
        let own_clock = self.has_own_clock();
        flags.set(Flags::USE_CLOCKID, own_clock);
        flags.set(Flags::INHERIT, self.inherit);
        flags.set(Flags::ENABLE_ON_EXEC, self.on_exec);
        Attr {
            flags,
            sample_period: 1,
            sample_type: Self::SAMPLE,
            read_format: Read::FORMAT,
            clockid: if own_clock { sys::CLOCK } else { 0 },
            ..attr.clone()
        }
    }

    /// The event that writes trace. It is no member of a group with others: when the kernel turns it off for want of room,
    /// they go on.
    #[must_use]
    pub fn aux_attr(&self) -> Attr {
        let mut common = self.common(&self.event.attr());
        if self.delayed {
            common.flags.remove(Flags::ENABLE_ON_EXEC);
        }
        Attr {
            aux_watermark: if self.mode == Mode::Linear {
                self.watermark
            } else {
                0
            },
            ..common
        }
    }

    /// The event that writes of names, threads and mappings. It counts nothing.
    #[must_use]
    pub fn tracking_attr(&self) -> Attr {
        let mut flags = Flags::MMAP | Flags::MMAP2 | Flags::COMM | Flags::COMM_EXEC | Flags::TASK;
        // Whose the trace of a CPU is.
        flags.set(
            Flags::CONTEXT_SWITCH,
            self.event.pmu.writes_intel_pt() && self.cpus.is_some(),
        );
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
    /// Events that write trace; the first owns the rings.
    events: Arc<[Opened]>,
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
    on: On,
    events: Vec<Arc<[Opened]>>,
    name: String,
}

impl Switch {
    /// Whether this is the name of the event.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.name == name
    }

    /// Lets the events trace, or no more.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set(&self, on: bool) -> Result<()> {
        let mut state = self.on.lock();
        for opened in self.events.iter().flat_map(|events| events.iter()) {
            let result = if on {
                opened.event.enable()
            } else {
                opened.event.disable()
            };
            let what = if on { "enable" } else { "disable" };
            result.map_err(|e| refused(what, &self.name, &e))?;
        }
        *state = on;
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
    on: On,
}

impl Session {
    /// Opens all events, disabled, and maps their rings.
    ///
    /// # Errors
    /// If the system refuses: the error says what it means and what to do.
    pub fn open(plan: Plan, limits: &Limits) -> Result<Self> {
        let pairs = plan.pairs();
        let each = sys::page_size() + plan.data + plan.aux;
        limits.preflight(pairs.len(), u64::try_from(each).unwrap_or(u64::MAX))?;
        let all = u64::try_from(each * pairs.len()).unwrap_or(u64::MAX);
        let on = On::default();
        let rings = (0..)
            .zip(pairs)
            .map(|(idx, (cpu, threads))| Rings::open(&plan, idx, cpu, &threads, limits, all, &on))
            .collect::<Result<_>>()?;
        Ok(Self { plan, rings, on })
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
                opened
                    .event
                    .enable()
                    .map_err(|e| self.refused("enable", &e))?;
            }
        }
        if trace && self.plan.on_exec && !self.plan.delayed {
            // The exec does it.
            *self.on.lock() = true;
        } else if trace {
            self.switch().set(true)?;
        }
        Ok(())
    }

    /// Ends the trace. Names and threads are still told of.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn disable(&self) -> Result<()> {
        self.switch().set(false)
    }

    /// What switches the trace on and off.
    #[must_use]
    pub fn switch(&self) -> Switch {
        Switch {
            on: self.on.clone(),
            events: self.rings.iter().map(|ring| ring.events.clone()).collect(),
            name: self.plan.event.text.clone(),
        }
    }

    fn refused(&self, what: &str, error: &std::io::Error) -> Error {
        refused(what, &self.plan.event.text, error)
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
                ring.events
                    .iter()
                    .chain(&ring.tracking)
                    .map(|opened| IdIndexEntry {
                        id: opened.id,
                        idx: u64::from(ring.idx),
                        cpu: signed(ring.cpu),
                        tid: signed(opened.thread),
                    })
            })
            .collect()
    }

    /// The ids of the events that write trace, and of those that tell of names and threads.
    #[must_use]
    pub fn ids(&self) -> [Vec<u64>; 2] {
        let ids =
            |of: fn(&Rings) -> &[Opened]| self.rings.iter().flat_map(of).map(|o| o.id).collect();
        [ids(|ring| &ring.events), ids(|ring| &ring.tracking)]
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
        idx: u32,
        cpu: Option<u32>,
        threads: &[Option<u32>],
        limits: &Limits,
        all: u64,
        on: &On,
    ) -> Result<Self> {
        let page = sys::page_size();
        let (aux_attr, tracking_attr) = (plan.aux_attr(), plan.tracking_attr());
        let open = |attr: &Attr, thread: Option<u32>, name: &str| -> Result<Opened> {
            let signed = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(-1));
            let what = match (thread, cpu) {
                (None, Some(cpu)) => format!("all of CPU {cpu}"),
                (Some(thread), None) => format!("thread {thread}"),
                (Some(thread), Some(cpu)) => format!("thread {thread} on CPU {cpu}"),
                (None, None) => "nobody".to_owned(),
            };
            Event::open(attr, signed(thread), signed(cpu))
                .and_then(|event| {
                    Ok(Opened {
                        id: event.id()?,
                        event,
                        thread,
                    })
                })
                .map_err(|e| limits.explain_open(&e, name, &what))
        };
        let name = &plan.event.text;
        let events = threads
            .iter()
            .map(|&thread| open(&aux_attr, thread, name))
            .collect::<Result<Vec<_>>>()?;
        let tracking = threads
            .iter()
            .map(|&thread| open(&tracking_attr, thread, "dummy"))
            .collect::<Result<Vec<_>>>()?;
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
        for opened in events.iter().skip(1).chain(&tracking) {
            opened.event.set_output(&owner.event).map_err(|e| {
                Error::failed(format!(
                    "cannot send the records of two events to one ring ({e})"
                ))
            })?;
        }
        Ok(Self {
            idx,
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
            on: on.clone(),
            tracking,
        })
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
        match (self.cpu, self.thread) {
            (Some(cpu), _) => format!("CPU {cpu}"),
            (None, Some(thread)) => format!("thread {thread}"),
            (None, None) => format!("ring {}", self.idx),
        }
    }
}
