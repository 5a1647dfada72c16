// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `record`: makes a recording.

use std::sync::Arc;

use crate::control::Channel;
use crate::decoder;
use crate::delay::Switch as Switching;
use crate::drain::Drain;
use crate::error::{Error, Result};
use crate::hotplugged::Hotplugged;
use crate::limits::Limits;
use crate::message::say;
use crate::output::{self, Output};
use crate::session::{OnTruncate, Session};
use crate::snapshot::Snapshots;
use crate::sys::{self, Kernel, System, Workload};
use crate::target::Target;
use crate::tracepoints::Tracepoints;
use crate::trigger::Trigger;
use crate::watch::Watch;
use auxview::size::bytes;

pub use crate::parallel::Queued;

mod desk;
mod options;
mod plan;
mod recording;
mod rehearsal;

pub use options::{Options, Outcome, Snapshot};
pub use rehearsal::rehearse;

use desk::Desk;
use recording::Recording;

fn pid(workload: &Workload) -> Option<u32> {
    u32::try_from(workload.pid()).ok()
}

/// Makes a recording.
///
/// # Errors
/// If the options contradict each other, or the system refuses. If the recording had begun, the file
/// holds what was recorded until then.
pub fn record(options: &Options) -> Result<Outcome> {
    record_on(&Kernel, options)
}

/// The same, with the events of this system.
fn record_on(system: &'static dyn System, options: &Options) -> Result<Outcome> {
    let online = system.online()?;
    let limits = Limits::read(online.len());
    let mut plan = options.plan(system, &limits, &online)?;
    // The trigger is dropped after the events.
    let trigger = options.trigger.as_deref();
    let trigger = trigger.map(|text| Trigger::define(text, &options.target, &options.command));
    let mut trigger = trigger.transpose()?;
    if let Some(trigger) = &mut trigger {
        trigger.add(&mut plan, &limits)?;
        if let Some(code) = plan.code.as_mut().and_then(Arc::get_mut) {
            code.set_probed(trigger.page());
        }
    }
    let control = options.control.as_ref().map(Channel::open).transpose()?;
    let usr2 = options.snapshot.is_some() || options.switch_output == Some(Switching::Signal);
    let mut watch = Watch::new(usr2, control)?;

    let mut workload = options.workload()?;
    let pid = workload.as_ref().and_then(pid);
    // The recorder's threads are started later, and inherit this.
    if let Some(priority) = options.realtime {
        sys::set_realtime(priority).map_err(|e| {
            Error::failed(format!(
                "cannot record with the real-time priority {priority}: {e}. It takes CAP_SYS_NICE, or a limit RLIMIT_RTPRIO of \
                 {priority} (ulimit -r)"
            ))
        })?;
    }
    if options.target == Target::Command {
        plan.threads = Some(pid.into_iter().collect());
    }
    let looked = match &options.target {
        Target::Processes(pids) => watch.processes(pids, false)?,
        Target::Threads(threads) => watch.processes(threads, true)?,
        Target::Command | Target::All | Target::System(_) => None,
    };
    if let Some(e) = looked {
        say(format_args!(
            "the kernel does not report the end of what is recorded (pidfd_open: {e}): it is looked for in /proc, four times a \
             second"
        ));
    }
    if options.shrink && plan.shrink(&limits)? {
        say(format_args!(
            "the rings are made smaller, {} and {}, as more memory may not be locked",
            bytes(u64::try_from(plan.data).unwrap_or(0)),
            bytes(u64::try_from(plan.aux).unwrap_or(0)),
        ));
    }
    let session = Session::open_on(system, plan, &limits)?;
    for note in decoder::notes(session.plan(), &session.clock()) {
        say(note);
    }
    let tracepoints = options.tracepoints.as_ref().map(|wanted| {
        let plan = session.plan();
        Tracepoints::open(wanted, &options.output, plan, plan.threads.as_deref())
    });
    let tracepoints = tracepoints.transpose()?;
    let described = match &tracepoints {
        Some(tracepoints) => tracepoints.described()?,
        None => None,
    };
    let description = options.description(&session, &online, pid, described);
    if options.split_files && description.split_files.is_none() {
        say("--split-files has no effect: one thread drains all rings");
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
        say(format_args!(
            "{} rings of {} and {} for trace, woken by {}",
            session.rings().len(),
            bytes(u64::try_from(session.plan().data).unwrap_or(0)),
            bytes(u64::try_from(session.plan().aux).unwrap_or(0)),
            bytes(u64::from(session.plan().watermark)),
        ));
    }

    let snapshots = options.snapshot.map(|snapshot| {
        let size = snapshot.size.unwrap_or(session.plan().aux);
        Snapshots::new(&session, size)
    });
    let hotplugged = Hotplugged::new(match options.target {
        Target::System(_) => None,
        _ => session.plan().cpus.clone(),
    });
    let offline = hotplugged.possible();
    if options.target == Target::All && !offline.is_empty() {
        let list: Vec<_> = offline.iter().map(ToString::to_string).collect();
        say(format_args!(
            "warning: CPUs that are offline are not recorded, should they come online: {}",
            list.join(", ")
        ));
    }
    let desk = Desk {
        switch: session.switch(),
        watch,
        hotplugged,
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
        queue: None,
        tracepoints,
        missed: Vec::new(),
        begun: false,
    };
    let mut desk = desk;
    let result = recording
        .begin(options)
        .and_then(|()| recording.run(options, workload.as_mut(), &mut desk))
        .and_then(|()| recording.end(options, &mut desk.hotplugged));
    // The command does not continue after its recording.
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

#[cfg(test)]
mod tests;
