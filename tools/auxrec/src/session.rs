// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events of a recording and their rings, as the kernel has them.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use perfdata::{Attr, Flags, IdIndexEntry, Read, SampleType};

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
    /// The newest bytes overwrite the oldest; the area is read once, at the end.
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
}

impl Plan {
    const SAMPLE: SampleType = SampleType::IDENTIFIER
        .union(SampleType::IP)
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::CPU);

    fn common(&self, attr: &Attr) -> Attr {
        let mut flags = attr.flags | Flags::DISABLED | Flags::SAMPLE_ID_ALL | Flags::USE_CLOCKID;
        flags.set(Flags::INHERIT, self.inherit);
        flags.set(Flags::ENABLE_ON_EXEC, self.on_exec);
        Attr {
            flags,
            sample_period: 1,
            sample_type: Self::SAMPLE,
            read_format: Read::FORMAT,
            clockid: sys::CLOCK,
            ..attr.clone()
        }
    }

    /// The event that writes trace. It is no member of a group with others: when the kernel turns it off for want of room,
    /// they go on.
    #[must_use]
    pub fn aux_attr(&self) -> Attr {
        Attr {
            aux_watermark: if self.mode == Mode::Linear {
                self.watermark
            } else {
                0
            },
            ..self.common(&self.event.attr())
        }
    }

    /// The event that writes of names, threads and mappings. It counts nothing.
    #[must_use]
    pub fn tracking_attr(&self) -> Attr {
        let flags = Flags::MMAP | Flags::MMAP2 | Flags::COMM | Flags::COMM_EXEC | Flags::TASK;
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
    events: Vec<Opened>,
    tracking: Vec<Opened>,
    /// Reader of the data ring.
    pub data: Reader,
    /// Reader of the AUX area.
    pub aux: Reader,
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
        let rings = (0..)
            .zip(pairs)
            .map(|(idx, (cpu, threads))| Rings::open(&plan, idx, cpu, &threads, limits, all))
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

    /// Starts everything that does not wait for an exec.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn enable(&self) -> Result<()> {
        for ring in &self.rings {
            for opened in ring.tracking.iter().chain(&ring.events) {
                opened
                    .event
                    .enable()
                    .map_err(|e| self.refused("enable", &e))?;
            }
        }
        Ok(())
    }

    /// Ends the trace. Names and threads are still told of.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn disable(&self) -> Result<()> {
        for opened in self.rings.iter().flat_map(|ring| &ring.events) {
            opened
                .event
                .disable()
                .map_err(|e| self.refused("disable", &e))?;
        }
        Ok(())
    }

    fn refused(&self, what: &str, error: &std::io::Error) -> Error {
        Error::failed(format!(
            "cannot {what} `{}`: the PMU may be gone, its module unloaded ({error})",
            self.plan.event.text
        ))
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
            events,
            tracking,
        })
    }

    /// The events that write trace.
    #[must_use]
    pub fn events(&self) -> &[Opened] {
        &self.events
    }

    /// What wakes up when there is something to read.
    pub fn wakers(&self) -> impl Iterator<Item = impl AsFd + '_> {
        self.events.iter().map(|opened| &opened.event)
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
    /// # Errors
    /// If the PMU is gone.
    pub fn restart(&self) -> std::io::Result<()> {
        self.events.iter().try_for_each(|opened| {
            opened.event.disable()?;
            opened.event.enable()
        })
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
