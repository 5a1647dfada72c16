// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A child process that events can trace. It takes commands from its standard input.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, ExitCode, Stdio};

use anyhow::{ensure, Context, Result};
use rustix::process::Pid;

use crate::part::command;
use crate::rig::work;

/// The process, as its parent sees it. Dropping this kills the process.
pub struct Child {
    process: std::process::Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child.
    pub fn begin() -> Result<Self> {
        let mut process = command(&["obey"])?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("beginning a child")?;
        let orders = process.stdin.take().context("its input")?;
        let answers = BufReader::new(process.stdout.take().context("its output")?);
        let mut child = Self {
            process,
            orders,
            answers,
        };
        child.answers("ready")?;
        Ok(child)
    }

    /// Its process id.
    pub fn pid(&self) -> Result<Pid> {
        let number = i32::try_from(self.process.id())?;
        Pid::from_raw(number).context("the number of a child")
    }

    /// Sends a command to the child, and waits until it is done.
    pub fn tell(&mut self, what: &str) -> Result<()> {
        writeln!(self.orders, "{what}").context("telling a child")?;
        self.answers("ready")
    }

    fn answers(&mut self, right: &str) -> Result<()> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .context("hearing a child")?;
        ensure!(line.trim_end() == right, "a child says {line:?}");
        Ok(())
    }

    /// Lets the child exit, and waits for that.
    pub fn ends(mut self) -> Result<()> {
        writeln!(self.orders, "exit").context("telling a child")?;
        let status = self.process.wait().context("waiting for a child")?;
        ensure!(status.success(), "a child ends with {status}");
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs in the child: executes the commands.
pub fn obey() -> Result<ExitCode> {
    println!("ready");
    for line in std::io::stdin().lines() {
        match line.context("hearing an order")?.as_str() {
            "work" => work(),
            "exec" => {
                let error = command(&["obey"])?.exec();
                return Err(error).context("executing this program again");
            }
            _ => return Ok(ExitCode::SUCCESS),
        }
        println!("ready");
    }
    Ok(ExitCode::SUCCESS)
}
