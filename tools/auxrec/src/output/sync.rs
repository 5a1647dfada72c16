// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Brings a file to its disk.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};

/// Waits until all of a file is on its disk.
pub(crate) fn to_disk(file: &File, path: &Path) -> Result<()> {
    // A pipe or a device cannot be synchronised: that is no error.
    match rustix::fs::fdatasync(file) {
        Err(e) if e != rustix::io::Errno::INVAL && e != rustix::io::Errno::ROFS => Err(
            Error::failed(format!("cannot write {} to its disk: {e}", path.display())),
        ),
        _ => Ok(()),
    }
}

/// Synchronises a file with its disk at intervals. A thread of its own does so, as a disk is slow.
pub(super) struct Sync {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Sync {
    /// Starts the thread. With `said`, it reports the length of the file behind this text.
    pub(super) fn start(file: &File, period: Duration, said: Option<String>) -> Self {
        let file = if period.is_zero() {
            None
        } else {
            file.try_clone().ok()
        };
        let (stop, stopped) = mpsc::channel();
        let thread = file.map(|file| {
            thread::spawn(move || {
                while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                    // Errors are ignored: the writer of the file reports a full disk, and a pipe has no disk.
                    // The length is only needed for the message.
                    let len = said
                        .as_ref()
                        .map(|_| file.metadata().map_or(0, |meta| meta.len()));
                    if let (Ok(()), Some(name), Some(len)) = (file.sync_data(), &said, len) {
                        eprintln!("auxrec: {name}{len} bytes are on the disk");
                    }
                }
                let _ = file.sync_all();
            })
        });
        Self {
            stop: Some(stop),
            thread,
        }
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
