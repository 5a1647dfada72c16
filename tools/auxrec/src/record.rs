// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `record`: from the options to the file.

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use perfdata::{ClockData, EventDesc, Features, FinishedInit, IdIndex, Writer};
use rustix::event::{epoll, Timespec};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use crate::drain::{self, Again, Drain};
use crate::error::{Error, Result};
use crate::host;
use crate::limits::Limits;
use crate::loss::Loss;
use crate::parallel;
use crate::pmu::Pmus;
use crate::session::{Mode, Plan, Rings, Session};
use crate::size::{bytes, check_ring, RingSizes};
use crate::sys::{self, Workload};
use crate::target::{check_online, online_cpus, threads, Target};

/// How often the file's header is brought up to date, and events that are off with nothing to drain are started again, ns.
const HEARTBEAT: u64 = 250_000_000;

/// So much of a file that has filled its disk is given up for features, index and counters.
const ROOM: u64 = 64 * 1024;

/// What to record.
#[derive(Debug, Clone)]
pub struct Options {
    /// The event, in the form `pmu/term=value,…/modifiers`.
    pub event: String,
    /// Sizes of the rings.
    pub sizes: RingSizes,
    /// When the AUX area wakes the recorder, in bytes; [`None`]: a quarter of the area.
    pub watermark: Option<usize>,
    /// Who is recorded.
    pub target: Target,
    /// Whether the rings follow the threads rather than the CPUs.
    pub per_thread: bool,
    /// How the AUX area is used.
    pub mode: Mode,
    /// The file.
    pub output: PathBuf,
    /// The command that is run; recording ends when it does.
    pub command: Vec<String>,
    /// The arguments of the recorder, for the file.
    pub cmdline: Vec<String>,
    /// How many threads drain the rings; [`None`]: one for each ring, and at most one for each CPU.
    pub threads: Option<usize>,
    /// The recording ends when the file has so many bytes.
    pub max_size: Option<u64>,
    /// How often the file is brought to its disk; zero: never.
    pub sync: Duration,
    /// Says more on standard error.
    pub verbose: bool,
}

/// How a recording went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The rings with what was lost, and how often each was written from end to end.
    pub rings: Vec<(String, Loss, u64)>,
    /// How often the recorder woke up.
    pub wakeups: u64,
    /// Length of the file.
    pub file: u64,
    /// Exit status of the command.
    pub status: Option<i32>,
}

impl Outcome {
    /// All rings together.
    #[must_use]
    pub fn total(&self) -> Loss {
        self.rings
            .iter()
            .fold(Loss::default(), |sum, (_, loss, _)| sum.plus(*loss))
    }
}

impl Options {
    fn plan(&self, limits: &Limits, online: &[u32]) -> Result<Plan> {
        let page = sys::page_size();
        let event = Pmus::default().event(&self.event)?;
        // As large as perf's, so that the two can be compared: what a user without privileges may have, or what others may.
        let (data, aux) = if limits.unlimited() {
            (512 << 10, 4 << 20)
        } else {
            (256 << 10, 128 << 10)
        };
        let data = check_ring("data ring", self.sizes.data.unwrap_or(data), page)?;
        let aux = check_ring("AUX area", self.sizes.aux.unwrap_or(aux), page)?;
        let watermark = match self.watermark {
            // As perf does for Intel PT: with half of the area, what follows a commit has not room for another half (one
            // byte always stays free), and a driver would stop before its next wakeup.
            None => aux / 4,
            Some(bytes) if (1..=aux).contains(&bytes) => bytes,
            Some(_) => {
                return Err(Error::usage(format!(
                    "--aux-watermark must be between 1 byte and the AUX area's {aux} bytes"
                )))
            }
        };
        if self.per_thread && matches!(self.target, Target::System(_)) {
            return Err(Error::usage(
                "--per-thread follows threads, and -a and -C record CPUs: choose one of them",
            ));
        }
        let (cpus, threads) = match &self.target {
            Target::System(cpus) => {
                check_online(cpus, online)?;
                (Some(cpus.clone()), None)
            }
            Target::Process(pid) => (
                (!self.per_thread).then(|| online.to_vec()),
                Some(threads(*pid)?),
            ),
            Target::Command => (
                (!self.per_thread).then(|| online.to_vec()),
                Some(Vec::new()),
            ),
        };
        Ok(Plan {
            data,
            aux,
            watermark: u32::try_from(watermark).unwrap_or(u32::MAX),
            mode: self.mode,
            inherit: cpus.is_some() && threads.is_some(),
            on_exec: self.target == Target::Command,
            cpus,
            threads,
            event,
        })
    }
}

/// The file that is written, and what was done to make place for it.
struct Output {
    file: File,
    path: PathBuf,
    /// Where the file went that had the name before.
    old: Option<PathBuf>,
}

impl Output {
    /// Moves a file of this name out of the way, as perf does, and makes a new one.
    fn create(path: &Path) -> Result<Self> {
        let cannot = |e: io::Error| Error::failed(format!("cannot create {}: {e}", path.display()));
        let mut old = None;
        if fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() != 0) {
            let mut name = path.as_os_str().to_owned();
            name.push(".old");
            fs::rename(path, &name).map_err(cannot)?;
            old = Some(PathBuf::from(name));
        }
        Ok(Self {
            file: File::create(path).map_err(cannot)?,
            path: path.to_owned(),
            old,
        })
    }

    /// Nothing was recorded: leaves things as they were.
    fn discard(path: &Path, old: Option<&Path>) {
        // What is no file, as a device, stays.
        if fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
            let _ = fs::remove_file(path);
        }
        if let Some(old) = old {
            let _ = fs::rename(old, path);
        }
    }
}

/// Signals, as something to wait for.
struct Signals {
    /// Those that end the recording.
    stop: UnixStream,
    /// The end of a child.
    child: UnixStream,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let stream = |signals: &[i32]| {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            for &signal in signals {
                signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
            }
            Ok::<_, io::Error>(read)
        };
        Ok(Self {
            stop: stream(&[SIGINT, SIGTERM])?,
            child: stream(&[SIGCHLD])?,
        })
    }
}

/// Records.
///
/// # Errors
/// If what was asked for makes no sense, or the system refuses. Of a recording that has begun there is a file, which holds
/// what was recorded until then.
pub fn record(options: &Options) -> Result<Outcome> {
    let online = online_cpus()?;
    let limits = Limits::read(online.len());
    let mut plan = options.plan(&limits, &online)?;
    let signals =
        Signals::catch().map_err(|e| Error::failed(format!("cannot wait for signals: {e}")))?;

    let mut workload = match options.command.as_slice() {
        [] => None,
        command => Some(Workload::prepare(command).map_err(|e| {
            Error::failed(format!("cannot start a process for `{}`: {e}", command[0]))
        })?),
    };
    if let (Target::Command, Some(workload)) = (&options.target, &workload) {
        plan.threads = Some(u32::try_from(workload.pid()).into_iter().collect());
    }
    let session = Session::open(plan, &limits)?;
    let Output {
        file: output,
        path,
        old,
    } = Output::create(&options.output)?;
    let [aux_ids, tracking_ids] = session.ids();
    let events = [
        (session.plan().aux_attr(), aux_ids),
        (session.plan().tracking_attr(), tracking_ids),
    ];
    // For `recover`, should this recorder be killed.
    let spare = features(options, &session, &events, online.len(), "killed", None);
    let sync = Sync::start(&output, options.sync);
    let file = Writer::with_spare(output, &events, &spare)
        .map_err(|e| Error::failed(format!("cannot write {}: {e}", options.output.display())))?;
    if options.verbose {
        eprintln!(
            "auxrec: {} rings of {} and {} for trace, woken by {}",
            session.rings().len(),
            bytes(u64::try_from(session.plan().data).unwrap_or(0)),
            bytes(u64::try_from(session.plan().aux).unwrap_or(0)),
            bytes(u64::from(session.plan().watermark)),
        );
    }

    let mut recording = Recording {
        drains: session
            .rings()
            .iter()
            .map(|_| Drain::new(&session))
            .collect(),
        session,
        file,
        wakeups: 0,
        status: None,
        begun: false,
        counted: false,
    };
    let result = recording
        .begin(options)
        .and_then(|()| recording.run(options, workload.as_mut(), &signals))
        .and_then(|()| recording.end());
    // The command is there to be recorded; it does not go on when that has ended.
    if let Some(workload) = &mut workload {
        let _ = workload.terminate();
    }
    let outcome = match result {
        Err(error) if !recording.begun => {
            Output::discard(&path, old.as_deref());
            Err(error)
        }
        result => recording.close(options, &events, online.len(), result),
    };
    drop(sync);
    outcome
}

/// Has the file on its disk every now and then, beside the recording: writing to a disk takes long.
struct Sync {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Sync {
    fn start(file: &File, period: Duration) -> Self {
        let file = if period.is_zero() {
            None
        } else {
            file.try_clone().ok()
        };
        let (stop, stopped) = mpsc::channel();
        let thread = file.map(|file| {
            thread::spawn(move || {
                while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                    // What cannot be synchronised (a pipe, a full disk) shows when it is written.
                    let _ = file.sync_data();
                }
                let _ = file.sync_all();
            })
        });
        Self {
            stop: Some(stop),
            thread,
        }
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Recording {
    session: Session,
    drains: Vec<Drain>,
    file: Writer<File>,
    wakeups: u64,
    status: Option<i32>,
    /// Whether anything can have been recorded.
    begun: bool,
    counted: bool,
}

/// What woke the recorder.
const STOP: u64 = u64::MAX;
const CHILD: u64 = u64::MAX - 1;
const TARGET_GONE: u64 = u64::MAX - 2;
const OVER: u64 = u64::MAX - 3;

impl Recording {
    /// What stands before the first record of the kernel.
    fn begin(&mut self, options: &Options) -> Result<()> {
        for entries in self.session.id_index().chunks(IdIndex::MAX) {
            self.file.record(&IdIndex(entries), None)?;
        }
        // No AUXTRACE_INFO: it names a decoder that perf has, and perf has none for a PMU that it does not know.
        let attr = self.session.plan().tracking_attr();
        let [_, ids] = self.session.ids();
        let id = ids.first().copied().unwrap_or(0);
        match &options.target {
            Target::Process(pid) => {
                host::process(*pid, &threads(*pid)?, true, &attr, id, &mut self.file)?;
            }
            Target::System(_) => {
                let pids = fs::read_dir("/proc").into_iter().flatten();
                for pid in pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
                    host::process(
                        pid,
                        &threads(pid).unwrap_or_default(),
                        false,
                        &attr,
                        id,
                        &mut self.file,
                    )?;
                }
            }
            Target::Command => {}
        }
        self.file.record(&FinishedInit, None)?;
        self.file.flush()?;
        Ok(())
    }

    fn run(
        &mut self,
        options: &Options,
        mut workload: Option<&mut Workload>,
        signals: &Signals,
    ) -> Result<()> {
        let cannot =
            |e: rustix::io::Errno| Error::failed(format!("cannot wait for the rings: {e}"));
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
        let add = |fd: BorrowedFd<'_>, token: u64| {
            epoll::add(
                &poll,
                fd,
                epoll::EventData::new_u64(token),
                epoll::EventFlags::IN,
            )
            .map_err(cannot)
        };
        add(signals.stop.as_fd(), STOP)?;
        add(signals.child.as_fd(), CHILD)?;
        let rings = self.session.rings().len();
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = options.threads.unwrap_or(cpus).clamp(1, rings);
        // A ring that is read once, at the end, needs no thread.
        let alone = threads == 1 || self.session.plan().mode == Mode::Overwrite;
        let mut rings = self.session.rings().iter().flat_map(Rings::events);
        for (token, opened) in (0..).zip(rings.by_ref().filter(|_| alone)) {
            add(opened.event.as_fd(), token)?;
        }
        let target = match options.target {
            Target::Process(pid) => i32::try_from(pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw)
                .and_then(|pid| {
                    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
                }),
            _ => None,
        };
        if let Some(target) = &target {
            add(target.as_fd(), TARGET_GONE)?;
        }

        if !self.session.plan().on_exec {
            self.session.enable()?;
        }
        if let Some(workload) = workload.as_deref_mut() {
            workload
                .start()
                .map_err(|e| Error::failed(format!("cannot run `{}`: {e}", options.command[0])))?;
        }

        self.begun = true;
        if !alone {
            let mode = self.session.plan().mode;
            let status = &mut self.status;
            let wait = |over: BorrowedFd<'_>| {
                add(over, OVER)?;
                let mut ready = Vec::with_capacity(8);
                loop {
                    ready.clear();
                    let spare = rustix::buffer::spare_capacity(&mut ready);
                    match epoll::wait(&poll, spare, None) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(e) => return Err(cannot(e)),
                    }
                    for event in &ready {
                        match { event.data }.u64() {
                            CHILD => {
                                *status = ended(workload.as_deref_mut(), &signals.child)?;
                                if status.is_some() {
                                    return Ok(());
                                }
                            }
                            _ => return Ok(()),
                        }
                    }
                }
            };
            self.wakeups = parallel::run(
                self.session.rings_mut(),
                &mut self.drains,
                threads,
                mode,
                &mut self.file,
                options.max_size,
                wait,
            )?;
            return Ok(());
        }
        let mut ready = Vec::with_capacity(64);
        let mut stop = false;
        let mut beat = sys::now();
        while !stop {
            let wait = (beat + HEARTBEAT).saturating_sub(sys::now());
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: i64::try_from(wait).unwrap_or(0),
            };
            ready.clear();
            match epoll::wait(
                &poll,
                rustix::buffer::spare_capacity(&mut ready),
                Some(&wait),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(cannot(e)),
            }
            self.wakeups += 1;
            for event in &ready {
                match { event.data }.u64() {
                    STOP | TARGET_GONE => stop = true,
                    CHILD => {
                        self.status = ended(workload.as_deref_mut(), &signals.child)?;
                        stop |= self.status.is_some();
                    }
                    token => {
                        // A thread that has ended hangs up for good; its rings are read with the others all the same.
                        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                        if { event.flags }.intersects(gone) {
                            let mut all = self.session.rings().iter().flat_map(Rings::events);
                            if let Some(opened) =
                                usize::try_from(token).ok().and_then(|n| all.nth(n))
                            {
                                let _ = epoll::delete(&poll, &opened.event);
                            }
                        }
                    }
                }
            }
            let due = sys::now() >= beat + HEARTBEAT;
            let again = match (stop, due) {
                (true, _) => Again::Never,
                (false, true) => Again::All,
                (false, false) => Again::Drained,
            };
            drain::pass(
                &mut self.session,
                &mut self.drains,
                again,
                false,
                &mut self.file,
            )?;
            stop |= options
                .max_size
                .is_some_and(|limit| self.file.position() >= limit);
            if due {
                self.file.checkpoint()?;
                beat = sys::now();
            }
        }
        Ok(())
    }

    /// What stands after the last record of the kernel.
    fn end(&mut self) -> Result<()> {
        self.session.disable()?;
        drain::pass(
            &mut self.session,
            &mut self.drains,
            Again::Never,
            true,
            &mut self.file,
        )?;
        if self.session.plan().mode == Mode::Overwrite {
            for (rings, drain) in self.session.rings_mut().iter_mut().zip(&mut self.drains) {
                drain.snapshot(rings, &mut self.file)?;
            }
        }
        drain::counts(&self.session, &mut self.file)?;
        self.file.flush()?;
        self.counted = true;
        Ok(())
    }

    fn features(
        &self,
        options: &Options,
        events: &[(perfdata::Attr, Vec<u64>)],
        online: usize,
        ended: &str,
    ) -> Features {
        let times = self.drains.iter().filter_map(|drain| drain.times);
        let times = times.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
        features(options, &self.session, events, online, ended, times)
    }

    /// Ends the file, whatever happened before.
    fn close(
        mut self,
        options: &Options,
        events: &[(perfdata::Attr, Vec<u64>)],
        online: usize,
        result: Result<()>,
    ) -> Result<Outcome> {
        let mut features = self.features(options, events, online, "whole");
        let result = match result {
            Err(error @ Error::File(perfdata::Error::Output { .. })) => Err(error),
            other => self
                .file
                .try_finish(&features)
                .map_err(Error::from)
                .and(other),
        };
        if let Err(error) = &result {
            if matches!(error, Error::File(perfdata::Error::Output { .. })) {
                let _ = self.session.disable();
                let name = options.output.display();
                let what = if error.is_full() {
                    "there is no space left for it"
                } else {
                    "it cannot be written"
                };
                // Cut at the end of the last whole record there may be room for the rest again; else a piece of trace makes
                // room, as without its index and its counters the whole trace is worth less.
                features = self.features(options, events, online, "cut");
                let mut saved = Ok(0);
                let mut finished = false;
                for room in [0, ROOM] {
                    saved = self.file.salvage(room, |file, len| file.set_len(len));
                    self.counted &= room == 0;
                    finished = saved.is_ok()
                        && (self.counted || drain::counts(&self.session, &mut self.file).is_ok())
                        && self.file.try_finish(&features).is_ok();
                    if finished {
                        break;
                    }
                }
                let state = match (&saved, finished) {
                    (Ok(len), true) => format!("it holds what was recorded until then ({})", bytes(*len)),
                    (Ok(len), false) => format!(
                        "it holds what was recorded until then ({}), without the sections that describe the machine",
                        bytes(*len)
                    ),
                    (Err(_), _) => "what it holds cannot be told".to_owned(),
                };
                return Err(Error::failed(format!(
                    "{name}: {what} ({error}); {state}. Free some space or choose another place with -o"
                )));
            }
        }
        result?;
        let names = self.session.rings().iter().map(Rings::name);
        Ok(Outcome {
            rings: names
                .zip(&self.drains)
                .map(|(name, drain)| (name, drain.loss, drain.wraps))
                .collect(),
            wakeups: self.wakeups,
            file: fs::metadata(&options.output).map_or(0, |meta| meta.len()),
            status: self.status,
        })
    }
}

/// The exit status of the command, once it has ended.
fn ended(workload: Option<&mut Workload>, mut child: &UnixStream) -> Result<Option<i32>> {
    use io::Read as _;
    // One signal may stand for many; how many does not matter.
    while child.read(&mut [0; 64]).is_ok_and(|n| n != 0) {}
    match workload {
        Some(workload) => workload
            .try_wait()
            .map_err(|e| Error::failed(format!("cannot learn how the command ended: {e}"))),
        None => Ok(None),
    }
}

/// What stands behind the data.
fn features(
    options: &Options,
    session: &Session,
    events: &[(perfdata::Attr, Vec<u64>)],
    online: usize,
    ended: &str,
    times: Option<(u64, u64)>,
) -> Features {
    let plan = session.plan();
    let mut features = Features::new();
    host::describe(&mut features, online);
    let descriptions: Vec<EventDesc> = [plan.event.text.as_str(), "dummy:u"]
        .into_iter()
        .zip(events)
        .map(|(name, (attr, ids))| EventDesc {
            attr: attr.clone(),
            ids: ids.clone(),
            name: name.to_owned(),
        })
        .collect();
    let mode = match plan.mode {
        Mode::Linear => "linear",
        Mode::Overwrite => "overwrite",
    };
    features
        .cmdline(&options.cmdline)
        .events(&descriptions)
        .pmu_mappings(&Pmus::default().mappings())
        .clock(
            sys::clock_resolution(),
            ClockData {
                clockid: u32::try_from(sys::CLOCK).unwrap_or(0),
                wall: sys::wall(),
                clock: sys::now(),
            },
        )
        .notes(&[
            ("aux_size", plan.aux.to_string()),
            ("data_size", plan.data.to_string()),
            ("mode", mode.to_owned()),
            ("ended", ended.to_owned()),
        ]);
    if let Some((first, last)) = times {
        features.sample_time(first, last);
    }
    features
}
