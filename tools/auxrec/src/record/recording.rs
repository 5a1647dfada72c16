// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A recording while it runs: begins the files, drains the rings into them, and ends them.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::desk::{Desk, Todo};
use super::options::{Options, Outcome};
use crate::delay::{Delay, Switch as Switching};
use crate::drain::{self, Again, Drain, FileSink};
use crate::error::{Error, Result};
use crate::hotplugged::Hotplugged;
use crate::live::{Gauge, Live, View};
use crate::message::say;
use crate::output::Output;
use crate::parallel::{self, share, Queued, Rotate};
use crate::session::{Mode, Rings, Session};
use crate::snapshot::Snapshots;
use crate::split_files;
use crate::sys::Workload;
use crate::tracepoints::Tracepoints;
use crate::trigger::Hits;
use crate::watch::Wake;
use auxview::loss::Loss;

/// How often the recorder updates the file's header, and restarts events that are off while their
/// rings are empty.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Whether the result is an error of writing a file.
fn is_output(result: &Result<()>) -> bool {
    matches!(result, Err(Error::File(perfdata::Error::Output { .. })))
}

pub(super) struct Recording {
    pub(super) session: Session,
    pub(super) drains: Vec<Drain>,
    pub(super) output: Output,
    /// The files of the threads, if there is one for each. They have equal numbers of rings.
    pub(super) parts: Vec<Output>,
    pub(super) snapshots: Option<Snapshots>,
    pub(super) wakeups: u64,
    pub(super) queue: Option<Queued>,
    /// Events of tracefs that are recorded beside the trace.
    pub(super) tracepoints: Option<Tracepoints>,
    /// CPUs without rings, and what was lost on them.
    pub(super) missed: Vec<(String, Loss, u64)>,
    /// Whether anything can have been recorded.
    pub(super) begun: bool,
}

impl Recording {
    /// Writes the records before the first record of the kernel. The kernel already records what processes do when `/proc` is read.
    pub(super) fn begin(&mut self, options: &Options) -> Result<()> {
        self.session.track()?;
        self.output.begin()?;
        let Some(threads) = self.output.threads() else {
            return Ok(());
        };
        // Before the files of the threads exist: `recover` joins those into this one, so it must be
        // readable by then.
        if options.sync.is_zero() {
            self.output.checkpoint()?;
        } else {
            self.output.durable()?;
        }
        self.output.turn()?;
        let rings = self.session.rings().len();
        let each = share(rings, threads);
        for (thread, first) in (0..rings).step_by(each).enumerate() {
            let part = self.output.part(thread, &(first..first + each))?;
            self.parts.push(part);
        }
        for part in &mut self.parts {
            part.begin()?;
            part.checkpoint()?;
            part.turn()?;
        }
        Ok(())
    }

    /// The files, each with the rings that are drained into it.
    fn files(&mut self) -> Vec<(&mut Output, &[Rings])> {
        let rings = self.session.rings();
        if self.parts.is_empty() {
            return vec![(&mut self.output, rings)];
        }
        let each = share(rings.len(), self.parts.len());
        self.parts.iter_mut().zip(rings.chunks(each)).collect()
    }

    /// Records until the recording is to end.
    pub(super) fn run(
        &mut self,
        options: &Options,
        mut workload: Option<&mut Workload>,
        desk: &mut Desk,
    ) -> Result<()> {
        let threads = options.drains(self.session.rings().len());
        // A ring in overwrite mode is read only now and then, and needs no thread. One thread can drain
        // and write, unless rotating or compressing the file keeps it from its ring.
        let alone = match self.session.plan().mode {
            Mode::Overwrite => true,
            Mode::Normal => {
                threads == 1 && options.switch_output.is_none() && options.compress.is_none()
            }
        };
        if alone {
            let events = self.session.rings().iter().flat_map(Rings::events);
            for (number, opened) in events.enumerate() {
                desk.watch.ring(opened.event.as_fd(), number)?;
            }
        }

        if let Some(tracepoints) = &mut self.tracepoints {
            tracepoints.start()?;
        }
        self.session.enable(options.delay == Delay::None)?;
        if let Some(workload) = workload.as_deref_mut() {
            workload.start().map_err(|e| {
                let name = Path::new(&options.command[0]).display();
                Error::failed(format!("cannot run `{name}`: {e}"))
            })?;
        }
        self.begun = true;
        let period = match options.switch_output {
            Some(Switching::Time(ns)) => Some(ns),
            _ => None,
        };
        desk.watch.start(options.delay.steps(), period);
        let _view = self.view(options.live)?;
        if alone {
            self.run_alone(options, workload, desk)
        } else {
            self.run_threads(options, threads, workload, desk)
        }
    }

    /// Shows the progress for as long as the returned value lives.
    fn view(&mut self, live: Live) -> Result<Option<View>> {
        if live == Live::Off {
            return Ok(None);
        }
        let names = self.session.rings().iter().map(Rings::name);
        let rings = names.zip(&mut self.drains).map(|(name, drain)| {
            let gauge = Arc::<Gauge>::default();
            drain.gauge = Some(gauge.clone());
            (name, gauge)
        });
        let size = u64::try_from(self.session.plan().aux).unwrap_or(u64::MAX);
        View::start(live, rings.collect(), size)
            .map_err(|e| Error::failed(format!("cannot start a thread for --live: {e}")))
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
            let drained = parallel::run(rings, drains, threads, mode, &mut self.output, wait)?;
            self.queue = Some(drained.queue);
            drained.wakeups
        } else {
            split_files::run(rings, drains, mode, &mut self.parts, |over| {
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
                    // The event of a thread that has ended reports a hangup for ever. The recorder stops
                    // polling it; its rings are still read with the others.
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
            self.trigger(options, due)?;
            if self.is_triggered() {
                desk.watch.soon();
            }
            self.output.turn()?;
            stop |= pass.over || self.output.is_over();
            if due {
                self.output.checkpoint()?;
            }
        }
        Ok(())
    }

    /// Whether the trigger was reached since the last snapshot that it has caused.
    fn is_triggered(&self) -> bool {
        let mut hits = self.drains.iter().filter_map(|drain| drain.hits.as_ref());
        hits.any(Hits::are_pending)
    }

    /// The hits of each pair of rings.
    fn hits(&mut self) -> impl Iterator<Item = &mut Hits> {
        let drains = self.drains.iter_mut();
        drains.filter_map(|drain| drain.hits.as_mut())
    }

    /// Takes a snapshot if the trigger was reached. All hits that were read before share it. A hit that is read while the snapshot is taken
    /// gets another one, as its trace may not be in this one.
    ///
    /// Then resumes the trace that the hits have paused. `due`: it is time to check for threads that have ended.
    fn trigger(&mut self, options: &Options, due: bool) -> Result<()> {
        if self.is_triggered() {
            self.hits().for_each(Hits::answer);
            self.snapshot(options, None)?;
            self.hits().for_each(Hits::answered);
        }
        for (rings, drain) in self.session.rings().iter().zip(&mut self.drains) {
            let Some(hits) = &mut drain.hits else {
                continue;
            };
            if due {
                hits.look();
            }
            if let Some(on) = hits.switch() {
                let switched = rings.switch_members(on, |number| hits.is_clock(number));
                switched.map_err(|e| {
                    Error::failed(format!(
                        "cannot resume the trace of {}: its PMU may be gone ({e})",
                        rings.name()
                    ))
                })?;
            }
        }
        Ok(())
    }

    /// Takes a snapshot. If a command asked for it, answers when the snapshot is safe in the file.
    fn snapshot(&mut self, options: &Options, asked: Option<&mut Desk>) -> Result<()> {
        let Some(snapshots) = &mut self.snapshots else {
            return Ok(());
        };
        let blind = snapshots.take(&mut self.session, &mut self.drains, &mut self.output)?;
        if options.verbose {
            say(format_args!(
                "snapshot {}: nothing was traced for {} us at most on a ring",
                snapshots.times,
                blind.max.div_ceil(1000)
            ));
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

    /// Disables the events, drains the rings, and writes the records after the last record of the kernel.
    pub(super) fn end(&mut self, options: &Options, hotplugged: &mut Hotplugged) -> Result<()> {
        self.session.disable()?;
        // The trace is written even if these events fail.
        let mut tracepoints = self.tracepoints.as_mut().map_or(Ok(()), Tracepoints::stop);
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
        if options.snapshot.is_some_and(|snapshot| snapshot.at_exit) || self.is_triggered() {
            self.snapshot(options, None)?;
        }
        if let Some(snapshots) = &self.snapshots {
            self.output.notes = vec![
                ("snapshots", snapshots.times.to_string()),
                ("blind_max_ns", snapshots.blind.max.to_string()),
                ("blind_ns", snapshots.blind.sum.to_string()),
            ];
        }
        let hits = self.session.hits();
        let hits = hits.map(|hits| ("trigger_hits", hits.to_string()));
        self.output.notes.extend(hits);
        if let (Ok(()), Some(events)) = (&tracepoints, &mut self.tracepoints) {
            let written = events.write(&mut self.output);
            tracepoints = written.map(|lost| self.missed.extend(lost));
        }
        let mut offline = Vec::new();
        for (cpu, untraced) in self.session.offline() {
            let note = format!("{cpu}:{untraced}");
            // Each event that writes trace has its own pair of rings on the CPU: one note is enough.
            if !offline
                .iter()
                .any(|known: &String| known.starts_with(&format!("{cpu}:")))
            {
                offline.push(note);
            }
            for (rings, drain) in self.session.rings().iter().zip(&mut self.drains) {
                if rings.cpu == Some(cpu) {
                    drain.loss.offline = drain.loss.offline.max(untraced);
                }
            }
        }
        hotplugged.look();
        for (cpu, ns) in hotplugged.missed() {
            offline.push(format!("{cpu}:{ns}"));
            let mut loss = Loss::default();
            loss.offline = ns;
            self.missed.push((format!("CPU {cpu}"), loss, 0));
        }
        if !offline.is_empty() {
            self.output.notes.push(("offline", offline.join(",")));
        }
        let attr = self.session.plan().tracking_attr();
        let clock = self.session.record_clock();
        let notes = self.output.notes.clone();
        for (file, rings) in self.files() {
            let time = file.time(clock);
            file.notes.clone_from(&notes);
            file.counters = Some(file.file.position());
            drain::counts(&attr, time, rings, &mut file.file)?;
            file.flush()?;
        }
        tracepoints.map_err(Error::from)
    }

    /// Finishes the files, also after an error, and joins those of the threads.
    pub(super) fn close(
        mut self,
        options: &Options,
        mut result: Result<()>,
        status: Option<i32>,
    ) -> Result<Outcome> {
        let attr = self.session.plan().tracking_attr();
        let clock = self.session.record_clock();
        let _ = self.session.disable();
        let mut held = Vec::new();
        let is_disk = |result: &Result<()>| matches!(result, Err(Error::Disk(_)));
        let mut synced = Ok(());
        for (file, rings) in self.files() {
            // A file system becomes read-only after an error of its disk. Then that error is the cause of the failed write.
            if is_output(&result) && !result.as_ref().is_err_and(Error::is_full) {
                if let Err(error) = file.synced() {
                    result = Err(error);
                }
            }
            if !is_output(&result) && !is_disk(&result) {
                let features = file.features("whole");
                match file.file.try_finish(&features) {
                    Ok(()) => {
                        held.push((file.path().display().to_string(), "is whole".to_owned()));
                        synced = synced.and(file.synced());
                        continue;
                    }
                    Err(error) => result = Err(error.into()),
                }
            }
            let time = file.time(clock);
            let state = file.salvage(|file| drain::counts(&attr, time, rings, file));
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
                "{name}: {what} ({error}); {}. Free as much space as these have, and `auxrec recover --in-place {name}` joins them; or choose another \
                 place with -o",
                held.join(", ")
            )));
        }
        result = result.and(synced).and(self.output.synced());
        let mut file = self.output.total();
        // If the disk has failed, these files may be all that is left.
        if !self.parts.is_empty() && !is_disk(&result) {
            if options.verbose {
                say(format_args!(
                    "{} files are joined to {name}",
                    self.parts.len()
                ));
            }
            // Stops the threads that synchronise these files.
            self.parts.clear();
            file = split_files::joined(&path, !options.sync.is_zero())?;
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
            queue: self.queue,
            file,
            files: self.output.parts(),
            path: self.output.path().to_owned(),
            snapshots: self.snapshots.map(|s| (s.times, s.blind)),
            hits: self.session.hits(),
            status,
        })
    }
}
