// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The directories and files of tracefs.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::header::{check_event_header, PageHeader};

/// The mount points of tracefs. The second, in debugfs, is that of old kernels.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The error of a file whose instance is being removed.
const ENODEV: i32 = 19;
/// The file that shows the kernel's lockdown mode.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// A directory of tracefs that has a ring buffer: the top, or an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracefs {
    dir: PathBuf,
}

impl Tracefs {
    /// The top directory of the mounted tracefs.
    ///
    /// # Errors
    /// If none is mounted, or the user may not access it.
    pub fn find() -> Result<Self> {
        for place in PLACES {
            match fs::read_dir(Path::new(place).join("events")) {
                Ok(_) => return Ok(Self { dir: place.into() }),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(refused(Path::new(place), &e)),
            }
        }
        Err(Error::failed(none(&lockdown())))
    }

    /// The directory at this path.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// An instance, which must exist.
    ///
    /// # Errors
    /// If no instance has that name.
    pub fn instance(&self, name: &str) -> Result<Self> {
        let dir = self.dir.join("instances").join(name);
        if name.is_empty() || name.contains('/') || name.starts_with('.') || !dir.is_dir() {
            return Err(Error::failed(format!(
                "no instance {name} in {}: make it with mkdir, or give the name of one that is there",
                self.dir.join("instances").display()
            )));
        }
        Ok(Self { dir })
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The path of a CPU's file, such as `trace_pipe_raw` or `stats`.
    #[must_use]
    pub fn cpu_file(&self, cpu: u32, file: &str) -> PathBuf {
        self.dir.join(format!("per_cpu/cpu{cpu}")).join(file)
    }

    /// The CPUs that have a buffer, in ascending order.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn cpus(&self) -> Result<Vec<u32>> {
        let dir = self.dir.join("per_cpu");
        let entries = fs::read_dir(&dir).map_err(|e| refused(&dir, &e))?;
        let mut cpus: Vec<u32> = entries
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_prefix("cpu")?
                    .parse()
                    .ok()
            })
            .collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// The content of a file in the directory.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, file: impl AsRef<Path>) -> Result<String> {
        let path = self.dir.join(file);
        File::open(&path)
            .and_then(whole)
            .map_err(|e| refused(&path, &e))
    }

    /// Writes to a file in the directory, such as `tracing_on`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn write(&self, file: impl AsRef<Path>, text: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).map_err(|e| refused(&path, &e))
    }

    /// Appends a line to a file in the directory, such as `uprobe_events`. [`write`](Self::write) would remove its other lines.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn append(&self, file: impl AsRef<Path>, line: &str) -> Result<()> {
        let path = self.dir.join(file);
        let open = File::options().append(true).open(&path);
        open.and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|e| refused(&path, &e))
    }

    /// The current layout of the sub-buffers.
    ///
    /// # Errors
    /// If this crate does not support the layout.
    pub fn page_header(&self) -> Result<PageHeader> {
        check_event_header(&self.read("events/header_event")?)?;
        PageHeader::parse(&self.read("events/header_page")?)
    }

    /// The counters in `stats` of a CPU.
    ///
    /// # Errors
    /// If the file cannot be read, or a counter is missing.
    pub fn stats(&self, cpu: u32) -> Result<Stats> {
        let text = self.read(self.cpu_file(cpu, "stats"))?;
        Stats::parse(&text)
    }
}

/// The counters of a CPU's buffer, from its file `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Unread events in the buffer.
    pub entries: u64,
    /// Events that were overwritten.
    pub overrun: u64,
    /// Events lost because nested events filled the buffer while the commit of another event was interrupted.
    pub commit_overrun: u64,
    /// Events lost because the buffer was full and in non-overwrite mode.
    pub dropped_events: u64,
    /// Events that were read.
    pub read_events: u64,
}

impl Stats {
    /// The counters after all unread events have been read.
    pub(crate) fn drained(self) -> Self {
        Self {
            entries: 0,
            read_events: self.read_events.saturating_add(self.entries),
            ..self
        }
    }

    /// Reads the text of `stats`.
    ///
    /// # Errors
    /// If a counter is missing.
    pub fn parse(text: &str) -> Result<Self> {
        let find = |name: &str| {
            let value = text.lines().find_map(|line| {
                let value = line.strip_prefix(name)?.strip_prefix(':')?;
                value.trim().parse().ok()
            });
            value.ok_or_else(|| Error::malformed("stats", text.len(), format!("no {name}")))
        };
        Ok(Self {
            entries: find("entries")?,
            overrun: find("overrun")?,
            commit_overrun: find("commit overrun")?,
            dropped_events: find("dropped events")?,
            read_events: find("read events")?,
        })
    }
}

/// Reads a file with a buffer that is large enough for one read: `header_page` and `header_event` return nothing to a second read.
fn whole(mut file: impl Read) -> io::Result<String> {
    let mut bytes = vec![0; 1 << 16];
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        bytes.resize(filled + (1 << 16), 0);
    }
    bytes.truncate(filled);
    String::from_utf8(bytes).map_err(|e| io::Error::new(ErrorKind::InvalidData, e.utf8_error()))
}

/// The content of the lockdown file; empty if securityfs is not mounted.
fn lockdown() -> String {
    fs::read_to_string(LOCKDOWN).unwrap_or_default()
}

/// The text of the error if lockdown forbids tracefs to all users; otherwise [`None`]. Only confidentiality mode includes
/// `LOCKDOWN_TRACEFS`.
fn locked(lockdown: &str) -> Option<String> {
    lockdown.contains("[confidentiality]").then(|| {
        format!(
            "the kernel is locked down ({}): boot it without lockdown=confidentiality",
            lockdown.trim()
        )
    })
}

/// The text of the error if there is no tracefs. On a kernel that was booted in lockdown, tracefs can be mounted but is empty.
fn none(lockdown: &str) -> String {
    let places = PLACES.join(" or ");
    match locked(lockdown) {
        Some(locked) => format!("no tracefs at {places}: {locked}"),
        None => format!(
            "no tracefs at {places}: mount it (mount -t tracefs nodev {}); a kernel that has none lacks CONFIG_TRACING, \
             or was booted locked down",
            PLACES[0]
        ),
    }
}

/// The error for a file of tracefs that cannot be used.
pub(crate) fn refused(path: &Path, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(ENODEV) => Error::Gone(format!(
            "{}: the kernel is removing its instance: of a copy of another buffer, all is read",
            path.display()
        )),
        _ => Error::failed(refusal(path, error, &lockdown())),
    }
}

fn refusal(path: &Path, error: &io::Error, lockdown: &str) -> String {
    let path = path.display();
    // EPERM for a file; EINVAL for the creation of an instance.
    let locked = locked(lockdown).filter(|_| matches!(error.raw_os_error(), Some(1 | 22)));
    if let Some(locked) = locked {
        return format!("{path}: {locked}");
    }
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("{path}: {error}: run this as root, or give your group the mount (mount -o remount,gid=GROUP)")
        }
        ErrorKind::NotFound => {
            format!("{path}: there is no such file: is this tracefs, and has it this CPU?")
        }
        ErrorKind::ResourceBusy => {
            format!("{path}: the kernel says that it is busy: stop what else maps, snapshots or reads this buffer")
        }
        _ => format!("{path}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A file that returns data to the first read only, like some files of the kernel.
    struct Once<'a>(&'a [u8]);

    impl Read for Once<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(out);
            self.0 = &[];
            read
        }
    }

    #[test]
    fn files_are_read_at_once() {
        let text = "field: u64 timestamp;".repeat(100);
        assert_eq!(whole(Once(text.as_bytes())).unwrap(), text);
        let long = "0123456789".repeat(50_000);
        assert_eq!(whole(long.as_bytes()).unwrap(), long);
        assert!(whole(&b"\xff"[..]).is_err());
    }

    #[test]
    fn stats() {
        let text = "entries: 1\noverrun: 2\ncommit overrun: 3\nbytes: 4\noldest event ts:  5.6\nnow ts: 7.8\n\
            dropped events: 5\nread events: 6\n";
        let stats = Stats::parse(text).unwrap();
        let expected = Stats {
            entries: 1,
            overrun: 2,
            commit_overrun: 3,
            dropped_events: 5,
            read_events: 6,
        };
        assert_eq!(stats, expected);
        for name in [
            "entries",
            "overrun",
            "commit overrun",
            "dropped events",
            "read events",
        ] {
            let other = text
                .replace(&format!("\n{name}: "), "\nx: ")
                .replace("entries: 1", name);
            assert!(Stats::parse(&other).is_err(), "{name}");
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (number, lockdown, says) in [
            (13, "", "run this as root"),
            (13, "none integrity [confidentiality]\n", "run this as root"),
            (
                1,
                "none integrity [confidentiality]\n",
                "the kernel is locked down (none integrity [confidentiality]): boot it without",
            ),
            (
                22,
                "none integrity [confidentiality]\n",
                "the kernel is locked down",
            ),
            (1, "none [integrity] confidentiality\n", "run this as root"),
            (22, "none [integrity] confidentiality\n", "Invalid argument"),
            (1, "[none] integrity confidentiality\n", "run this as root"),
            (2, "", "no such file"),
            (16, "", "stop what else maps"),
            (5, "", "Input/output error"),
        ] {
            let error = io::Error::from_raw_os_error(number);
            let text = refusal(Path::new("/a"), &error, lockdown);
            assert!(text.starts_with("/a: ") && text.contains(says), "{text}");
        }
    }

    #[test]
    fn an_instance_that_is_removed_is_gone() {
        let error = refused(Path::new("/a"), &io::Error::from_raw_os_error(ENODEV));
        assert!(matches!(error, Error::Gone(_)), "{error}");
        let error = refused(Path::new("/a"), &io::Error::from_raw_os_error(5));
        assert!(matches!(error, Error::Failed(_)), "{error}");
    }

    #[test]
    fn no_tracefs_says_what_to_do() {
        for (lockdown, says) in [
            ("", "mount it (mount -t tracefs"),
            ("none [integrity] confidentiality\n", "mount it"),
            (
                "none integrity [confidentiality]\n",
                "the kernel is locked down (none integrity [confidentiality])",
            ),
        ] {
            let text = none(lockdown);
            assert!(
                text.starts_with("no tracefs at /sys/kernel/tracing or ") && text.contains(says),
                "{text}"
            );
        }
    }

    #[test]
    fn instances_stay_within_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("instances/a")).unwrap();
        let top = Tracefs::at(dir.path());
        assert_eq!(
            top.instance("a").unwrap().path(),
            dir.path().join("instances/a")
        );
        for name in ["", "b", "..", ".", "a/../a", "/"] {
            assert!(top.instance(name).is_err(), "{name}");
        }
    }

    #[test]
    fn cpus_are_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cpu10", "cpu2", "cpu0", "cpux", "other"] {
            fs::create_dir_all(dir.path().join("per_cpu").join(name)).unwrap();
        }
        assert_eq!(Tracefs::at(dir.path()).cpus().unwrap(), [0, 2, 10]);
    }
}
