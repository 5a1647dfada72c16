// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the initramfs of a guest, a cpio archive. Reference: the kernel's `driver-api/early-userspace/buffer-format.rst`.

use crate::error::{Error, OnFile, Result};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// A cpio archive that is being written. The folders of an added file are added automatically.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// An archive with the console device. The kernel opens the console for init before init could create the device.
    #[must_use]
    pub fn new() -> Self {
        let mut archive = Self::default();
        archive.folder("dev");
        archive.entry("dev/console", CHARACTER_DEVICE, (5, 1), &[]);
        archive
    }

    /// Adds a folder.
    pub fn folder(&mut self, path: &str) {
        if path.is_empty() || self.folders.contains(path) {
            return;
        }
        self.parents(path);
        self.folders.insert(path.to_owned());
        self.entry(path, DIRECTORY, (0, 0), &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, FILE, (0, 0), content);
    }

    /// Adds an executable file.
    pub fn program(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, PROGRAM, (0, 0), content);
    }

    /// Adds a program from the disk.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is too large for the format.
    pub fn program_from(&mut self, path: &str, source: &Path) -> Result<()> {
        let content = std::fs::read(source).on("read", source)?;
        if u32::try_from(content.len()).is_err() {
            return Err(Error::Other(format!(
                "{} is too large for an initramfs",
                source.display()
            )));
        }
        self.program(path, &content);
        Ok(())
    }

    /// Completes the archive and returns its bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.inode += 1;
        let mut header = String::from("070701");
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // inode, mode, uid, gid, links, time, size, dev (major, minor), rdev (major, minor), length of name, checksum
        for field in [
            self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ] {
            let _ = write!(header, "{field:08x}");
        }
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// cpio itself reads what we write.
    #[test]
    fn cpio_unpacks_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::default();
        archive.program("a/b/run", b"#!/bin/sh\n");
        archive.file("a/text", b"12345");
        archive.folder("a/b");
        let mut child = Command::new("cpio")
            .args(["-i", "--quiet"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(&archive.finish())
            .unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::read(dir.path().join("a/text")).unwrap(), b"12345");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(dir.path().join("a/b/run"))
                .unwrap()
                .permissions(),
        );
        assert_eq!(mode & 0o777, 0o755);
    }
}
