// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events that there are, and an instance to trace some of them in.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::tracefs::{refused, Tracefs};

/// An event, and what tracefs says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its system: the directory that it is in.
    pub system: String,
    /// Its fields; and its name.
    pub format: Format,
    /// The text of its file `format`.
    pub text: String,
}

impl Tracefs {
    /// These events, each `SYSTEM:EVENT` or `SYSTEM:*`; all that there are if none is named. The keys are what `common_type`
    /// says.
    ///
    /// # Errors
    /// If one is not there, or its format makes no sense.
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

    /// The events of a system. Some directories have no format: those of events that cannot be turned on.
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

/// The names of the directories in one, in order.
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

/// An instance that this process made. It is removed when it is dropped; until then nothing of it may stay open.
#[derive(Debug)]
pub struct Instance {
    tracefs: Tracefs,
}

impl Instance {
    /// Makes one, whose name is this and the number of this process. Those of processes that were killed are removed.
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

    /// Its directory.
    #[must_use]
    pub fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// Turns these events on.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub fn enable<'a>(&self, events: impl IntoIterator<Item = &'a Named>) -> Result<()> {
        let mut events = events.into_iter();
        events.try_for_each(|event| self.tracefs.enable(event))
    }
}

/// Removes instances of this name whose processes are gone: the kernel traces into them for ever. A process of another PID
/// namespace, which looks as if it were gone, has files of its instance open, and the kernel does not remove that.
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
        // This process has not made one yet.
        if pid == std::process::id() || !processes.join(pid.to_string()).exists() {
            let _ = fs::remove_dir(instances.join(left));
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let dir = self.tracefs.path();
        if let Err(e) = fs::remove_dir(dir) {
            // Nothing is left to do where standard error is closed.
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
        // As the kernel keeps one that is open.
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
