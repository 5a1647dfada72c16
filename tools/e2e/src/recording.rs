// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the recorder, and checks the recorded file.

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

/// A recorder that runs longer than this has hung.
const TIMEOUT: Duration = Duration::from_secs(3 * PATIENCE.as_secs());

/// The counter of bytes that found no space in a ring.
const FULL: &str = "lost_no_space";

/// How long a slow reader waits at most for its unit. After the end of the workload the unit may be silent.
const SILENT: Duration = Duration::from_secs(2);

/// How fast the recorder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// As fast as possible.
    KeepsUp,
    /// The recorder is stopped, again and again, until a unit has found its ring full.
    Slow,
}

/// How a recorder ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status. If a signal ended it, 128 plus the signal's number: perf ends itself by a signal.
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

/// Runs a command that must succeed. Returns its standard output.
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

/// Runs a command of auxrec, which may fail. Returns its exit status and all output.
pub fn outcome(command: &mut Command) -> Result<(Option<i32>, String)> {
    let output = run(command)?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

/// Runs `auxrec recover --in-place`, which must succeed. Returns its output.
pub fn recover(path: &Path) -> Result<String> {
    let (status, text) = outcome(auxrec(["recover", "--in-place"]).arg(path))?;
    ensure!(
        status == Some(0),
        "auxrec recover {}: exit status {status:?}: {text}",
        path.display()
    );
    Ok(text)
}

/// A running recorder.
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

    /// Starts another program, `perf`, in the same way.
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

    /// Fails if the recorder has ended.
    pub fn runs(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot wait for auxrec")? {
            Some(status) => bail!("auxrec ended with {status}"),
            None => Ok(()),
        }
    }

    /// Waits for its end, without a time limit.
    pub fn ended(mut self) -> Result<ExitStatus> {
        self.child.wait().context("cannot wait for auxrec")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a pid of 0")?, signal).context("cannot signal auxrec")
    }

    /// Kills it by SIGKILL, so that it cannot clean up.
    pub fn kill(self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.ended().map(drop)
    }

    /// Waits for its end, up to a time limit. Meanwhile, `reader` may stop it again and again.
    pub fn wait(mut self, reader: Reader) -> Result<Ended> {
        let end = Instant::now() + TIMEOUT;
        let mut errors = self.errors()?;
        // A thread reads the messages, so that a recorder that writes many of them is not blocked.
        let errors = thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });

        let mut full = match reader {
            Reader::KeepsUp => 0,
            Reader::Slow => module::total(FULL)?,
        };
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
                Reader::Slow => self.slow_down(&mut full)?,
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

    /// Stops the recorder until a unit has found its ring full. `full` is the value of [`FULL`] when the recorder went on last.
    fn slow_down(&mut self, full: &mut u64) -> Result<()> {
        // A commit shows that the event is on, unless the ring has become full since.
        let commits = module::total("commits")?;
        until(|| Ok(self.child.try_wait()?.is_some() || module::total("commits")? > commits))?;
        if self.child.try_wait()?.is_none() && module::total(FULL)? == *full {
            self.signal(Signal::STOP)?;
            until(|| Ok(module::total(FULL)? > *full))?;
            self.signal(Signal::CONT)?;
        }
        *full = module::total(FULL)?;
        Ok(())
    }
}

/// Waits until `is_so`, or for [`SILENT`].
fn until(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + SILENT;
    while !is_so()? && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Drop for Recorder {
    /// Kills the recorder if a case fails half-way: the next case would find the PMU busy.
    fn drop(&mut self) {
        // If it has ended, both calls have no effect.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file in memory that is removed at the end of the case.
pub struct TraceFile(PathBuf);

impl TraceFile {
    /// A file whose name no other case uses.
    pub fn new(case: &str) -> Self {
        Self(Path::new("/tmp").join(format!("{}.data", case.replace([' ', '/'], "-"))))
    }

    /// A file in this directory.
    pub fn within(directory: &Path) -> Self {
        Self(directory.join("perf.data"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = std::fs::remove_file(&self.0);
        // The recorder renames an existing file to this name.
        let mut old = self.0.clone().into_os_string();
        old.push(".old");
        let _ = std::fs::remove_file(old);
    }
}

/// A tmpfs of a limited size, which is unmounted at the end of the case.
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one at a path that no other case uses. `size` is its size, such as `1m`.
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

    /// The directory where it is mounted.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // This fails if a process still has a file open there; then the case has failed before.
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

/// Waits until the module `pattern` has no references, so that no event and no ring is left.
pub fn released() -> Result<()> {
    wait_for("the end of all references to pattern", || {
        Ok(module::references("pattern")? == 0)
    })
}

/// A pseudo-random generator of numbers below its argument, with a fixed seed: the generator of Numerical Recipes.
pub fn random() -> impl FnMut(u64) -> u64 {
    let mut seed: u32 = 1;
    move |below| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(seed >> 8) % below
    }
}
