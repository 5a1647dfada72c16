// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `--trigger`: a snapshot is taken when a function is reached.
//!
//! The trigger is a uprobe of tracefs, with a perf event of its tracepoint. perf's PMU `uprobe` needs no tracefs, but its events cannot
//! be inherited: when a traced task forks, `perf_uprobe_init()` reads the path in `attr.uprobe_path` again, from the memory of that
//! task, and the fork fails. A hardware breakpoint takes an address of the process, which a command has only after its exec.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use perfdata::{Attr, Flags};
use tracering::Tracefs;

use crate::error::{Error, Result};
use crate::filter::{function, number};
use crate::limits::Limits;
use crate::message::say;
use crate::pmu::{Action, EventSpec, Pmus, Rate, Role};
use crate::session::Plan;
use crate::sys::{self, Event};
use crate::target::{process_of, Target};

mod hits;

pub(crate) use hits::Hits;

/// The file of tracefs that has the uprobes.
const EVENTS: &str = "uprobe_events";
/// Period of the clock that resumes a paused trace: the thread runs this long before that, ns.
const RESUME: u64 = 100_000;
/// The system of the recorder's tracepoints.
const SYSTEM: &str = "auxrec";

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    file: PathBuf,
    offset: u64,
}

impl Place {
    /// `FUNCTION`, `FUNCTION@FILE` or `ADDRESS@FILE`. `program` finds the file if none is given.
    fn find(text: &str, program: impl FnOnce() -> Result<PathBuf>) -> Result<Self> {
        let (word, file) = match text.split_once('@') {
            Some((word, file)) => (word.trim(), Some(file.trim())),
            None => (text.trim(), None),
        };
        if word.is_empty() || file.is_some_and(str::is_empty) {
            return Err(Error::usage(format!(
                "`{text}` is no trigger: give FUNCTION, FUNCTION@FILE or ADDRESS@FILE"
            )));
        }
        let file = match file {
            Some(file) => fs::canonicalize(file)
                .map_err(|e| Error::usage(format!("the trigger's file {file}: {e}")))?,
            None => program()?,
        };
        let offset = match number(word) {
            Some(offset) => offset,
            None => function(&file, word)?.start,
        };
        // The kernel takes words, and '#' begins a comment.
        let shown = file.display().to_string();
        if shown.contains(|c: char| c.is_whitespace() || c == '#' || c == '(') {
            return Err(Error::usage(format!(
                "the trigger's file {shown} has a blank, `#` or `(` in its name, which the kernel cannot take: give a link to it, \
                 FUNCTION@LINK, made with `ln`"
            )));
        }
        Ok(Self { file, offset })
    }
}

/// The program that is recorded.
fn program(target: &Target, command: &[OsString]) -> Result<PathBuf> {
    let pids =
        match target {
            Target::Command => {
                let command = command.first().map(OsString::as_os_str);
                return executable(command.unwrap_or_default(), env::var_os("PATH").as_deref());
            }
            Target::Processes(pids) => pids.clone(),
            Target::Threads(threads) => {
                let all = threads.iter().map(|thread| process_of(*thread));
                all.collect::<Result<_>>()?
            }
            Target::All | Target::System(_) => return Err(Error::usage(
                "with -a or -C the trigger's function is of no known program: give FUNCTION@FILE",
            )),
        };
    let mut first: Option<(PathBuf, Metadata)> = None;
    for pid in pids {
        // This link is followed into the mount namespace of the process.
        let path = PathBuf::from(format!("/proc/{pid}/exe"));
        let meta = fs::metadata(&path).map_err(|e| {
            Error::failed(format!(
                "cannot find the program of process {pid}: {}: {e}. Give FUNCTION@FILE",
                path.display()
            ))
        })?;
        match &first {
            None => first = Some((path, meta)),
            Some((_, other)) if (other.dev(), other.ino()) == (meta.dev(), meta.ino()) => {}
            Some((other, _)) => {
                return Err(Error::usage(format!(
                    "the trigger's function is of several programs, {} and {}: give FUNCTION@FILE",
                    other.display(),
                    path.display()
                )))
            }
        }
    }
    let (path, _) = first.ok_or_else(|| Error::usage("there is no process to record"))?;
    Ok(path)
}

/// The file that `execvp()` takes for this command.
fn executable(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let command = Path::new(command);
    let path = match command.components().count() {
        0 | 1 => path.unwrap_or(OsStr::new("/bin:/usr/bin")),
        // A path is not searched for.
        _ => OsStr::new(""),
    };
    env::split_paths(path)
        .map(|dir| dir.join(command))
        .find(is_program)
        .and_then(|path| fs::canonicalize(path).ok())
        .ok_or_else(|| {
            Error::usage(format!(
                "there is no program `{}` to look for the trigger's function in",
                command.display()
            ))
        })
}

/// The uprobe of a trigger. Dropping this removes it, which must be after its events are closed.
#[derive(Debug)]
pub(crate) struct Trigger {
    tracefs: Tracefs,
    /// Name of its tracepoint.
    name: String,
    /// The text that the user gave.
    text: String,
    place: Place,
    /// An event of all tasks, which is never enabled. While it is open, the uprobe is in each process that has mapped the file.
    ///
    /// Without it `uprobe_perf_func()` removes the breakpoint from a process that has no event. That function checks the task for which an
    /// event was opened. But tasks that have inherited the same events swap them at a context switch. When one of them has ended, the other
    /// one would own no event any more, and lose its breakpoint.
    all: Option<Event>,
}

impl Trigger {
    /// Defines the uprobe. If `text` names no file, the function is of the program that is recorded: `target`, or `command`.
    ///
    /// # Errors
    /// If there is no such function, or tracefs refuses.
    pub fn define(text: &str, target: &Target, command: &[OsString]) -> Result<Self> {
        let place = Place::find(text, || program(target, command))?;
        let tracefs = Tracefs::find();
        let tracefs = tracefs.map_err(|e| Error::failed(format!("--trigger {text}: {e}")))?;
        Self::define_in(tracefs, text, place)
    }

    fn define_in(tracefs: Tracefs, text: &str, place: Place) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let failed = |e: tracering::Error| Error::failed(format!("--trigger {text}: {e}"));
        if !tracefs.path().join(EVENTS).exists() {
            return Err(Error::failed(format!(
                "--trigger {text}: this kernel has no uprobes: {} is not there. Use one that is built with CONFIG_UPROBE_EVENTS",
                tracefs.path().join(EVENTS).display()
            )));
        }
        remove_abandoned(&tracefs);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("trigger_{}_{number}", std::process::id());
        let line = format!(
            "p:{SYSTEM}/{name} {}:{:#x}",
            place.file.display(),
            place.offset
        );
        tracefs.append(EVENTS, &line).map_err(failed)?;
        Ok(Self {
            tracefs,
            name,
            text: text.to_owned(),
            place,
            all: None,
        })
    }

    /// The text from the beginning of the page with the uprobe to the end of the next page, into which an instruction may reach. Empty if
    /// the file cannot be read.
    pub fn page(&self) -> Vec<u8> {
        let page = sys::page_size();
        let mut text = vec![0; 2 * page];
        let offset = self.place.offset;
        let start = offset - offset % u64::try_from(page).unwrap_or(u64::MAX);
        let read = File::open(&self.place.file).and_then(|file| file.read_at(&mut text, start));
        text.truncate(read.unwrap_or(0));
        text
    }

    /// Adds the trigger's events to the plan. One event reports the hits. In each group that can be paused, another event pauses the trace
    /// with each hit, and a clock resumes it. The first event is in no group, so that it also counts hits while a snapshot is taken and the
    /// trace is off.
    ///
    /// # Errors
    /// If tracefs does not show its tracepoint.
    pub fn add(&mut self, plan: &mut Plan, limits: &Limits) -> Result<()> {
        let name = format!("trigger:{}", self.text);
        let point = format!("{SYSTEM}:{}", self.name);
        let no_id = || {
            Error::failed(format!(
                "--trigger {}: {} has no readable id of the tracepoint {point}: run this as root",
                self.text,
                self.tracefs.path().display()
            ))
        };
        let hit = EventSpec {
            exclude: Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
            ..Pmus::symbol(&name, &point).ok_or_else(no_id)?
        };
        let cpu = plan.cpus.iter().flatten().next().copied().unwrap_or(0);
        let cpu = i32::try_from(cpu).unwrap_or(0);
        let all = Attr {
            flags: hit.exclude | Flags::DISABLED,
            ..hit.attr()
        };
        let all = Event::open(&all, -1, cpu);
        self.all = Some(all.map_err(|e| limits.explain_trigger(&e, &name, "all programs"))?);
        let owners: Vec<_> = plan.owners().collect();
        plan.trigger = Some(plan.events.len());
        plan.events.push((
            hit.clone(),
            Role::Other(owners.first().copied().unwrap_or(0)),
        ));
        for owner in owners {
            let tracer = plan.events.get(owner).map(|(event, _)| event);
            let Some(tracer) = tracer.filter(|event| can_pause(plan, event)) else {
                say(format_args!(
                    "`{}` cannot be paused: a snapshot also has what was executed between the trigger and the snapshot",
                    plan.name(owner)
                ));
                continue;
            };
            // If CPUs are recorded, any task, also the idle one, resumes the trace.
            let exclude = match &plan.threads {
                Some(_) => tracer.exclude,
                None => Flags::empty(),
            };
            let pause = EventSpec {
                text: format!("{name} pauses"),
                action: Some(Action::Pause),
                ..hit.clone()
            };
            let resume = Pmus::symbol(&format!("{name} resumes"), "cpu-clock").ok_or_else(no_id)?;
            let resume = EventSpec {
                rate: Rate::Period(RESUME),
                action: Some(Action::Resume),
                exclude,
                ..resume
            };
            plan.events.push((pause, Role::Member(owner)));
            plan.events.push((resume, Role::Member(owner)));
        }
        Ok(())
    }
}

/// Whether other events of its group can pause this event. Kernels before 6.13 do not support that, nor does each driver.
fn can_pause(plan: &Plan, event: &EventSpec) -> bool {
    let mut cpus = plan
        .cpus
        .iter()
        .flatten()
        .filter(|cpu| event.pmu.is_on(**cpu));
    let (pid, cpu) = match &plan.threads {
        // This process.
        Some(_) => (0, -1),
        None => (
            -1,
            cpus.next()
                .and_then(|cpu| i32::try_from(*cpu).ok())
                .unwrap_or(0),
        ),
    };
    let leader = event.attr();
    let leader = Attr {
        flags: leader.flags | Flags::DISABLED,
        ..leader
    };
    let pause = Attr {
        kind: 1,
        config: 9,
        aux_action: Action::Pause.bits(),
        sample_period: 1,
        flags: Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
        ..Attr::default()
    };
    let opened = Event::open(&leader, pid, cpu);
    opened.is_ok_and(|leader| Event::open_in(&pause, pid, cpu, Some(&leader)).is_ok())
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.all = None;
        let line = format!("-:{SYSTEM}/{}", self.name);
        if let Err(e) = self.tracefs.append(EVENTS, &line) {
            say(format_args!("the uprobe {SYSTEM}:{} stays: {e}", self.name));
        }
    }
}

/// Removes the uprobes of recorders that were killed. The kernel keeps those that have an event.
fn remove_abandoned(tracefs: &Tracefs) {
    let entries = fs::read_dir(tracefs.path().join("events").join(SYSTEM));
    let names = entries.into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner(&name).is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = tracefs.append(EVENTS, &format!("-:{SYSTEM}/{name}"));
        }
    }
}

/// The process that has defined the uprobe of this name.
fn owner(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix("trigger_")?.split_once('_')?;
    Some(pid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;

    fn nowhere() -> Result<PathBuf> {
        Err(Error::usage("no program"))
    }

    #[test]
    fn places_of_functions_and_numbers() {
        let me = env::current_exe().unwrap().canonicalize().unwrap();
        let main = function(&me, "main").unwrap().start;
        let shown = me.display();
        for (text, offset) in [
            (format!("main@{shown}"), main),
            (format!("main @ {shown}"), main),
            (format!("0x1234@{shown}"), 0x1234),
            (format!("4096@{shown}"), 4096),
            ("main".to_owned(), main),
        ] {
            let place = Place::find(&text, || Ok(me.clone())).unwrap();
            let expected = Place {
                file: me.clone(),
                offset,
            };
            assert_eq!(place, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_named() {
        let me = env::current_exe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let blank = dir.path().join("a program");
        fs::copy(&me, &blank).unwrap();
        for (text, says) in [
            ("", "give FUNCTION, FUNCTION@FILE or ADDRESS@FILE"),
            ("@ME", "`@ME` is no trigger"),
            ("main@", "`main@` is no trigger"),
            ("main", "no program"),
            ("main@/nowhere", "the trigger's file /nowhere"),
            ("main@/proc/version", "has no functions that are known"),
            ("no_such@ME", "has no function `no_such`"),
            ("main@BLANK", "which the kernel cannot take"),
        ] {
            let own = |text: &str| {
                text.replace("ME", &me.display().to_string())
                    .replace("BLANK", &blank.display().to_string())
            };
            let error = Place::find(&own(text), nowhere).unwrap_err().to_string();
            assert!(error.contains(&own(says)), "{text}: {error}");
        }
    }

    #[test]
    fn the_program_is_that_of_the_target() {
        let me = env::current_exe().unwrap().canonicalize().unwrap();
        let (own, other) = (std::process::id(), std::os::unix::process::parent_id());
        let command = [me.clone().into_os_string()];
        let exe = PathBuf::from(format!("/proc/{own}/exe"));
        for (target, expected) in [
            (Target::Command, &me),
            (Target::Processes(vec![own]), &exe),
            (Target::Processes(vec![own, own]), &exe),
            (Target::Threads(vec![own]), &exe),
        ] {
            let shown = format!("{target:?}");
            let found = program(&target, &command);
            assert_eq!(&found.unwrap(), expected, "{shown}");
        }
        for (target, says) in [
            (Target::All, "give FUNCTION@FILE"),
            (Target::System(vec![0]), "give FUNCTION@FILE"),
            (Target::Processes(vec![own, other]), "several programs"),
            (Target::Processes(vec![u32::MAX]), "of process 4294967295"),
        ] {
            let shown = format!("{target:?}");
            let error = program(&target, &command).unwrap_err().to_string();
            assert!(error.contains(says), "{shown}: {error}");
        }
    }

    #[test]
    fn a_command_is_found_as_it_is_run() {
        let me = env::current_exe().unwrap().canonicalize().unwrap();
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        // A file that cannot be executed is skipped.
        fs::write(dirs[0].path().join("tool"), "").unwrap();
        symlink(&me, dirs[1].path().join("tool")).unwrap();
        let path = env::join_paths(dirs.iter().map(tempfile::TempDir::path)).unwrap();
        let find = |command: &OsStr| executable(command, Some(&path));
        assert_eq!(find(OsStr::new("tool")).unwrap(), me);
        assert_eq!(find(me.as_os_str()).unwrap(), me);
        for none in ["", "other", "./tool"] {
            let error = find(OsStr::new(none)).unwrap_err().to_string();
            assert!(error.contains(&format!("no program `{none}`")), "{error}");
        }
    }

    #[test]
    fn a_kernel_without_uprobes_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place {
            file: env::current_exe().unwrap(),
            offset: 0,
        };
        let defined = Trigger::define_in(Tracefs::at(dir.path()), "main", place);
        let error = defined.unwrap_err().to_string();
        for says in [
            "--trigger main: this kernel has no uprobes: ",
            "uprobe_events is not there",
            "CONFIG_UPROBE_EVENTS",
        ] {
            assert!(error.contains(says), "{error}");
        }
    }

    /// A recorder that was killed leaves its uprobe, another one removes it.
    #[test]
    fn only_probes_without_a_recorder_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let system = dir.path().join("events").join(SYSTEM);
        let own = std::process::id();
        for name in [
            "enable".to_owned(),
            format!("trigger_{own}_0"),
            "trigger_4294967295_3".to_owned(),
        ] {
            fs::create_dir_all(system.join(name)).unwrap();
        }
        let events = dir.path().join(EVENTS);
        fs::write(&events, "").unwrap();
        remove_abandoned(&Tracefs::at(dir.path()));
        assert_eq!(
            fs::read_to_string(events).unwrap(),
            "-:auxrec/trigger_4294967295_3"
        );
    }
}
