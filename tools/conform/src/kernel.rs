// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the kernel says of itself: its complaints, and its version.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// Follows the kernel's log.
pub struct Watch(Option<File>);

/// What begins a complaint.
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

impl Watch {
    /// From now on; without permission it sees nothing.
    pub fn begin() -> Self {
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut options = File::options();
        let file = options.read(true).custom_flags(nonblock).open("/dev/kmsg");
        let mut watch = Self(file.ok());
        watch.complaints();
        watch
    }

    /// Lines that are complaints, since this was asked last.
    pub fn complaints(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        let Some(file) = &mut self.0 else {
            return found;
        };
        let mut record = [0; 8192];
        // A record each; one that was overwritten is an error, and the next is behind it.
        loop {
            match file.read(&mut record) {
                Ok(0) => return found,
                Ok(len) => {
                    let text = String::from_utf8_lossy(record.get(..len).unwrap_or_default());
                    let said = text.split_once(';').map_or(&*text, |(_, said)| said);
                    let line = said.lines().next().unwrap_or_default();
                    if COMPLAINTS.iter().any(|begin| line.contains(begin)) {
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
