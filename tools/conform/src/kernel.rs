// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel's warnings, and its version.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// Follows the kernel's log.
pub struct Watch(Option<File>);

/// What a kernel warning contains.
const COMPLAINTS: [&str; 8] = [
    "WARNING:",
    "BUG:",
    "Oops:",
    "INFO: task",
    "INFO: rcu",
    "unable to handle",
    "general protection",
    "UBSAN:",
];

/// A report of a data race by KCSAN, which does not count. Its first line does not show whether the driver takes part, and the kernel has
/// races of its own.
const RACE: &str = "BUG: KCSAN:";

fn is_complaint(line: &str) -> bool {
    !line.contains(RACE) && COMPLAINTS.iter().any(|text| line.contains(text))
}

impl Watch {
    /// Follows the log from now on. Without permission to read it there are no warnings.
    pub fn begin() -> Self {
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut options = File::options();
        let file = options.read(true).custom_flags(nonblock).open("/dev/kmsg");
        let mut watch = Self(file.ok());
        watch.complaints();
        watch
    }

    /// The first lines of the warnings since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        let Some(file) = &mut self.0 else {
            return found;
        };
        let mut record = [0; 8192];
        // Each read returns a record. If the record was overwritten, the read fails, and the next read returns the record after it.
        loop {
            match file.read(&mut record) {
                Ok(0) => return found,
                Ok(len) => {
                    let text = String::from_utf8_lossy(record.get(..len).unwrap_or_default());
                    let said = text.split_once(';').map_or(&*text, |(_, said)| said);
                    let line = said.lines().next().unwrap_or_default();
                    if is_complaint(line) {
                        found.push(line.to_owned());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(_) => return found,
            }
        }
    }
}

/// Version and patch level, as in 6.13.
pub fn version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let number = |text: &str| {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text.get(..digits).and_then(|digits| digits.parse().ok())
    };
    let mut numbers = release.split('.').map(|part| number(part).unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::is_complaint;

    #[test]
    fn table() {
        let cases = [
            (
                "WARNING: kernel/events/core.c:6978 at perf_mmap_aux+0x1/0x2",
                true,
            ),
            ("BUG: KASAN: slab-use-after-free in f+0x1/0x2", true),
            ("BUG: KCSAN: data-race in capable / rcu_core", false),
            ("INFO: task x:1 blocked for more than 120 seconds.", true),
            ("smpboot: CPU 1 is now offline", false),
        ];
        for (line, expected) in cases {
            assert_eq!(is_complaint(line), expected, "{line}");
        }
    }
}
