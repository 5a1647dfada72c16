// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of cases that run in other processes.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{ensure, Context, Result};

use crate::rig::{unpin, work};

/// What another process does.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which part.
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Works.
    Work {
        /// So many times two milliseconds.
        times: u32,
    },
    /// Does what it is told on its standard input.
    Obey,
    /// Opens events of a PMU as an ordinary user, and prints how that ended: `cpu` or `task`, and the number of the error.
    Open {
        /// `perf_event_attr.type`.
        kind: u32,
        /// Which CPU.
        cpu: i32,
    },
}

/// Runs a part.
pub fn run(args: &Args) -> Result<ExitCode> {
    match args.what {
        What::Work { times } => {
            unpin()?;
            for _ in 0..times {
                work();
            }
        }
        What::Obey => return crate::fuzz::obey(),
        What::Open { kind, cpu } => open(kind, cpu),
    }
    Ok(ExitCode::SUCCESS)
}

fn open(kind: u32, cpu: i32) {
    use perfdata::{Attr, Flags};
    let attr = |flags| Attr {
        kind,
        flags: Flags::DISABLED | flags,
        ..Attr::default()
    };
    let table = [
        ("cpu", -1, cpu, Flags::empty()),
        ("task", 0, -1, Flags::empty()),
        ("user", 0, -1, Flags::EXCLUDE_KERNEL),
    ];
    for (what, pid, cpu, flags) in table {
        let opened = auxrec::sys::Event::open(&attr(flags), pid, cpu);
        let number = opened.err().and_then(|error| error.raw_os_error());
        println!("{what} {}", number.unwrap_or(0));
    }
}

/// Runs this program again, for a part.
pub fn command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("part").args(args);
    Ok(command)
}

/// Runs a part as the user `nobody`. Returns what it printed.
pub fn as_nobody(args: &[&str]) -> Result<String> {
    let mut command = command(args)?;
    let output = command
        .uid(65534)
        .gid(65534)
        .output()
        .context("running a part")?;
    ensure!(
        output.status.success(),
        "a part ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
