// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command `steptrace`.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use nix::unistd::Pid;
use steptrace::tracer::{Ended, Tracer};
use steptrace::{compare, log, tracer};

/// Logs every instruction that a program executes, by ptrace.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Step a program and write the log; ends as the program does
    Record {
        /// The log
        #[arg(short, long)]
        output: PathBuf,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
    /// Say whether a decoder's output is what was executed
    Compare {
        /// The log
        log: PathBuf,
        /// What `perf script --itrace=i1i -F tid,ip` or ptwalk printed
        decoded: PathBuf,
    },
    /// Print a log: thread and address
    Print {
        /// The log
        log: PathBuf,
    },
    /// The part of `record` that becomes the program
    #[command(hide = true)]
    Become {
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
}

fn main() -> ExitCode {
    run(Args::parse()).unwrap_or_else(|error| {
        eprintln!("steptrace: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        What::Record { output, program } => record(&output, &program),
        What::Become { program } => {
            tracer::become_traced(&program)?;
            Ok(ExitCode::FAILURE)
        }
        What::Compare { log, decoded } => {
            let outcome =
                compare::compare(&log::read(open(&log)?)?, compare::read(open(&decoded)?)?);
            print!("{outcome}");
            Ok(if outcome.is_equal() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        What::Print { log } => {
            for (tid, ips) in log::read(open(&log)?)? {
                for ip in ips {
                    println!("{tid} {ip:x}");
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(BufReader::new(file))
}

fn record(output: &Path, program: &[String]) -> Result<ExitCode> {
    let file =
        File::create(output).with_context(|| format!("cannot write {}", output.display()))?;
    let log = log::Writer::new(BufWriter::new(file)).context("cannot write the log")?;
    let child = Command::new("/proc/self/exe")
        .args(["become", "--"])
        .args(program)
        .spawn()
        .context("cannot start the program")?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (ended, count) = Tracer::new(log).run(pid)?;

    eprintln!("steptrace: {count} instructions");
    Ok(match ended {
        Ended::Status(status) => u8::try_from(status & 0xff)?.into(),
        // As in a shell.
        Ended::Signal(signal) => u8::try_from(128 + signal)?.into(),
    })
}
