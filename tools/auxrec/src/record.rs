// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `record`: from the options to the file.

use std::fs::File;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use perfdata::EventDesc;

use crate::apart;
use crate::control::{Channel, Command};
use crate::delay::{Delay, Step, Switch as Switching};
use crate::drain::{self, Again, Drain, OnTruncate, Tape};
use crate::error::{Error, Result};
use crate::filter;
use crate::intel_pt;
use crate::join::{self, Apart};
use crate::limits::Limits;
use crate::live::{Gauge, Live, View};
use crate::loss::Loss;
use crate::newcomers::Newcomers;
use crate::output::{self, Description, Output};
use crate::parallel::{self, share, Rotate};
use crate::pmu::{arrange, Pmus};
use crate::session::{default_watermark, known_sideband, Mode, Plan, Rings, Session, Switch};
use crate::size::{bytes, check_ring, RingSizes};
use crate::snapshot::{Blind, Snapshots};
use crate::sys::{self, Workload};
use crate::target::{check_online, online_cpus, process_of, threads, Target};
use crate::watch::{Wake, Watch};

/// How often the file's header is brought up to date, and events that are off with nothing to drain are started again.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Areas that are written over and over, and what is written of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// So many of the newest bytes of each area; [`None`]: all.
    pub size: Option<usize>,
    /// Whether one is taken when the recording ends, too.
    pub at_exit: bool,
}

/// What to record.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Lists of events, each in the form `pmu/term=value,…/modifiers` or `name[:modifiers]`, and of groups of such in braces.
    pub events: Vec<String>,
    /// How much trace samples of other events hold.
    pub aux_sample: Option<u32>,
    /// Of which code there is to be trace, in perf's words: `filter main @ /bin/program`.
    pub filter: Option<String>,
    /// Only what runs in this control group is recorded: its name, or its directory.
    pub cgroup: Option<String>,
    /// Sizes of the rings.
    pub sizes: RingSizes,
    /// Whether rings may be smaller where so much memory may not be locked.
    pub shrink: bool,
    /// When the AUX area wakes the recorder, in bytes; [`None`]: see `Documentation/recorder.md`.
    pub watermark: Option<usize>,
    /// Who is recorded.
    pub target: Target,
    /// Whether the rings follow the threads rather than the CPUs.
    pub per_thread: bool,
    /// Whether new trace overwrites old, until a snapshot is asked for by SIGUSR2 or by a command.
    pub snapshot: Option<Snapshot>,
    /// Whether what is told beside the trace is overwritten too, and written with each snapshot.
    pub overwrite: bool,
    /// When trace is recorded.
    pub delay: Delay,
    /// Where commands come from.
    pub control: Option<Channel>,
    /// When another file is begun: then files are numbered, `FILE.0001` and so on.
    pub switch_output: Option<Switching>,
    /// How many of them are kept.
    pub keep_files: Option<usize>,
    /// The file.
    pub output: PathBuf,
    /// The command that is run; recording ends when it does.
    pub command: Vec<String>,
    /// The arguments of the recorder, for the file.
    pub cmdline: Vec<String>,
    /// What is done when an area was full.
    pub on_truncate: OnTruncate,
    /// How many threads drain the rings; [`None`]: one for each ring, and at most one for each CPU.
    pub threads: Option<usize>,
    /// Whether each of them writes a file of its own, and these are joined at the end.
    pub apart: bool,
    /// The recording ends when its files together have so many bytes.
    pub max_size: Option<u64>,
    /// How often the file is brought to its disk; zero: never.
    pub sync: Duration,
    /// How hard trace is compressed, one of [`LEVELS`](crate::LEVELS); [`None`]: not.
    pub compress: Option<i32>,
    /// Who is told how it goes.
    pub live: Live,
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
    /// Length of all files together.
    pub file: u64,
    /// How many files there are.
    pub files: u32,
    /// The last of them.
    pub path: PathBuf,
    /// How many snapshots were taken, and for how long nothing was traced meanwhile.
    pub snapshots: Option<(u64, Blind)>,
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
        let pmus = Pmus::default();
        let mut groups = Vec::new();
        for events in &self.events {
            groups.extend(pmus.events(events)?);
        }
        let events = arrange(groups, self.aux_sample)?;
        let samples = events.iter().any(|(event, _)| event.aux_sample.is_some());
        if samples && self.snapshot.is_some() {
            return Err(Error::usage(
                "trace goes into samples or into snapshots: choose --aux-sample or -S",
            ));
        }
        if self.overwrite && self.snapshot.is_none() {
            return Err(Error::usage(
                "--overwrite keeps the newest records for snapshots: give -S with it",
            ));
        }
        if self.apart && (self.snapshot.is_some() || samples) {
            return Err(Error::usage(
                "--apart is for trace that is written as it comes; what is overwritten (-S, --aux-sample) one thread reads: leave one of them out",
            ));
        }
        if self.apart && self.switch_output.is_some() {
            return Err(Error::usage(
                "--apart and --switch-output each make several files: leave one of them out",
            ));
        }
        if self.cgroup.is_some() && !self.target.is_system() {
            return Err(Error::usage(
                "-G records a control group on CPUs: give -a or -C with it",
            ));
        }
        // As large as perf's, so that the two can be compared: what a user without privileges may have, or what others may.
        let (data, aux) = if limits.unlimited() {
            (512 << 10, 4 << 20)
        } else {
            (256 << 10, 128 << 10)
        };
        let data = check_ring("data ring", self.sizes.data.unwrap_or(data), page)?;
        // A snapshot of a size wants an area in which there is so much.
        let aux = match self.snapshot.and_then(|snapshot| snapshot.size) {
            Some(size) if self.sizes.aux.is_none() => size.max(page).next_power_of_two(),
            _ => aux,
        };
        let aux = check_ring("AUX area", self.sizes.aux.unwrap_or(aux), page)?;
        if let Some(size) = self.snapshot.and_then(|snapshot| snapshot.size) {
            if size > aux || size == 0 {
                return Err(Error::usage(format!(
                    "a snapshot of {size} bytes cannot be: the AUX area has {aux} bytes"
                )));
            }
        }
        if self.keep_files == Some(0) {
            return Err(Error::usage("--switch-max-files must be 1 at least"));
        }
        let watermark = match self.watermark {
            None => default_watermark(aux, &events),
            Some(bytes) if (1..=aux).contains(&bytes) => u32::try_from(bytes).unwrap_or(u32::MAX),
            Some(_) => {
                return Err(Error::usage(format!(
                    "--aux-watermark must be between 1 byte and the AUX area's {aux} bytes"
                )))
            }
        };
        if self.per_thread && self.target.is_system() {
            return Err(Error::usage(
                "--per-thread follows threads, and -a and -C record CPUs: choose one of them",
            ));
        }
        let (cpus, threads) = match &self.target {
            Target::All => (Some(online.to_vec()), None),
            Target::System(cpus) => {
                check_online(cpus, online)?;
                (Some(cpus.clone()), None)
            }
            Target::Processes(pids) => {
                let mut all = Vec::new();
                for pid in pids {
                    all.extend(threads(*pid)?);
                }
                ((!self.per_thread).then(|| online.to_vec()), Some(all))
            }
            Target::Threads(all) => {
                all.iter()
                    .try_for_each(|thread| process_of(*thread).map(|_| ()))?;
                (
                    (!self.per_thread).then(|| online.to_vec()),
                    Some(all.clone()),
                )
            }
            Target::Command => (
                (!self.per_thread).then(|| online.to_vec()),
                Some(Vec::new()),
            ),
        };
        let plan = Plan {
            data,
            aux,
            watermark,
            mode: if self.snapshot.is_some() || samples {
                Mode::Overwrite
            } else {
                Mode::Linear
            },
            delayed: self.delay != Delay::None,
            overwrite: self.overwrite,
            inherit: cpus.is_some() && threads.is_some(),
            on_exec: self.target == Target::Command,
            cpus,
            threads,
            events,
            on_truncate: self.on_truncate,
            sideband: known_sideband(),
            cgroup: self
                .cgroup
                .as_deref()
                .map(open_cgroup)
                .transpose()?
                .map(Arc::new),
            filter: self.filter.as_deref().map(filter::resolve).transpose()?,
        };
        plan.check_overwrite(data)?;
        Ok(plan)
    }

    /// How many threads drain so many rings.
    fn drains(&self, rings: usize) -> usize {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        self.threads.unwrap_or(cpus).clamp(1, rings.max(1))
    }

    fn description(&self, session: &Session, online: usize, workload: Option<u32>) -> Description {
        let plan = session.plan();
        let rings = session.rings().len();
        let threads = rings.div_ceil(share(rings, self.drains(rings)));
        let event = |number| EventDesc {
            attr: plan.attr(number),
            ids: session.ids(number),
            name: plan.name(number).to_owned(),
        };
        // The last tells of names.
        let mut numbers: Vec<usize> = (0..=plan.events.len()).collect();
        // Those that write trace come first, as readers look there.
        numbers.sort_by_key(|number| !plan.aux().any(|aux| aux == *number));
        Description {
            events: numbers.into_iter().map(event).collect(),
            index: session.id_index(),
            cmdline: self.cmdline.clone(),
            online,
            target: self.target.clone(),
            workload,
            intel_pt: intel_pt::info(plan, &session.clock()),
            apart: (self.apart && threads > 1).then(|| Apart {
                id: format!("{}-{}", sys::wall(), std::process::id()),
                threads,
                thread: None,
            }),
            plan: plan.clone(),
        }
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
    let control = options.control.as_ref().map(Channel::open).transpose()?;
    let usr2 = options.snapshot.is_some() || options.switch_output == Some(Switching::Signal);
    let mut watch = Watch::new(usr2, control)?;

    let mut workload = match options.command.as_slice() {
        [] => None,
        command => Some(Workload::prepare(command).map_err(|e| {
            Error::failed(format!("cannot start a process for `{}`: {e}", command[0]))
        })?),
    };
    let pid = workload
        .as_ref()
        .and_then(|workload| u32::try_from(workload.pid()).ok());
    if options.target == Target::Command {
        plan.threads = Some(pid.into_iter().collect());
    }
    match &options.target {
        Target::Processes(pids) => watch.processes(pids, false)?,
        Target::Threads(threads) => watch.processes(threads, true)?,
        Target::Command | Target::All | Target::System(_) => {}
    }
    if options.shrink && plan.shrink(&limits)? {
        eprintln!(
            "auxrec: the rings are made smaller, {} and {}, as more memory may not be locked",
            bytes(u64::try_from(plan.data).unwrap_or(0)),
            bytes(u64::try_from(plan.aux).unwrap_or(0)),
        );
    }
    let session = Session::open(plan, &limits)?;
    if intel_pt::lacks_clock(session.plan(), &session.clock()) {
        eprintln!(
            "auxrec: warning: the kernel does not say how the processor's cycle counter becomes perf's clock (TSC not available), so \
             nobody will know which thread's trace a CPU's is: record with --per-thread"
        );
    }
    let description = options.description(&session, online.len(), pid);
    if options.apart && description.apart.is_none() {
        eprintln!("auxrec: one thread drains all rings, so nothing is --apart");
    }
    let output = Output::create(
        &options.output,
        description,
        output::Limits {
            all: options.max_size,
            parts: options.switch_output.is_some(),
            part: match options.switch_output {
                Some(Switching::Size(bytes)) => Some(bytes),
                _ => None,
            },
            keep: options.keep_files,
            sync: options.sync,
            verbose: options.verbose,
            level: options.compress,
        },
    )?;
    if options.verbose {
        eprintln!(
            "auxrec: {} rings of {} and {} for trace, woken by {}",
            session.rings().len(),
            bytes(u64::try_from(session.plan().data).unwrap_or(0)),
            bytes(u64::try_from(session.plan().aux).unwrap_or(0)),
            bytes(u64::from(session.plan().watermark)),
        );
    }

    let snapshots = options.snapshot.map(|snapshot| {
        let size = snapshot.size.unwrap_or(session.plan().aux);
        Snapshots::new(&session, size)
    });
    let newcomers = Newcomers::new(match options.target {
        Target::System(_) => None,
        _ => session.plan().cpus.clone(),
    });
    let offline = newcomers.possible();
    if options.target == Target::All && !offline.is_empty() {
        let list: Vec<_> = offline.iter().map(ToString::to_string).collect();
        eprintln!(
            "auxrec: warning: CPUs that are offline are not recorded, should they come online: {}",
            list.join(", ")
        );
    }
    let desk = Desk {
        switch: session.switch(),
        watch,
        newcomers,
        status: None,
        owed: 0,
    };
    let mut recording = Recording {
        drains: session
            .rings()
            .iter()
            .map(|_| Drain::new(&session))
            .collect(),
        session,
        output,
        parts: Vec::new(),
        snapshots,
        wakeups: 0,
        missed: Vec::new(),
        begun: false,
    };
    let mut desk = desk;
    let result = recording
        .begin(options)
        .and_then(|()| recording.run(options, workload.as_mut(), &mut desk))
        .and_then(|()| recording.end(options, &mut desk.newcomers));
    // The command is there to be recorded; it does not go on when that has ended.
    if let Some(workload) = &mut workload {
        let _ = workload.terminate();
    }
    match result {
        Err(error) if !recording.begun => {
            recording.parts.into_iter().for_each(Output::discard);
            recording.output.discard();
            Err(error)
        }
        result => {
            let outcome = recording.close(options, result, desk.status)?;
            for _ in 0..desk.owed {
                desk.watch.answer();
            }
            if options.on_truncate == OnTruncate::Fail && outcome.total().cuts() != 0 {
                return Err(Error::failed(format!(
                    "trace was lost ({}), and --on-truncate fail was asked for; {} holds what was recorded until then. Make the AUX \
                     area larger with -m, or have less traced",
                    outcome.total().describe(),
                    outcome.path.display()
                )));
            }
            Ok(outcome)
        }
    }
}

/// The directory of a control group.
fn open_cgroup(name: &str) -> Result<OwnedFd> {
    const MOUNTS: [&str; 3] = [
        "/sys/fs/cgroup/perf_event",
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
    ];
    let places = if name.starts_with('/') {
        vec![PathBuf::from(name)]
    } else {
        MOUNTS
            .iter()
            .map(|mount| Path::new(mount).join(name))
            .collect()
    };
    let found = places
        .iter()
        .find(|path| path.join("cgroup.procs").exists())
        .ok_or_else(|| {
            let tried: Vec<_> = places
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            Error::usage(format!(
                "there is no control group `{name}`; looked for: {}",
                tried.join(", ")
            ))
        })?;
    File::open(found).map(OwnedFd::from).map_err(|e| {
        Error::failed(format!(
            "cannot open the control group {}: {e}",
            found.display()
        ))
    })
}

/// Does what is asked of the recorder while it records.
struct Desk {
    watch: Watch,
    switch: Switch,
    newcomers: Newcomers,
    /// The command's exit status.
    status: Option<i32>,
    /// Commands that are answered when the file is finished.
    owed: u32,
}

/// What is left to do for whoever has the rings and the file.
enum Todo {
    Nothing,
    End,
    /// A snapshot; whether a command asked for it.
    Snapshot(bool),
    Rotate,
}

impl Desk {
    fn todo(
        &mut self,
        wake: Wake,
        options: &Options,
        workload: Option<&mut Workload>,
    ) -> Result<Todo> {
        Ok(match wake {
            Wake::Stop | Wake::Gone | Wake::Over => Todo::End,
            Wake::Child => {
                if let Some(workload) = workload {
                    self.status = workload.try_wait().map_err(|e| {
                        Error::failed(format!("cannot learn how the command ended: {e}"))
                    })?;
                }
                if self.status.is_some() {
                    Todo::End
                } else {
                    Todo::Nothing
                }
            }
            Wake::Signal if options.snapshot.is_some() => Todo::Snapshot(false),
            Wake::Signal | Wake::Rotate => Todo::Rotate,
            Wake::Step(Step::End) => Todo::End,
            Wake::Step(step) => {
                self.switch.set(step == Step::On, None)?;
                Todo::Nothing
            }
            Wake::Command(command) => self.command(command, options)?,
            Wake::Beat => {
                self.newcomers.look();
                Todo::Nothing
            }
            Wake::Ring(..) => Todo::Nothing,
        })
    }

    fn command(&mut self, command: Command, options: &Options) -> Result<Todo> {
        match command {
            Command::Enable(event) => self.set(true, event.as_deref())?,
            Command::Disable(event) => self.set(false, event.as_deref())?,
            Command::Evlist => eprintln!("{}", self.switch.names().join("\n")),
            Command::Ping => {}
            Command::Snapshot if options.snapshot.is_some() => return Ok(Todo::Snapshot(true)),
            Command::Snapshot => eprintln!("auxrec: there are no snapshots without -S"),
            Command::Stop => {
                self.owed += 1;
                return Ok(Todo::End);
            }
            Command::Unknown(line) => {
                eprintln!(
                    "auxrec: `{}` is no command; they are: enable, disable, snapshot, evlist, ping, stop",
                    line.escape_debug()
                );
                return Ok(Todo::Nothing);
            }
        }
        self.watch.answer();
        Ok(Todo::Nothing)
    }

    fn set(&self, on: bool, event: Option<&str>) -> Result<()> {
        match event {
            Some(name) if !self.switch.names().iter().any(|known| known == name) => {
                eprintln!("auxrec: there is no event `{name}` in this recording");
                Ok(())
            }
            event => self.switch.set(on, event),
        }
    }
}

/// Whether a file could not be written.
fn is_output(result: &Result<()>) -> bool {
    matches!(result, Err(Error::File(perfdata::Error::Output { .. })))
}

struct Recording {
    session: Session,
    drains: Vec<Drain>,
    output: Output,
    /// The files of the threads, of a recording that is apart: each has as many rings as the next.
    parts: Vec<Output>,
    snapshots: Option<Snapshots>,
    wakeups: u64,
    /// CPUs that have no rings, and what was lost of them.
    missed: Vec<(String, Loss, u64)>,
    /// Whether anything can have been recorded.
    begun: bool,
}

impl Recording {
    /// What stands in the files before the first record of the kernel.
    fn begin(&mut self, options: &Options) -> Result<()> {
        self.output.begin()?;
        let Some(threads) = self.output.threads() else {
            return Ok(());
        };
        // Others that are found beside it are to be joined into this one, whatever happens.
        if options.sync.is_zero() {
            self.output.checkpoint()?;
        } else {
            self.output.durable()?;
        }
        self.output.turn()?;
        let rings = self.session.rings().len();
        let each = share(rings, threads);
        for (thread, first) in (0..rings).step_by(each).enumerate() {
            let part = self.output.apart(thread, &(first..first + each))?;
            self.parts.push(part);
        }
        for part in &mut self.parts {
            part.begin()?;
            part.checkpoint()?;
            part.turn()?;
        }
        Ok(())
    }

    /// The files that the rings are drained into, each with its own.
    fn files(&mut self) -> Vec<(&mut Output, &[Rings])> {
        let rings = self.session.rings();
        if self.parts.is_empty() {
            return vec![(&mut self.output, rings)];
        }
        let each = share(rings.len(), self.parts.len());
        self.parts.iter_mut().zip(rings.chunks(each)).collect()
    }

    fn run(
        &mut self,
        options: &Options,
        mut workload: Option<&mut Workload>,
        desk: &mut Desk,
    ) -> Result<()> {
        let threads = options.drains(self.session.rings().len());
        // A ring that is read only now and then needs no thread; and one ring's thread none for the file, unless ending a file
        // and beginning another, or compressing, keeps it from its ring.
        let alone = match self.session.plan().mode {
            Mode::Overwrite => true,
            Mode::Linear => {
                threads == 1 && options.switch_output.is_none() && options.compress.is_none()
            }
        };
        if alone {
            let events = self.session.rings().iter().flat_map(Rings::events);
            for (number, opened) in events.enumerate() {
                desk.watch.ring(opened.event.as_fd(), number)?;
            }
        }

        self.session.enable(options.delay == Delay::None)?;
        if let Some(workload) = workload.as_deref_mut() {
            workload
                .start()
                .map_err(|e| Error::failed(format!("cannot run `{}`: {e}", options.command[0])))?;
        }
        self.begun = true;
        let period = match options.switch_output {
            Some(Switching::Time(ns)) => Some(ns),
            _ => None,
        };
        desk.watch.start(options.delay.steps(), period);
        let _view = self.view(options.live);
        if alone {
            self.run_alone(options, workload, desk)
        } else {
            self.run_threads(options, threads, workload, desk)
        }
    }

    /// Shows how it goes, for as long as what comes back is kept.
    fn view(&mut self, live: Live) -> Option<View> {
        if live == Live::Off {
            return None;
        }
        let names = self.session.rings().iter().map(Rings::name);
        let rings = names.zip(&mut self.drains).map(|(name, drain)| {
            let gauge = Arc::<Gauge>::default();
            drain.gauge = Some(gauge.clone());
            (name, gauge)
        });
        let size = u64::try_from(self.session.plan().aux).unwrap_or(u64::MAX);
        Some(View::start(live, rings.collect(), size))
    }

    fn run_threads(
        &mut self,
        options: &Options,
        threads: usize,
        mut workload: Option<&mut Workload>,
        desk: &mut Desk,
    ) -> Result<()> {
        let mode = self.session.plan().mode;
        desk.watch.beat(HEARTBEAT)?;
        let mut wait = |over: BorrowedFd<'_>, file: Option<Rotate>| {
            desk.watch.over(over)?;
            let mut wakes = Vec::new();
            loop {
                desk.watch.wait(&mut wakes)?;
                for wake in wakes.drain(..) {
                    match desk.todo(wake, options, workload.as_deref_mut())? {
                        Todo::Nothing | Todo::Snapshot(_) => {}
                        Todo::End => return Ok(()),
                        Todo::Rotate => {
                            if let Some(file) = &file {
                                file.rotate()?;
                            }
                        }
                    }
                }
            }
        };
        let (rings, drains) = (self.session.rings_mut(), &mut self.drains);
        self.wakeups = if self.parts.is_empty() {
            parallel::run(rings, drains, threads, mode, &mut self.output, wait)?
        } else {
            apart::run(rings, drains, mode, &mut self.parts, |over| {
                wait(over, None)
            })?
        };
        Ok(())
    }

    fn run_alone(
        &mut self,
        options: &Options,
        mut workload: Option<&mut Workload>,
        desk: &mut Desk,
    ) -> Result<()> {
        let mut stop = false;
        let mut wakes = Vec::new();
        desk.watch.beat(HEARTBEAT)?;
        while !stop {
            desk.watch.wait(&mut wakes)?;
            self.wakeups += 1;
            let due = wakes.contains(&Wake::Beat);
            for wake in wakes.drain(..) {
                if let Wake::Ring(number, gone) = wake {
                    // A thread that has ended hangs up for good; its rings are read with the others all the same.
                    let mut all = self.session.rings().iter().flat_map(Rings::events);
                    if let (true, Some(opened)) = (gone, all.nth(number)) {
                        desk.watch.forget(opened.event.as_fd());
                    }
                    continue;
                }
                match desk.todo(wake, options, workload.as_deref_mut())? {
                    Todo::Nothing => {}
                    Todo::End => stop = true,
                    Todo::Snapshot(asked) => self.snapshot(options, asked.then_some(&mut *desk))?,
                    Todo::Rotate => self.output.rotate()?,
                }
            }
            let again = match (stop, due) {
                (true, _) => Again::Never,
                (false, true) => Again::All,
                (false, false) => Again::Drained,
            };
            let pass = drain::pass(&mut self.session, &mut self.drains, again, &mut self.output)?;
            self.output.turn()?;
            stop |= pass.over || self.output.is_over();
            if due {
                self.output.checkpoint()?;
            }
        }
        Ok(())
    }

    /// Takes a snapshot, and, if a command asked for it, answers when it is safe in the file.
    fn snapshot(&mut self, options: &Options, asked: Option<&mut Desk>) -> Result<()> {
        let Some(snapshots) = &mut self.snapshots else {
            return Ok(());
        };
        let blind = snapshots.take(&mut self.session, &mut self.drains, &mut self.output)?;
        if options.verbose {
            eprintln!(
                "auxrec: snapshot {}: nothing was traced for {} us at most on a ring",
                snapshots.times,
                blind.max.div_ceil(1000)
            );
        }
        match asked {
            Some(desk) if desk.watch.answers() => {
                if options.sync.is_zero() {
                    self.output.checkpoint()?;
                } else {
                    self.output.durable()?;
                }
                desk.watch.answer();
            }
            _ => {}
        }
        Ok(())
    }

    /// What stands after the last record of the kernel.
    fn end(&mut self, options: &Options, newcomers: &mut Newcomers) -> Result<()> {
        self.session.disable()?;
        if self.parts.is_empty() {
            drain::pass(
                &mut self.session,
                &mut self.drains,
                Again::Never,
                &mut self.output,
            )?;
        }
        let mode = self.session.plan().mode;
        let each = share(self.drains.len(), self.parts.len());
        let rings = self.session.rings_mut().chunks_mut(each);
        let rings = rings.zip(self.drains.chunks_mut(each));
        for ((rings, drains), part) in rings.zip(&mut self.parts) {
            for (rings, drain) in rings.iter_mut().zip(drains) {
                drain.pass(rings, mode, Again::Never, part)?;
            }
        }
        if options.snapshot.is_some_and(|snapshot| snapshot.at_exit) {
            self.snapshot(options, None)?;
        }
        if let Some(snapshots) = &self.snapshots {
            self.output.notes = vec![
                ("snapshots", snapshots.times.to_string()),
                ("blind_max_ns", snapshots.blind.max.to_string()),
                ("blind_ns", snapshots.blind.sum.to_string()),
            ];
        }
        let mut offline = Vec::new();
        for (cpu, dark) in self.session.offline() {
            let note = format!("{cpu}:{dark}");
            // A CPU has as many pairs of rings as there are events that write trace.
            if !offline
                .iter()
                .any(|known: &String| known.starts_with(&format!("{cpu}:")))
            {
                offline.push(note);
            }
            for (rings, drain) in self.session.rings().iter().zip(&mut self.drains) {
                if rings.cpu == Some(cpu) {
                    drain.loss.offline = drain.loss.offline.max(dark);
                }
            }
        }
        newcomers.look();
        for (cpu, ns) in newcomers.missed() {
            offline.push(format!("{cpu}:{ns}"));
            let mut loss = Loss::default();
            loss.offline = ns;
            self.missed.push((format!("CPU {cpu}"), loss, 0));
        }
        if !offline.is_empty() {
            self.output.notes.push(("offline", offline.join(",")));
        }
        let attr = self.session.plan().tracking_attr();
        let notes = self.output.notes.clone();
        for (file, rings) in self.files() {
            file.notes.clone_from(&notes);
            file.counters = Some(file.file.position());
            drain::counts(&attr, rings, &mut file.file)?;
            file.flush()?;
        }
        Ok(())
    }

    /// Ends the files, whatever happened before, and makes one of those that are apart.
    fn close(
        mut self,
        options: &Options,
        mut result: Result<()>,
        status: Option<i32>,
    ) -> Result<Outcome> {
        let attr = self.session.plan().tracking_attr();
        let _ = self.session.disable();
        let mut held = Vec::new();
        for (file, rings) in self.files() {
            if !is_output(&result) {
                let features = file.features("whole");
                match file.file.try_finish(&features) {
                    Ok(()) => {
                        held.push((file.path().display().to_string(), "is whole".to_owned()));
                        continue;
                    }
                    Err(error) => result = Err(error.into()),
                }
            }
            let state = file.salvage(|file| drain::counts(&attr, rings, file));
            held.push((file.path().display().to_string(), state));
        }
        let path = self.output.path().to_owned();
        let name = path.display();
        if let (Err(error), true) = (&result, is_output(&result)) {
            let what = if error.is_full() {
                "there is no space left for it"
            } else {
                "it cannot be written"
            };
            if self.parts.is_empty() {
                let state = held.iter().map(|(_, state)| state.as_str());
                let state: String = state.collect();
                return Err(Error::failed(format!(
                    "{name}: {what} ({error}); it {state}. Free some space or choose another place with -o"
                )));
            }
            let held: Vec<_> = held
                .iter()
                .map(|(part, state)| format!("{part} {state}"))
                .collect();
            return Err(Error::failed(format!(
                "{name}: {what} ({error}); {}. Free as much space as these have, and `auxrec recover {name}` joins them; or choose another \
                 place with -o",
                held.join(", ")
            )));
        }
        let mut file = self.output.total();
        if !self.parts.is_empty() {
            if options.verbose {
                eprintln!("auxrec: {} files are joined to {name}", self.parts.len());
            }
            // Ends what brings them to their disk.
            self.parts.clear();
            file = join::join(&path, !options.sync.is_zero())?;
        }
        result?;
        let names = self.session.rings().iter().map(Rings::name);
        Ok(Outcome {
            rings: names
                .zip(&self.drains)
                .map(|(name, drain)| (name, drain.loss, drain.wraps))
                .chain(self.missed)
                .collect(),
            wakeups: self.wakeups,
            file,
            files: self.output.parts(),
            path: self.output.path().to_owned(),
            snapshots: self.snapshots.map(|s| (s.times, s.blind)),
            status,
        })
    }
}
