// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Synchronises a file with its disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use auxview::file::{bring, cannot_write};

use crate::error::Result;
use crate::message::say;

/// A file that can be synchronised with its disk.
pub(super) trait Disk: Send + 'static {
    /// Waits until all of it is on the disk. A pipe or a device has none: that is no error.
    fn bring(&self) -> io::Result<()>;
    /// Its length.
    fn length(&self) -> u64;
}

impl Disk for File {
    fn bring(&self) -> io::Result<()> {
        bring(self)
    }

    fn length(&self) -> u64 {
        self.metadata().map_or(0, |meta| meta.len())
    }
}

/// Synchronises a file with its disk at intervals. A thread of its own does so, as a disk is slow. It ends with the first error:
/// the kernel reports one only once, and a later call would succeed.
pub(super) struct Sync {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Sync {
    /// Starts the thread, unless `period` is zero. With `said`, it reports the length of the file behind this text.
    pub(super) fn start(
        file: impl Disk,
        path: &Path,
        period: Duration,
        said: Option<String>,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let path = path.to_owned();
        let run = move || loop {
            let last = stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout);
            let len = file.length();
            file.bring().map_err(|e| cannot_write(&path, &e))?;
            if last {
                return Ok(());
            }
            if let Some(name) = &said {
                say(format_args!("{name}{len} bytes are on the disk"));
            }
        };
        Self {
            stop: Some(stop),
            thread: (!period.is_zero()).then(|| thread::spawn(run)),
        }
    }

    /// Whether all went well so far.
    ///
    /// # Errors
    /// The error that the disk reported. It is returned once.
    pub(super) fn check(&mut self) -> Result<()> {
        match &self.thread {
            Some(thread) if thread.is_finished() => self.stop(),
            _ => Ok(()),
        }
    }

    /// Synchronises the file for the last time.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(super) fn stop(&mut self) -> Result<()> {
        self.stop = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            // Its panic was reported.
            None | Some(Err(_)) => Ok(()),
        }
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        // A caller that needs the error has called `stop`.
        let _ = self.stop();
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    use auxview::file::to_disk;
    use rustix::io::Errno;

    use super::*;

    /// A disk that fails at the call with this number, and only then.
    #[derive(Clone)]
    pub struct Bad(u32, Arc<AtomicU32>);

    impl Bad {
        pub fn at(call: u32) -> Self {
            Self(call, Arc::default())
        }

        /// Calls `check` until the failure has been reported. Returns its error.
        pub fn reported(&self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
            // After the failure there are no calls.
            while self.1.load(Ordering::Relaxed) <= self.0 + 1 {
                check()?;
                thread::yield_now();
            }
            Ok(())
        }
    }

    impl Disk for Bad {
        fn bring(&self) -> io::Result<()> {
            if self.1.fetch_add(1, Ordering::Relaxed) + 1 == self.0 {
                return Err(Errno::IO.into());
            }
            Ok(())
        }

        fn length(&self) -> u64 {
            0
        }
    }

    fn is_named(result: Result<()>) {
        let says = result.unwrap_err().to_string();
        let want = "cannot write a/file to its disk: Input/output error";
        assert!(says.starts_with(want), "{says}");
    }

    /// The kernel reports an error of the disk once. It is not lost, whichever call returns it.
    #[test]
    fn an_error_of_the_disk_is_reported() {
        let path = Path::new("a/file");
        for call in [1, 3] {
            let bad = Bad::at(call);
            let mut sync = Sync::start(bad.clone(), path, Duration::from_millis(1), None);
            is_named(bad.reported(|| sync.check()));
            sync.check().unwrap();
            sync.stop().unwrap();
        }
        // The last call, when the file is finished.
        let hour = Duration::from_secs(3600);
        is_named(Sync::start(Bad::at(1), path, hour, None).stop());
        Sync::start(Bad::at(2), path, hour, None).stop().unwrap();
        let never = Sync::start(Bad::at(1), path, Duration::ZERO, None).stop();
        never.unwrap();
        // A pipe has no disk.
        let (_read, write) = rustix::pipe::pipe().unwrap();
        to_disk(&File::from(write), path).unwrap();
    }
}
