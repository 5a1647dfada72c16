// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Control groups: an event of a group is on while a task of the group runs on its CPU.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use rustix::io::Errno;

use super::{case, core, refused, skip, Case};
use crate::pmu::{Place, Pmu};
use crate::rig::{work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    vec![
        case(
            "groups: an event of a group is of one CPU",
            core(13959, "(pid == -1 || cpu == -1)"),
            |pmu| {
                pmu.cpu()?;
                let group = Group::new()?;
                let file = fs::File::open(&group.dir)?;
                let opened = Event::open_cgroup(&pmu.attr(), file.as_fd(), -1, None);
                refused("an event of all CPUs", opened, Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "groups: only what runs in the group is traced",
            core(909, "perf_cgroup_match(struct perf_event *event)"),
            |pmu| {
                let group = Group::new()?;
                let mut rig = group.rig(pmu)?;
                rig.event.enable()?;
                nothing(&mut rig, "of what is not in the group")?;
                group.enter()?;
                rig.traces(1)?;
                rig.settles()?;
                rig.is_exact()
            },
        ),
        case(
            "groups: a task comes and leaves 20 times",
            core(
                1049,
                "static void perf_cgroup_switch(struct task_struct *task)",
            ),
            |pmu| {
                let group = Group::new()?;
                let mut rig = group.rig(pmu)?;
                rig.event.enable()?;
                for _ in 0..20 {
                    group.enter()?;
                    rig.traces(1)?;
                    group.leave()?;
                    rig.follows()?;
                    nothing(&mut rig, "of a task that has left")?;
                }
                rig.settles()?;
                rig.is_exact()
            },
        ),
        case(
            "groups: a group is removed while its event is on",
            core(933, "css_put(&event->cgrp->css);"),
            |pmu| {
                let group = Group::new()?;
                let mut rig = group.rig(pmu)?;
                rig.event.enable()?;
                group.enter()?;
                rig.traces(1)?;
                group.leave()?;
                rig.follows()?;
                fs::remove_dir(&group.dir).context("removing the group")?;
                nothing(&mut rig, "of a group that is gone")?;
                rig.settles()?;
                rig.is_exact()
            },
        ),
    ]
}

/// Works, and checks that no trace comes.
fn nothing(rig: &mut Rig, what: &str) -> Result<()> {
    let head = rig.head();
    for _ in 0..5 {
        work();
    }
    let records = rig.drain()?;
    ensure!(
        records == 0 && rig.head() == head,
        "{records} records and {} bytes {what}",
        rig.head().wrapping_sub(head)
    );
    Ok(())
}

/// A control group in perf's hierarchy, at first without a task. Dropping it moves this process out of it, and removes it.
struct Group {
    dir: PathBuf,
    /// The group that this process was in before.
    home: PathBuf,
    /// The hierarchy, if it was mounted for this group.
    mounted: Option<PathBuf>,
}

impl Group {
    fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let (mount, mounted) = match hierarchy(&mounts) {
            Some(mount) => (mount, None),
            None => {
                let mount = mounts_one()?;
                (mount.clone(), Some(mount))
            }
        };
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let home = match place(&groups) {
            Some(path) => mount.join(path.trim_start_matches('/')),
            None => mount.clone(),
        };
        let group = Self {
            dir: mount.join(format!("conform-{}", process::id())),
            home,
            mounted,
        };
        fs::create_dir(&group.dir).map_err(|error| {
            skip(format!(
                "this user can make no control group in {}: {error}",
                mount.display()
            ))
        })?;
        Ok(group)
    }

    /// A disabled event of the group, on the CPU on which this thread stays.
    fn rig(&self, pmu: &Pmu) -> Result<Rig> {
        // perf's core refuses control groups for a PMU that traces CPUs only.
        pmu.task()?;
        let place = pmu.cpu()?;
        let Place::Cpu(cpu) = place else {
            return Err(skip("its events are not of CPUs"));
        };
        let file = fs::File::open(&self.dir)?;
        let cpu = i32::try_from(cpu)?;
        let event = match Event::open_cgroup(&pmu.attr(), file.as_fd(), cpu, None) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let why = "this machine's control groups are not perf's: no controller is enabled";
                return Err(skip(why));
            }
            opened => opened.context("opening an event of a control group")?,
        };
        // Large: perf's core warns if the driver finds the area full at the switch that leaves the group.
        Rig::of(pmu, event, place, pmu.pages(1024), Mode::Normal)
    }

    fn enter(&self) -> Result<()> {
        goes_to(&self.dir)
    }

    fn leave(&self) -> Result<()> {
        goes_to(&self.home)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.leave();
        let _ = fs::remove_dir(&self.dir);
        if let Some(mount) = &self.mounted {
            let _ = Command::new("umount").arg(mount).status();
            let _ = fs::remove_dir(mount);
        }
    }
}

/// Moves this process to a group.
fn goes_to(group: &Path) -> Result<()> {
    let procs = group.join("cgroup.procs");
    fs::write(&procs, process::id().to_string())
        .with_context(|| format!("writing {}", procs.display()))
}

/// Where perf's hierarchy is mounted: a separate one, or the unified one.
fn hierarchy(mounts: &str) -> Option<PathBuf> {
    let fields = |line: &str| {
        let mut fields = line.split(' ').skip(1).map(str::to_owned);
        Some((fields.next()?, fields.next()?, fields.next()?))
    };
    let mounts: Vec<_> = mounts.lines().filter_map(fields).collect();
    let own = mounts.iter().find(|(_, kind, options)| {
        kind == "cgroup" && options.split(',').any(|option| option == "perf_event")
    });
    let unified = || mounts.iter().find(|(_, kind, _)| kind == "cgroup2");
    own.or_else(unified).map(|(path, ..)| PathBuf::from(path))
}

/// The group of this process in perf's hierarchy.
fn place(groups: &str) -> Option<&str> {
    let of = |wanted: &str| {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_it = controllers.split(',').any(|name| name == wanted);
            is_it.then_some(path)
        })
    };
    of("perf_event").or_else(|| of(""))
}

fn mounts_one() -> Result<PathBuf> {
    let mount = std::env::temp_dir().join(format!("conform-groups-{}", process::id()));
    fs::create_dir_all(&mount)?;
    let mut command = Command::new("mount");
    command.args(["-t", "cgroup", "-o", "perf_event", "cgroup"]);
    let status = command.arg(&mount).status();
    if status.is_ok_and(|status| status.success()) {
        return Ok(mount);
    }
    fs::remove_dir(&mount)?;
    Err(skip(
        "no hierarchy of control groups is mounted for perf, and this user can mount none",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_hierarchy_is_its_own_or_the_unified_one() {
        let unified = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let own = "cgroup /sys/fs/cgroup/perf_event cgroup rw,perf_event 0 0\n";
        let other = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        assert_eq!(hierarchy(unified), Some("/sys/fs/cgroup".into()));
        let own_path = Some(PathBuf::from("/sys/fs/cgroup/perf_event"));
        assert_eq!(hierarchy(&[unified, own].concat()), own_path);
        assert_eq!(hierarchy(other), None);
        assert_eq!(hierarchy(""), None);
    }

    #[test]
    fn the_place_is_the_one_in_perfs_hierarchy() {
        let both = "4:cpu,perf_event:/a/b\n0::/c\n";
        assert_eq!(place(both), Some("/a/b"));
        assert_eq!(place("1:cpu:/a\n0::/c:d\n"), Some("/c:d"));
        assert_eq!(place("1:cpu:/a\n"), None);
    }
}
