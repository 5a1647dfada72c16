// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A run of the recorder, and the check of what it recorded.

mod growing;
mod seen;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};

use crate::module;
use crate::wait::{wait_for, PATIENCE};

pub use growing::{trace_in, wait_for_trace, Growing};
pub use seen::Seen;

pub const PAGE: u64 = 4096;

/// A recorder that runs for so long has hung.
const TIMEOUT: Duration = Duration::from_secs(3 * PATIENCE.as_secs());

/// How fast the recorder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// As fast as it can.
    KeepsUp,
    /// It is stopped most of the time, so that the ring fills.
    Slow,
}

/// What a recorder said and did.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; 128 and the number of the signal that ended it, as that perf sends itself.
    pub status: i32,
    /// What it wrote to standard error.
    pub errors: String,
}

/// A command of auxrec.
pub fn auxrec<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new("auxrec");
    command.args(arguments);
    command
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Result<Output> {
    command
        .env("HOME", "/tmp")
        .output()
        .with_context(|| format!("cannot start {command:?}"))
}

/// Runs a command that must succeed; gives what it wrote to standard output.
pub fn said(command: &mut Command) -> Result<String> {
    let output = run(command)?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Exit status and all output of a command of auxrec, which may fail.
pub fn outcome(command: &mut Command) -> Result<(Option<i32>, String)> {
    let output = run(command)?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

/// Runs `auxrec recover --in-place`, which must succeed; gives what it says.
pub fn recover(path: &Path) -> Result<String> {
    let (status, text) = outcome(auxrec(["recover", "--in-place"]).arg(path))?;
    ensure!(
        status == Some(0),
        "auxrec recover {}: exit status {status:?}: {text}",
        path.display()
    );
    Ok(text)
}

/// A recorder that runs.
pub struct Recorder {
    child: Child,
}

impl Recorder {
    /// Starts a command.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command
            .env("HOME", "/tmp")
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child })
    }

    /// Starts `auxrec record` with these arguments and `-o FILE`.
    pub fn start(file: &Path, arguments: &[String]) -> Result<Self> {
        Self::of("auxrec", file, arguments)
    }

    /// The same with another program, `perf`.
    pub fn of(program: &str, file: &Path, arguments: &[String]) -> Result<Self> {
        Self::spawn(
            Command::new(program)
                .arg("record")
                .arg("-o")
                .arg(file)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        )
    }

    /// Its standard output, if it was started with a pipe.
    pub fn output(&mut self) -> Result<&mut ChildStdout> {
        self.child.stdout.as_mut().context("no standard output")
    }

    /// Its standard error, if it was started with a pipe.
    pub fn errors(&mut self) -> Result<ChildStderr> {
        self.child.stderr.take().context("no standard error")
    }

    /// Fails if it has ended.
    pub fn runs(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot wait for auxrec")? {
            Some(status) => bail!("auxrec ended with {status}"),
            None => Ok(()),
        }
    }

    /// Waits for its end, however long that takes.
    pub fn ended(mut self) -> Result<ExitStatus> {
        self.child.wait().context("cannot wait for auxrec")
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a pid of 0")?, signal).context("cannot signal auxrec")
    }

    /// Kills it, as nothing else ends a program at once.
    pub fn kill(self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.ended().map(drop)
    }

    /// Waits for its end.
    pub fn wait(mut self, reader: Reader) -> Result<Ended> {
        let end = Instant::now() + TIMEOUT;
        let mut errors = self.errors()?;
        // Read as it comes, so that a recorder with much to say does not wait for us.
        let errors = thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });

        let status = loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for auxrec")? {
                break status;
            }
            if Instant::now() > end {
                self.signal(Signal::CONT)?;
                self.signal(Signal::KILL)?;
                self.child.wait()?;
                bail!("auxrec did not end in {} s", TIMEOUT.as_secs());
            }
            match reader {
                Reader::KeepsUp => thread::sleep(Duration::from_millis(5)),
                Reader::Slow => {
                    self.signal(Signal::STOP)?;
                    thread::sleep(Duration::from_millis(120));
                    self.signal(Signal::CONT)?;
                    thread::sleep(Duration::from_millis(40));
                }
            }
        };
        let errors = errors
            .join()
            .map_err(|_| anyhow!("the reader of standard error died"))??;

        Ok(Ended {
            status: status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal))
                .with_context(|| format!("auxrec was ended by {status}: {errors}"))?,
            errors,
        })
    }
}

impl Drop for Recorder {
    /// A case that fails in the middle leaves no recorder to the next one, which would find the PMU taken.
    fn drop(&mut self) {
        // Where it has ended, neither does anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file in memory that goes when the case is over.
pub struct TraceFile(PathBuf);

impl TraceFile {
    /// A name that no other case has.
    pub fn new(case: &str) -> Self {
        Self(Path::new("/tmp").join(format!("{}.data", case.replace([' ', '/'], "-"))))
    }

    /// In this directory.
    pub fn within(directory: &Path) -> Self {
        Self(directory.join("perf.data"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // They may never have been made.
        let _ = std::fs::remove_file(&self.0);
        // What a recorder found under this name.
        let mut old = self.0.clone().into_os_string();
        old.push(".old");
        let _ = std::fs::remove_file(old);
    }
}

/// A disk in memory, with room for so much; it goes when the case is over.
pub struct Disk(PathBuf);

impl Disk {
    /// A name that no other case has, and what it holds, as `1m`.
    pub fn new(case: &str, size: &str) -> Result<Self> {
        let directory = Path::new("/tmp").join(case.replace([' ', ',', '/'], "-"));
        std::fs::create_dir_all(&directory)?;
        let disk = Self(directory);
        disk.mount(&format!("size={size}"))?;
        Ok(disk)
    }

    /// Makes it larger.
    pub fn grow(&self, size: &str) -> Result<()> {
        self.mount(&format!("remount,size={size}"))
    }

    fn mount(&self, options: &str) -> Result<()> {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "disk"])
            .arg(&self.0)
            .status()
            .context("cannot start mount")?;
        ensure!(status.success(), "mount -o {options}: {status}");
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that still had a file there would have failed the case.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// `-e` and `-m` for the PMU under test.
pub fn event(terms: &str, ring: u64) -> Vec<String> {
    [
        "-e",
        &format!("pattern/{terms}/"),
        "-m",
        &format!("64,{ring}"),
    ]
    .map(String::from)
    .to_vec()
}

/// Waits until the module `pattern` has no references: no event and no ring is left.
pub fn released() -> Result<()> {
    wait_for("the end of all references to pattern", || {
        Ok(module::references("pattern")? == 0)
    })
}

/// Always the same numbers below others, of no pattern: the generator of Numerical Recipes.
pub fn random() -> impl FnMut(u64) -> u64 {
    let mut seed: u32 = 1;
    move |below| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(seed >> 8) % below
    }
}
