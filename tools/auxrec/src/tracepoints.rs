// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracepoints besides the trace: read from buffers of tracefs, and written as perf's samples or as a `trace.dat`.
//!
//! Separate threads, one for each CPU, move the events into files beside the recording. When the recording ends, the events become samples
//! after all other records. So a file with such samples has no FINISHED_ROUND: readers sort all of its records by time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use auxview::trace::FIRST_ID;
use perfdata::{Attr, EventDesc, Flags, Lost, SampleId, SampleType, Tracepoint};
use tracering::dat::{self, Head};
use tracering::{Instance, Missed, Named, Recorded, Recorder, SubBuffer, Taken, Tracefs};

use crate::drain::Sink;
use crate::error::Error;
use crate::message::say;
use crate::session::Plan;
use crate::sys;
use auxview::loss::Loss;

/// An error of tracefs or of the recording, as a sentence.
#[derive(Debug)]
pub(crate) struct Failure(Error);

type Result<T> = std::result::Result<T, Failure>;

impl From<tracering::Error> for Failure {
    fn from(error: tracering::Error) -> Self {
        Self(Error::failed(format!("--trace: {error}")))
    }
}

impl From<perfdata::Error> for Failure {
    fn from(error: perfdata::Error) -> Self {
        Self(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

/// Samples are written when they have this number of bytes.
const BATCH: usize = 64 << 10;

/// The events of tracefs to record.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Events, each `SYSTEM:EVENT` or `SYSTEM:*`.
    pub events: Vec<String>,
    /// The `trace.dat` to write; [`None`]: the events become samples of the recording.
    pub dat: Option<PathBuf>,
    /// Size of the buffer of each CPU, KiB; [`None`]: the kernel's default.
    pub buffer: Option<usize>,
}

/// How the file of a recording describes the events.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// The events.
    pub events: Vec<EventDesc>,
    /// Their formats: the section TRACING_DATA.
    pub data: Vec<u8>,
}

/// The events of tracefs in a recording. Dropping this removes all of it from tracefs.
pub(crate) struct Tracepoints {
    wanted: Wanted,
    attr: Attr,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Recorder, tracering::Result<()>)>>,
    recorder: Option<Recorder>,
    recorded: Option<Recorded>,
    events: BTreeMap<u16, Named>,
    top: Tracefs,
    /// The last field: the kernel does not remove an instance until everything else in it is closed.
    instance: Instance,
}

impl Tracepoints {
    /// Opens the buffers of a separate instance. `output` is the file of the recording. `threads` are the threads whose events are
    /// recorded, with their children.
    ///
    /// # Errors
    /// If an event does not exist, or tracefs refuses.
    pub fn open(
        wanted: &Wanted,
        output: &Path,
        plan: &Plan,
        threads: Option<&[u32]>,
    ) -> Result<Self> {
        let top = Tracefs::find()?;
        let events = top.events(&wanted.events)?;
        let instance = Instance::new(&top, "auxrec")?;
        let tracefs = instance.tracefs();
        let set = |file: &str, text: &str| tracefs.write(file, text).map_err(Failure::from);
        if let Some(kib) = wanted.buffer {
            set("buffer_size_kb", &kib.to_string())?;
        }
        // The clock of the records. perf's own clock is `local_clock()`, which tracefs calls perf.
        set(
            "trace_clock",
            if plan.has_own_clock() { "mono" } else { "perf" },
        )?;
        if let Some(threads) = threads {
            let list: Vec<_> = threads.iter().map(ToString::to_string).collect();
            set("set_event_pid", &list.join(" "))?;
            if plan.inherit || plan.on_exec {
                set("options/event-fork", "1")?;
            }
        }
        let all = tracefs.cpus()?;
        let cpus: Vec<_> = match &plan.cpus {
            Some(cpus) if threads.is_none() => {
                all.into_iter().filter(|cpu| cpus.contains(cpu)).collect()
            }
            _ => all,
        };
        let beside = wanted.dat.as_deref().unwrap_or(output);
        let mut recorder = Recorder::new(tracefs, &cpus, beside)?;
        if wanted.dat.is_some() {
            let header = tracefs.page_header()?;
            recorder.reserve(&Head::new(&top, tracefs, events.values(), header)?)?;
        }
        Ok(Self {
            wanted: wanted.clone(),
            attr: attr(plan),
            end: Arc::default(),
            thread: None,
            recorder: Some(recorder),
            recorded: None,
            events,
            top,
            instance,
        })
    }

    /// The description for the file; [`None`] if the events do not go into it.
    ///
    /// # Errors
    /// If tracefs does not provide it.
    pub fn described(&self) -> Result<Option<Described>> {
        if self.wanted.dat.is_some() {
            return Ok(None);
        }
        let tracefs = self.instance.tracefs();
        let header = tracefs.page_header()?;
        let head = Head::new(&self.top, tracefs, self.events.values(), header)?;
        // perf gets the symbols of the kernel from elsewhere.
        let head = Head {
            kallsyms: Vec::new(),
            ..head
        };
        Ok(Some(Described {
            events: self
                .events
                .iter()
                .map(|(id, event)| self.desc(*id, event))
                .collect(),
            data: dat::tracing_data(&head)?,
        }))
    }

    fn desc(&self, id: u16, event: &Named) -> EventDesc {
        EventDesc {
            attr: Attr {
                config: id.into(),
                ..self.attr.clone()
            },
            ids: vec![FIRST_ID + u64::from(id)],
            name: format!("{}:{}", event.system, event.format.name),
        }
    }

    /// Starts recording.
    ///
    /// # Errors
    /// If an event cannot be enabled.
    pub fn start(&mut self) -> Result<()> {
        let Some(mut recorder) = self.recorder.take() else {
            return Ok(());
        };
        let end = Arc::clone(&self.end);
        let run = move || {
            let result = recorder.run(&end, false);
            (recorder, result)
        };
        let thread = thread::Builder::new().name("tracefs".to_owned()).spawn(run);
        let thread =
            thread.map_err(|e| Error::failed(format!("cannot start a thread for --trace: {e}")))?;
        self.thread = Some(thread);
        // The kernel's own events cannot be enabled or disabled.
        let events = self.events.values();
        let switched = events.filter(|event| event.system != "ftrace");
        self.instance.enable(switched).map_err(Failure::from)
    }

    /// Stops recording, and reads the rest of the buffers.
    ///
    /// # Errors
    /// If they cannot be read, or the files beside the recording cannot be written.
    pub fn stop(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let tracefs = self.instance.tracefs();
        let stopped = tracefs.write("tracing_on", "0").map_err(Failure::from);
        self.end.store(true, Ordering::Release);
        let (recorder, result) = thread
            .join()
            .map_err(|_| Error::failed("the thread of --trace panicked"))?;
        self.recorded = Some(recorder.stop()?);
        stopped.and(result.map_err(Failure::from))
    }

    /// Writes the samples into the recording, or writes the `trace.dat`. Returns the losses on each CPU.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&mut self, output: &mut dyn Sink) -> Result<Vec<(String, Loss, u64)>> {
        let Some(recorded) = &mut self.recorded else {
            return Ok(Vec::new());
        };
        if let Some(path) = &self.wanted.dat {
            let events = self.events.values();
            recorded.write_dat(&self.top, events, path)?;
        } else {
            let mut samples = Samples {
                attr: &self.attr,
                events: &self.events,
                bytes: Vec::new(),
                times: None,
                left: 0,
                others: 0,
                output,
            };
            for taken in recorded.cpus() {
                samples.cpu(taken)?;
            }
            if samples.others != 0 {
                say(format_args!(
                    "--trace: {} events of other types are left out",
                    samples.others
                ));
            }
        }
        let lost = recorded.cpus().iter().map(|taken| {
            let mut loss = Loss::default();
            loss.events = taken.events();
            loss.events_lost = taken.lost();
            (format!("tracefs, CPU {}", taken.cpu()), loss, 0)
        });
        Ok(lost.collect())
    }
}

impl Drop for Tracepoints {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The attribute of these events, without their number.
fn attr(plan: &Plan) -> Attr {
    let mut flags = Flags::SAMPLE_ID_ALL;
    let own_clock = plan.has_own_clock();
    flags.set(Flags::USE_CLOCKID, own_clock);
    Attr {
        kind: sys::TRACEPOINT,
        sample_period: 1,
        sample_type: SampleType::IDENTIFIER
            | SampleType::TID
            | SampleType::TIME
            | SampleType::CPU
            | SampleType::RAW,
        flags,
        clockid: if own_clock { sys::CLOCK } else { 0 },
        ..Attr::default()
    }
}

/// Converts events to samples of a recording.
struct Samples<'a> {
    attr: &'a Attr,
    events: &'a BTreeMap<u16, Named>,
    bytes: Vec<u8>,
    times: Option<(u64, u64)>,
    /// Number of events that this CPU has lost and no record has reported yet.
    left: u64,
    /// Number of events of types that were not requested.
    others: u64,
    output: &'a mut dyn Sink,
}

impl Samples<'_> {
    fn cpu(&mut self, taken: &Taken) -> Result<()> {
        let cpu = taken.cpu();
        self.left = taken.lost();
        let mut last = 0;
        taken.each(|sub| {
            match sub.missed() {
                Missed::No => {}
                Missed::Events(n) => self.lost(cpu, sub.time_stamp(), n)?,
                // The record at the end reports them.
                Missed::Unknown => {}
            }
            last = self.sub_buffer(cpu, &sub)?;
            Ok::<_, Failure>(())
        })?;
        self.lost(cpu, last, self.left)?;
        self.flush()
    }

    /// Returns the time of the last event.
    fn sub_buffer(&mut self, cpu: u32, sub: &SubBuffer<'_>) -> Result<u64> {
        let mut last = sub.time_stamp();
        for event in sub.events() {
            let event = event?;
            last = event.time;
            let known = event
                .data
                .u16(0)
                .and_then(|id| Some((id, self.events.get(&id)?)));
            let Some((id, named)) = known else {
                self.others += 1;
                continue;
            };
            let pid = named.format.field("common_pid");
            let pid = pid.and_then(|pid| pid.signed(event.data));
            let sample = Tracepoint {
                id: FIRST_ID + u64::from(id),
                // tracefs knows the thread alone; perf takes -1 for "not known".
                pid: u32::MAX,
                tid: pid
                    .and_then(|pid| u32::try_from(pid).ok())
                    .unwrap_or(u32::MAX),
                time: event.time,
                cpu,
                data: &event.data.to_vec(),
            };
            perfdata::append(&sample, None, &mut self.bytes)?;
            self.seen(event.time)?;
        }
        Ok(last)
    }

    fn lost(&mut self, cpu: u32, time: u64, lost: u64) -> Result<()> {
        let Some((id, _)) = self.events.first_key_value().filter(|_| lost != 0) else {
            return Ok(());
        };
        self.left = self.left.saturating_sub(lost);
        let id = FIRST_ID + u64::from(*id);
        let who = SampleId {
            pid: Some(u32::MAX),
            tid: Some(u32::MAX),
            time: Some(time),
            id: Some(id),
            stream_id: None,
            cpu: Some(cpu),
        };
        perfdata::append(&Lost { id, lost }, Some((&who, self.attr)), &mut self.bytes)?;
        self.seen(time)
    }

    fn seen(&mut self, time: u64) -> Result<()> {
        let (first, last) = self.times.unwrap_or((time, time));
        self.times = Some((first.min(time), last.max(time)));
        if self.bytes.len() >= BATCH {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.output.records(&self.bytes, self.times)?;
        self.bytes.clear();
        Ok(())
    }
}
