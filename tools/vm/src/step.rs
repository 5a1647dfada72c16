// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs commands. Their output goes to a log. The user sees one line with the elapsed time.

use crate::error::{Error, OnFile, Result};
use crate::parallel::lock;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The steps that have ended since the last call of [`ended`], each with its duration.
static ENDED: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());

/// Takes the steps that have ended since the last call, each with its duration, in the order in which they ended.
#[must_use]
pub fn ended() -> Vec<(String, Duration)> {
    std::mem::take(&mut lock(&ENDED))
}

/// A progress line that counts the seconds while a long step runs.
pub struct Progress {
    what: String,
    start: Instant,
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Prints that the step `what` begins. A terminal shows the elapsed time in place; elsewhere a new line is printed every 30 seconds.
    #[must_use]
    pub fn begin(what: &str) -> Self {
        let start = Instant::now();
        let (stop, stopped) = channel::<()>();
        if !std::io::stderr().is_terminal() {
            crate::err!("[     0 s] {what} …");
        }
        let text = what.to_owned();
        let ticker = std::thread::spawn(move || {
            let tty = std::io::stderr().is_terminal();
            let period = Duration::from_secs(if tty { 1 } else { 30 });
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let seconds = start.elapsed().as_secs();
                if tty {
                    let _ = write!(std::io::stderr(), "\r[{seconds:>6} s] {text} … ");
                } else {
                    crate::err!("[{seconds:>6} s] {text} …");
                }
            }
        });
        Self {
            what: what.to_owned(),
            start,
            stop: Some(stop),
            ticker: Some(ticker),
        }
    }

    /// Prints that the step has ended, and its outcome.
    pub fn end(mut self, outcome: &str) {
        self.halt();
        let clear = if std::io::stderr().is_terminal() {
            "\r\x1b[K"
        } else {
            ""
        };
        crate::err!(
            "{clear}[{:>6.1} s] {}: {outcome}",
            self.start.elapsed().as_secs_f64(),
            self.what
        );
        let mut ended = lock(&ENDED);
        ended.push((self.what.clone(), self.start.elapsed()));
    }

    fn halt(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.halt();
    }
}

/// A log that commands share.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
}

impl Log {
    /// Creates an empty log, and its folder.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).on("make", folder)?;
        }
        File::create(path).on("write", path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// The path of the log.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the log, or an empty string if the file cannot be read.
    #[must_use]
    pub fn text(&self) -> String {
        std::fs::read(&self.path)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    /// Runs a command and returns its exit status, whether it has succeeded or failed.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn status(&self, command: &mut Command) -> Result<ExitStatus> {
        let mut out = File::options()
            .append(true)
            .create(true)
            .open(&self.path)
            .on("write", &self.path)?;
        let _ = writeln!(out, "$ {command:?}");
        let err = out.try_clone().on("write", &self.path)?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .status()
            .map_err(|source| Error::Spawn {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })
    }

    /// Runs a command that must succeed.
    ///
    /// # Errors
    ///
    /// When the command fails. The error names the cause and the remedy, as far as the log shows them.
    pub fn run(&self, what: &str, command: &mut Command) -> Result<()> {
        if self.status(command)?.success() {
            return Ok(());
        }
        Err(Error::Step {
            what: what.to_owned(),
            why: explain(&self.text()),
            log: self.path.clone(),
        })
    }

    /// Runs a command that must succeed, and returns its standard output.
    ///
    /// # Errors
    ///
    /// As [`Log::run`].
    pub fn output(&self, what: &str, command: &mut Command) -> Result<String> {
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|source| Error::Spawn {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })?;
        let mut log = File::options()
            .append(true)
            .create(true)
            .open(&self.path)
            .on("write", &self.path)?;
        let _ = writeln!(log, "$ {command:?}");
        let _ = log.write_all(&output.stderr);
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let _ = log.write_all(&output.stdout);
        Err(Error::Step {
            what: what.to_owned(),
            why: explain(&self.text()),
            log: self.path.clone(),
        })
    }
}

/// The cause and the remedy in one clause, from the log of a failed command.
#[must_use]
pub fn explain(log: &str) -> String {
    const KNOWN: &[(&[&str], &str)] = &[
        (
            &["No space left on device", "Disk quota exceeded"],
            "the disk is full; free some space, or set XDG_CACHE_HOME to a larger disk",
        ),
        (
            &["Unable to locate package", "404  Not Found", "was not found", "has no installation candidate"],
            "the archive no longer has a package; run `make update` to take what it has now, or choose with KVER=",
        ),
        (
            &["Temporary failure resolving", "Could not resolve", "Failed to fetch", "Unable to connect", "Could not connect",
              "Network is unreachable", "failed to download", "spurious network error", "Connection timed out"],
            "the network does not answer; check it and the proxy settings, or set AUXPMU_MIRROR to a mirror that does",
        ),
        (&["Cannot allocate memory", "signal: 9, SIGKILL", "Killed"], "there was not enough memory"),
    ];
    for (texts, why) in KNOWN {
        if texts.iter().any(|t| log.contains(t)) {
            return (*why).to_owned();
        }
    }
    // make's last lines only repeat that something has failed.
    let lines = || {
        log.lines()
            .rev()
            .filter(|l| !l.trim().is_empty() && !l.starts_with("make") && !l.starts_with("$ "))
    };
    let reported = lines().find(|l| {
        ["error", "Error", "E: ", "can't", "cannot", "***"]
            .iter()
            .any(|t| l.contains(t))
    });
    match reported.or_else(|| lines().next()) {
        Some(line) => format!("\"{}\"", line.trim().trim_end_matches('.')),
        None => "it said nothing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named() {
        let cases = [
            ("xz: Write error: No space left on device\n", "disk is full"),
            (
                "E: Unable to locate package linux-source-9.9\n",
                "make update",
            ),
            (
                "E: Failed to fetch http://x/y  404  Not Found\n",
                "make update",
            ),
            (
                "E: Failed to fetch http://x/y  Could not connect to x:80\n",
                "network",
            ),
            (
                "make: Entering\nfoo.c:1: error: bad\nmake: *** [x] Fehler\n",
                "foo.c:1: error: bad",
            ),
            ("", "said nothing"),
        ];
        for (log, want) in cases {
            assert!(explain(log).contains(want), "{log:?}: {}", explain(log));
        }
    }

    #[test]
    fn a_failing_command_names_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::create(&dir.path().join("a/b.log")).unwrap();
        let error = log
            .run(
                "the thing",
                Command::new("sh").args(["-c", "echo oh error no; exit 3"]),
            )
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("the thing failed")
                && text.contains("oh error no")
                && text.contains("b.log"),
            "{text}"
        );
        assert_eq!(
            log.output("x", Command::new("echo").arg("hi")).unwrap(),
            "hi\n"
        );
        assert!(log.run("x", &mut Command::new("/nonexistent")).is_err());
    }
}
