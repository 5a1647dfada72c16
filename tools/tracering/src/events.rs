// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The available events, and an instance to trace them in.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::tracefs::{refused, Tracefs};

/// An event, as tracefs describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The event's system: the name of its directory.
    pub system: String,
    /// Name, number and fields of the event.
    pub format: Format,
    /// The text of its file `format`.
    pub text: String,
}

impl Tracefs {
    /// These events, each given as `SYSTEM:EVENT` or `SYSTEM:*`; all events if `names` is empty. The keys are the values of `common_type`.
    ///
    /// # Errors
    /// If an event does not exist, or its format is not valid.
    pub fn events(&self, names: &[String]) -> Result<BTreeMap<u16, Named>> {
        let mut found = BTreeMap::new();
        let mut add = |system: &str, event: &str| -> Result<()> {
            let named = self.event(system, event)?;
            found.insert(named.format.id, named);
            Ok(())
        };
        let events = self.path().join("events");
        for name in names {
            let part = |text: &str| !text.is_empty() && !text.contains(['/', '.']);
            let (system, event) = name
                .split_once(':')
                .filter(|(system, event)| part(system) && part(event))
                .ok_or_else(|| {
                    Error::failed(format!(
                        "{name} is no event: give SYSTEM:EVENT, such as sched:sched_switch"
                    ))
                })?;
            if event == "*" {
                for event in self.with_format(system)? {
                    add(system, &event)?;
                }
            } else {
                add(system, event)?;
            }
        }
        if names.is_empty() {
            for system in directories(&events)? {
                for event in self.with_format(&system)? {
                    add(&system, &event)?;
                }
            }
        }
        Ok(found)
    }

    /// Turns an event on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enable(&self, event: &Named) -> Result<()> {
        let file = format!("events/{}/{}/enable", event.system, event.format.name);
        self.write(file, "1")
    }

    /// The events of a system. Directories without a format are skipped: their events cannot be turned on.
    fn with_format(&self, system: &str) -> Result<Vec<String>> {
        let dir = self.path().join("events").join(system);
        if !dir.is_dir() {
            let list = self.path().join("available_events");
            return Err(Error::failed(format!(
                "no system {system}: {} lists the events that there are",
                list.display()
            )));
        }
        let mut events = directories(&dir)?;
        events.retain(|event| dir.join(event).join("format").exists());
        Ok(events)
    }

    fn event(&self, system: &str, event: &str) -> Result<Named> {
        let path = self.path().join("events").join(system).join(event);
        let path = path.join("format");
        if !path.exists() {
            let list = self.path().join("available_events");
            return Err(Error::failed(format!(
                "no event {system}:{event}: {} lists those that there are",
                list.display()
            )));
        }
        let text = self.read(&path)?;
        let format =
            Format::parse(&text).map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
        Ok(Named {
            system: system.to_owned(),
            format,
            text,
        })
    }
}

/// The names of the directories in `dir`, sorted.
pub(crate) fn directories(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).map_err(|e| refused(dir, &e))?;
    let name = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let is_dir = entry.file_type().ok()?.is_dir();
        is_dir.then(|| entry.file_name().into_string().ok())?
    };
    let mut names: Vec<_> = entries.filter_map(name).collect();
    names.sort();
    Ok(names)
}

/// An instance that this process has created. Dropping the value removes the instance; by then all its files must be closed.
#[derive(Debug)]
pub struct Instance {
    tracefs: Tracefs,
}

impl Instance {
    /// Creates an instance called `name` with the PID of this process. Removes the instances that killed processes have left.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(top: &Tracefs, name: &str) -> Result<Self> {
        let instances = top.path().join("instances");
        remove_left(&instances, name);
        let dir = instances.join(format!("{name}.{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| refused(&dir, &e))?;
        Ok(Self {
            tracefs: Tracefs::at(dir),
        })
    }

    /// The directory of the instance.
    #[must_use]
    pub fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// Turns these events on.
    ///
    /// # Errors
    /// If the kernel refuses to enable an event.
    pub fn enable<'a>(&self, events: impl IntoIterator<Item = &'a Named>) -> Result<()> {
        let mut events = events.into_iter();
        events.try_for_each(|event| self.tracefs.enable(event))
    }
}

/// Removes instances of this name whose processes have ended: otherwise the kernel keeps tracing into them. A process of another PID
/// namespace looks as if it had ended. The kernel refuses to remove its instance while it has files of the instance open.
fn remove_left(instances: &Path, name: &str) {
    let processes = Path::new("/proc");
    if !processes.join("self").exists() {
        return;
    }
    for left in directories(instances).unwrap_or_default() {
        let pid = left
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('.'));
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        // This process has not created its instance yet, so one with its PID is left over.
        if pid == std::process::id() || !processes.join(pid.to_string()).exists() {
            let _ = fs::remove_dir(instances.join(left));
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let dir = self.tracefs.path();
        if let Err(e) = fs::remove_dir(dir) {
            // If standard error is closed, the error cannot be reported.
            let _ = writeln!(
                io::stderr(),
                "cannot remove the instance {}: {e}: remove it with rmdir",
                dir.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn instances_of_killed_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let instances = dir.path().join("instances");
        let parent = format!("auxrec.{}", std::os::unix::process::parent_id());
        let own = format!("auxrec.{}", std::process::id());
        // No process has a number above 4194304.
        for name in [
            "auxrec.4194305",
            "auxrec.4194306",
            "auxrec.x",
            "auxrec",
            "other.4194305",
            &parent,
            &own,
        ] {
            fs::create_dir_all(instances.join(name)).unwrap();
        }
        // The kernel does not remove an instance with open files.
        fs::create_dir(instances.join("auxrec.4194306/open")).unwrap();
        let instance = Instance::new(&Tracefs::at(dir.path()), "auxrec").unwrap();
        assert_eq!(instance.tracefs().path(), instances.join(&own));
        let mut left = directories(&instances).unwrap();
        let mut expected = [
            "auxrec",
            "auxrec.4194306",
            "auxrec.x",
            "other.4194305",
            &parent,
            &own,
        ];
        left.sort();
        expected.sort_unstable();
        assert_eq!(left, expected);
        drop(instance);
        assert!(!instances.join(own).exists());
    }
}
