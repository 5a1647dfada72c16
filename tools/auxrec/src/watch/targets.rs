// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The processes or threads that are recorded, and whether they have ended.
//!
//! A descriptor from `pidfd_open()` reports the end of each. For those without a descriptor, /proc is checked instead. A kernel before 6.9
//! opens none for a thread; a seccomp filter may refuse the call; there may be too many open files.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, Result};

/// The recorded processes or threads.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// Whether they are threads.
    threads: bool,
    all: Vec<Target>,
}

#[derive(Debug)]
enum Target {
    Ended,
    /// A descriptor that is readable when the process has ended.
    Pidfd(OwnedFd),
    /// The id, and the start time: another process may get the id later.
    Looked(u32, u64),
}

/// Fields of `/proc/ID/stat`.
struct Stat {
    /// Whether it has exited, and its parent has not waited for it yet.
    zombie: bool,
    /// Number of threads of its process, including itself.
    threads: u64,
    started: u64,
}

impl Stat {
    /// [`None`] if there is no such process or thread.
    fn of(id: u32) -> io::Result<Option<Self>> {
        // The name in this file need not be UTF-8.
        let text = match fs::read(format!("/proc/{id}/stat")) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => return Ok(None),
            Err(e) => return Err(e),
        };
        Self::parse(&String::from_utf8_lossy(&text))
            .ok_or(io::ErrorKind::InvalidData.into())
            .map(Some)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name before this may contain spaces and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            zombie: matches!(*fields.first()?, "Z" | "X"),
            threads: fields.get(17)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether it has ended. A process continues after its first thread has exited.
    fn is_over(&self, thread: bool) -> bool {
        self.zombie && (thread || self.threads <= 1)
    }
}

impl Targets {
    /// Opens a descriptor of each with `open`. If that failed for some, which are checked in /proc instead, returns the errno.
    ///
    /// # Errors
    /// If the end of one cannot be detected in any way.
    pub fn open(
        ids: &[u32],
        threads: bool,
        open: impl Fn(Pid, PidfdFlags) -> rustix::io::Result<OwnedFd>,
    ) -> Result<(Self, Option<Errno>)> {
        // PIDFD_THREAD, which is O_EXCL.
        let flags = PidfdFlags::from_bits_retain(if threads { 0o200 } else { 0 });
        let mut out = Self {
            threads,
            all: Vec::new(),
        };
        let mut why = None;
        for &id in ids {
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
            let opened = pid.map_or(Err(Errno::SRCH), |pid| open(pid, flags));
            out.all.push(match opened {
                Ok(fd) => Target::Pidfd(fd),
                Err(Errno::SRCH) => Target::Ended,
                Err(e) => {
                    why = Some(e);
                    looked(id, threads, e)?
                }
            });
        }
        Ok((out, why))
    }

    /// The descriptors, with their numbers.
    pub fn descriptors(&self) -> impl Iterator<Item = (usize, &OwnedFd)> {
        let numbered = self.all.iter().enumerate();
        numbered.filter_map(|(number, target)| match target {
            Target::Pidfd(fd) => Some((number, fd)),
            Target::Ended | Target::Looked(..) => None,
        })
    }

    /// Records that the descriptor with this number has reported the end.
    pub fn ended(&mut self, number: usize) {
        if let Some(target) = self.all.get_mut(number) {
            // Closing the descriptor removes it from the epoll set.
            *target = Target::Ended;
        }
    }

    /// Checks those without a descriptor. Returns whether one has ended since the last call.
    pub fn look(&mut self) -> bool {
        let mut any = false;
        for target in &mut self.all {
            let Target::Looked(id, started) = *target else {
                continue;
            };
            let over = match Stat::of(id) {
                Ok(Some(stat)) => stat.started != started || stat.is_over(self.threads),
                Ok(None) => true,
                // The state is not known now, for example when there are too many open files.
                Err(_) => false,
            };
            if over {
                *target = Target::Ended;
                any = true;
            }
        }
        any
    }

    /// Whether there are some, and all of them have ended.
    pub fn all_ended(&self) -> bool {
        let ended = |target: &Target| matches!(target, Target::Ended);
        !self.all.is_empty() && self.all.iter().all(ended)
    }
}

/// A process or thread without a descriptor, for the reason `why`.
fn looked(id: u32, thread: bool, why: Errno) -> Result<Target> {
    let kind = if thread { "thread" } else { "process" };
    let cannot = |e: &dyn std::fmt::Display| {
        Error::failed(format!(
            "cannot wait for the end of {kind} {id}: pidfd_open: {why}; /proc/{id}/stat: {e}. Mount /proc, allow more open files \
             (ulimit -n), or record with -a"
        ))
    };
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    match Stat::of(id) {
        Ok(Some(stat)) if stat.is_over(thread) => Ok(Target::Ended),
        Ok(Some(stat)) => Ok(Target::Looked(id, stat.started)),
        // /proc may not be mounted, or may hide the process.
        Ok(None)
            if pid
                .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH)) =>
        {
            Err(cannot(&"it is not there, and the process is"))
        }
        Ok(None) => Ok(Target::Ended),
        Err(e) => Err(cannot(&e)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::{Child, Command};

    use super::*;
    use crate::target::tests::Odd;

    fn child() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    fn refused(ids: &[u32], threads: bool, errno: Errno) -> Targets {
        let (targets, why) = Targets::open(ids, threads, |_, _| Err(errno)).unwrap();
        assert_eq!(why, (errno != Errno::SRCH).then_some(errno));
        assert_eq!(targets.descriptors().count(), 0);
        targets
    }

    /// Only ESRCH means that there is no such process.
    #[test]
    fn without_descriptors_they_are_looked_at() {
        for (errno, threads) in [
            (Errno::INVAL, true),
            (Errno::PERM, false),
            (Errno::NOSYS, false),
            (Errno::MFILE, true),
        ] {
            let (mut first, mut second) = (child(), child());
            let mut targets = refused(&[first.id(), second.id()], threads, errno);
            assert!(!targets.look() && !targets.all_ended(), "{errno}");
            first.kill().unwrap();
            first.wait().unwrap();
            assert!(targets.look() && !targets.all_ended(), "{errno}");
            // A zombie has ended, too.
            second.kill().unwrap();
            while !targets.look() {
                std::thread::yield_now();
            }
            assert!(targets.all_ended(), "{errno}");
            second.wait().unwrap();
            let id = first.id();
            assert!(refused(&[id], threads, errno).all_ended(), "{errno}");
        }
        assert!(refused(&[std::process::id()], false, Errno::SRCH).all_ended());
    }

    #[test]
    fn a_name_that_is_not_utf8() {
        let mut child = Odd::start();
        let mut targets = refused(&[child.process.id()], false, Errno::PERM);
        assert!(!targets.look());
        child.end();
        assert!(targets.look() && targets.all_ended());
    }

    /// Another process that has got the id is not the one that is recorded.
    #[test]
    fn a_process_of_the_same_id_is_another() {
        let id = std::process::id();
        let mut targets = refused(&[id], false, Errno::PERM);
        assert!(!targets.look());
        let Target::Looked(_, started) = &mut targets.all[0] else {
            panic!("it has ended");
        };
        *started += 1;
        assert!(targets.look() && targets.all_ended());
    }

    #[test]
    fn a_first_thread_ends_before_its_process() {
        let line = |state, threads| {
            format!(
                "12 (a) b (c) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 0 777 9 9"
            )
        };
        for (state, threads, process, thread) in [
            ("S", 1, false, false),
            ("Z", 2, false, true),
            ("Z", 1, true, true),
            ("X", 0, true, true),
        ] {
            let stat = Stat::parse(&line(state, threads)).unwrap();
            assert_eq!(stat.started, 777);
            assert_eq!(stat.is_over(false), process, "{state} {threads}");
            assert_eq!(stat.is_over(true), thread, "{state} {threads}");
        }
        assert!(Stat::parse("12 (a) S 1").is_none());
    }
}
