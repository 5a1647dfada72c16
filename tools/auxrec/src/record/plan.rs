// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Derives the plan of the session, and the description of the file, from the options.

use std::fs::File;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use perfdata::EventDesc;

use super::options::Options;
use crate::code::Code;
use crate::decoder::{self, Cpus};
use crate::delay::Delay;
use crate::error::{Error, Result};
use crate::filter;
use crate::limits::Limits;
use crate::output::Description;
use crate::parallel::share;
use crate::pmu::{arrange, EventSpec, Format, Pmus};
use crate::session::{default_watermark, known_sideband, Mode, Plan, Session};
use crate::size::check_ring;
use crate::sys::{self, System};
use crate::target::{check_online, process_of, threads, Target};
use crate::tracepoints::Described;
use auxview::join::SplitFiles;

impl Options {
    /// The plan for this system and these limits. `online` are the CPUs that are online.
    pub(super) fn plan(
        &self,
        system: &'static dyn System,
        limits: &Limits,
        online: &[u32],
    ) -> Result<Plan> {
        let page = sys::page_size();
        let pmus = Pmus::default();
        let mut groups = Vec::new();
        for events in &self.events {
            groups.extend(pmus.events(events)?);
        }
        let mut events = match self.sideband {
            true => Vec::new(),
            false => arrange(groups, self.aux_sample)?,
        };
        let samples = events.iter().any(|(event, _)| event.aux_sample.is_some());
        if samples && self.snapshot.is_some() {
            return Err(Error::usage(
                "trace goes into samples or into snapshots: choose --aux-sample or -S",
            ));
        }
        if self.trigger.is_some() && self.snapshot.is_none() {
            return Err(Error::usage("--trigger takes snapshots: give -S with it"));
        }
        if self.overwrite && self.snapshot.is_none() {
            return Err(Error::usage(
                "--overwrite keeps the newest records for snapshots: give -S with it",
            ));
        }
        if self.split_files && (self.snapshot.is_some() || samples) {
            return Err(Error::usage(
                "--split-files excludes -S and --aux-sample, whose trace one thread reads: leave one of them out",
            ));
        }
        if self.split_files && self.switch_output.is_some() {
            return Err(Error::usage(
                "--split-files and --switch-output each make several files: leave one of them out",
            ));
        }
        if let (Some(wanted), true) = (
            &self.tracepoints,
            self.split_files || self.switch_output.is_some() || self.output.as_os_str() == "-",
        ) {
            if wanted.dat.is_none() {
                return Err(Error::usage(
                    "--trace writes events into one file, when the recording ends: leave --split-files, --switch-output or -o - out, or give --trace-dat FILE",
                ));
            }
        }
        if self.cgroup.is_some() && !self.target.is_system() {
            return Err(Error::usage(
                "-G records a control group on CPUs: give -a or -C with it",
            ));
        }
        // perf's sizes, with and without the limit of a user without privileges: so the two recorders
        // can be compared.
        let is_ptt = |(event, _): &(EventSpec, _)| event.pmu.format() == Some(Format::HisiPtt);
        let (data, aux) = if limits.unlimited() && events.iter().any(is_ptt) {
            (512 << 10, 16 << 20)
        } else if limits.unlimited() {
            (512 << 10, 4 << 20)
        } else {
            (256 << 10, 128 << 10)
        };
        let data = check_ring("data ring", self.sizes.data.unwrap_or(data), page)?;
        // The area must hold a whole snapshot.
        let aux = match self.snapshot.and_then(|snapshot| snapshot.size) {
            Some(size) if self.sizes.aux.is_none() => size.max(page).next_power_of_two(),
            _ => aux,
        };
        let aux = match self.sideband {
            true => 0,
            false => check_ring("AUX area", self.sizes.aux.unwrap_or(aux), page)?,
        };
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
        for (event, _) in &mut events {
            match event.pmu.format() {
                // Records have a time, so perf's decoder looks for times in the trace.
                Some(Format::ArmSpe) => event.set_if_unset("ts_enable", 1),
                // As in perf: the trace of CPUs and the records are ordered by time.
                Some(Format::CoreSight) if cpus.is_some() => {
                    event.set_if_unset("timestamp", 1);
                    event.set_if_unset("contextid", 1);
                }
                _ => {}
            }
        }
        let plan = Plan {
            data,
            aux,
            watermark,
            mode: if self.snapshot.is_some() || samples {
                Mode::Overwrite
            } else {
                Mode::Normal
            },
            delayed: self.delay != Delay::None,
            overwrite: self.overwrite,
            inherit: cpus.is_some() && threads.is_some(),
            on_exec: self.target == Target::Command,
            cpus,
            threads,
            processes: match &self.target {
                Target::Processes(pids) => pids.clone(),
                _ => Vec::new(),
            },
            events,
            on_truncate: self.on_truncate,
            sideband: known_sideband(system),
            cgroup: self
                .cgroup
                .as_deref()
                .map(open_cgroup)
                .transpose()?
                .map(Arc::new),
            filter: self.filter.as_deref().map(filter::resolve).transpose()?,
            code: None,
            trigger: None,
        };
        let plan = Plan {
            code: self.code(&plan)?,
            ..plan
        };
        plan.check_overwrite(data)?;
        plan.check_cpus()?;
        decoder::check(&plan, &Cpus::new(online))?;
        Ok(plan)
    }

    /// Stores the code that programs generate, if a software tracer that writes Intel PT can report it.
    fn code(&self, plan: &Plan) -> Result<Option<Arc<Code>>> {
        if self.output.as_os_str() == "-" || !plan.writes_intel_pt() {
            return Ok(None);
        }
        Ok(Code::beside(&self.output)?.map(Arc::new))
    }

    /// The number of threads that drain this number of rings.
    pub(super) fn drains(&self, rings: usize) -> usize {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        self.threads.unwrap_or(cpus).clamp(1, rings.max(1))
    }

    /// The description of the recording for its files.
    pub(super) fn description(
        &self,
        session: &Session,
        online: &[u32],
        workload: Option<u32>,
        tracepoints: Option<Described>,
    ) -> Description {
        let plan = session.plan();
        let rings = session.rings().len();
        let threads = rings.div_ceil(share(rings, self.drains(rings)));
        let clock = session.clock();
        let event = |number| EventDesc {
            attr: plan.attr_in_file(number),
            ids: session.ids(number),
            name: plan.name(number).to_owned(),
        };
        // The number after the last is the tracking event.
        let mut numbers: Vec<usize> = (0..=plan.events.len()).collect();
        // The events that write trace come first: readers look at the first event.
        numbers.sort_by_key(|number| !plan.owners().any(|owner| owner == *number));
        let mut events: Vec<_> = numbers.into_iter().map(event).collect();
        // The tracking event stays the last.
        let at = events.len().saturating_sub(1);
        let described = tracepoints
            .iter()
            .flat_map(|all| all.events.iter().cloned());
        events.splice(at..at, described);
        Description {
            events,
            tracepoints,
            index: session.id_index(),
            cmdline: self.cmdline.clone(),
            online: online.len(),
            target: self.target.clone(),
            workload,
            clock: (clock.cap_zero && !plan.has_own_clock()).then_some(clock),
            info: decoder::info(plan, &clock, &Cpus::new(online)),
            split_files: (self.split_files && threads > 1).then(|| SplitFiles {
                id: format!("{}-{}", sys::wall(), std::process::id()),
                threads,
                thread: None,
            }),
            plan: plan.clone(),
        }
    }
}

/// Opens the directory of a control group.
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
