// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who is recorded: CPUs, a process, a command.

use std::fs;

use crate::error::{Error, Result};

/// Who is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The command that is run, from its exec on.
    Command,
    /// A process that runs, with all threads that it has now.
    Process(u32),
    /// Everything on these CPUs.
    System(Vec<u32>),
}

/// A list such as `0-1,3`, in rising order.
///
/// # Errors
/// If it is none.
pub fn parse_cpus(list: &str) -> Result<Vec<u32>> {
    let bad = || Error::usage(format!("`{list}` is not a list of CPUs such as `0-1,3`"));
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u32 = first.trim().parse().map_err(|_| bad())?;
        let last: u32 = last.trim().parse().map_err(|_| bad())?;
        // No machine has more CPUs than this; a list that says so would only fill the memory.
        if first > last || last >= 1 << 16 {
            return Err(bad());
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// The CPUs that are online.
///
/// # Errors
/// If the kernel does not say.
pub fn online_cpus() -> Result<Vec<u32>> {
    let path = "/sys/devices/system/cpu/online";
    let list = fs::read_to_string(path)
        .map_err(|e| Error::failed(format!("cannot tell which CPUs are online: {path}: {e}")))?;
    parse_cpus(&list)
}

/// Those of the CPUs that were asked for, if they are all online.
///
/// # Errors
/// If one is not.
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

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
