// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is recorded: CPUs, processes, threads, or a command.

use std::collections::BTreeSet;
use std::fs;

use crate::error::{Error, Result};

/// What is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Target {
    /// The command that the recorder runs, from its exec on.
    #[default]
    Command,
    /// Running processes, with all threads that they have now.
    Processes(Vec<u32>),
    /// Running threads.
    Threads(Vec<u32>),
    /// Everything on all CPUs that are online.
    All,
    /// Everything on these CPUs.
    System(Vec<u32>),
}

impl Target {
    /// Whether CPUs are recorded, whatever runs on them.
    pub(crate) fn is_system(&self) -> bool {
        matches!(self, Self::All | Self::System(_))
    }
}

/// Parses a list such as `0-1,3`. Returns the numbers in rising order.
///
/// # Errors
/// If the text is not such a list.
pub fn parse_cpus(list: &str) -> Result<Vec<u32>> {
    let bad = || Error::usage(format!("`{list}` is not a list of CPUs such as `0-1,3`"));
    let mut cpus = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u32 = first.trim().parse().map_err(|_| bad())?;
        let last: u32 = last.trim().parse().map_err(|_| bad())?;
        // No machine has more CPUs than this. A list with a larger number would only fill the memory.
        if first > last || last >= 1 << 16 {
            return Err(bad());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus.into_iter().collect())
}

/// The CPUs that are online.
///
/// # Errors
/// If the list cannot be read.
pub fn online_cpus() -> Result<Vec<u32>> {
    cpus("online")
}

/// The CPUs that are present, online or offline.
///
/// # Errors
/// If the list cannot be read.
pub fn present_cpus() -> Result<Vec<u32>> {
    cpus("present")
}

/// The CPUs that can ever be present.
///
/// # Errors
/// If the list cannot be read.
pub fn possible_cpus() -> Result<Vec<u32>> {
    cpus("possible")
}

fn cpus(state: &str) -> Result<Vec<u32>> {
    let path = format!("/sys/devices/system/cpu/{state}");
    let list = fs::read_to_string(&path)
        .map_err(|e| Error::failed(format!("cannot tell which CPUs are {state}: {path}: {e}")))?;
    parse_cpus(&list)
}

/// Checks that all CPUs that the user asked for are online.
///
/// # Errors
/// If one is not online.
pub fn check_online(wanted: &[u32], online: &[u32]) -> Result<()> {
    match wanted.iter().find(|cpu| !online.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => Err(Error::usage(format!(
            "CPU {cpu} is not online; online are: {}",
            online
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        ))),
    }
}

/// Parses a list of processes or threads such as `12,34`.
///
/// # Errors
/// If the text is not such a list.
pub fn parse_ids(list: &str) -> Result<Vec<u32>> {
    let mut ids = list
        .split(',')
        .map(|id| {
            id.trim().parse().map_err(|_| {
                Error::usage(format!(
                    "`{list}` is not a list of processes or threads such as `12,34`"
                ))
            })
        })
        .collect::<Result<Vec<u32>>>()?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// A field of `/proc/ID/status`.
fn status(id: u32, field: &str) -> Option<u32> {
    // The name in this file need not be UTF-8.
    let text = fs::read(format!("/proc/{id}/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().parse().ok()
}

/// The process of a thread.
///
/// # Errors
/// If there is no such thread.
pub fn process_of(thread: u32) -> Result<u32> {
    status(thread, "Tgid:").ok_or_else(|| Error::usage(format!("there is no thread {thread}")))
}

/// All processes.
#[must_use]
pub fn processes() -> Vec<u32> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// A process with all its descendants.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = processes()
        .into_iter()
        .filter_map(|pid| Some((pid, status(pid, "PPid:")?)))
        .collect();
    let mut out = vec![pid];
    let mut at = 0;
    while let Some(&parent) = out.get(at) {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        out.extend(children.map(|(pid, _)| *pid).filter(|pid| *pid != parent));
        at += 1;
    }
    out
}

/// The threads of a process.
///
/// # Errors
/// If there is no such process.
pub fn threads(pid: u32) -> Result<Vec<u32>> {
    let mut out: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::usage(format!("there is no process {pid}")),
            _ => Error::failed(format!("cannot list the threads of process {pid}: {e}")),
        })?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    out.sort_unstable();
    Ok(out)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ffi::OsStr;
    use std::io::{Read as _, Write as _};
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process whose program has a name that is not UTF-8.
    pub(crate) struct Odd {
        pub(crate) process: Child,
        pub(crate) path: PathBuf,
        _directory: tempfile::TempDir,
    }

    impl Odd {
        pub(crate) const NAME: &'static [u8] = b"c\xff t";

        pub(crate) fn start() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(OsStr::from_bytes(Self::NAME));
            fs::copy("/bin/cat", &path).unwrap();
            let mut command = Command::new(&path);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = command.spawn().unwrap();
            // The exec is complete when the process answers. Then the process waits for more input.
            process.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            let answer = process.stdout.as_mut().unwrap();
            answer.read_exact(&mut [0]).unwrap();
            Self {
                process,
                path: path.canonicalize().unwrap(),
                _directory: directory,
            }
        }

        pub(crate) fn end(&mut self) {
            drop(self.process.stdin.take());
            assert!(self.process.wait().unwrap().success());
        }
    }

    #[test]
    fn processes_and_threads() {
        assert_eq!(parse_ids("34,12,12").unwrap(), [12, 34]);
        for bad in ["", "a", "1,", "-1"] {
            assert!(parse_ids(bad).is_err(), "{bad}");
        }
        let me = std::process::id();
        assert_eq!(process_of(me).unwrap(), me);
        assert!(process_of(u32::MAX).is_err());
        assert!(processes().contains(&me));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(descendants(me).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The file that has a process's parent also has its name.
    #[test]
    fn a_name_that_is_not_utf8() {
        let mut child = Odd::start();
        let id = child.process.id();
        assert_eq!(process_of(id).unwrap(), id);
        assert!(descendants(std::process::id()).contains(&id));
        child.end();
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpus("3,0-1,1\n").unwrap(), [0, 1, 3]);
        for bad in ["", "a", "1-", "2-1", "1,,2", "0-99999999", "-1"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
        assert!(check_online(&[0, 5], &[0, 1])
            .unwrap_err()
            .to_string()
            .contains("CPU 5 is not online; online are: 0, 1"));
    }
}
