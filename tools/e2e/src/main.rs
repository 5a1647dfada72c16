// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the end-to-end cases in a guest: the real recorder on the real drivers in the real kernel.
//!
//! The table of all cases is in [`cases`]. The check of a recording is exact: the driver counts the bytes that it generates, and every
//! packet names its bytes of the stream. So each byte that a file lacks must be reported as lost.

mod attack;
mod bench;
mod beside;
mod cases;
mod device;
mod events;
mod hostile;
mod hotplug;
mod ktap;
mod matrix;
mod model;
mod module;
mod pattern;
mod recorder;
mod recording;
mod ring;
mod soft_pt;
mod stream;
mod wait;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Runs the end-to-end cases of auxpmu, as root in a guest, and reports in KTAP.
#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<What>,
    /// Run a part of the cases, such as 1/2: each second one, from the first.
    #[arg(long)]
    part: Option<Part>,
    /// Run only cases whose names contain one of these.
    filters: Vec<String>,
}

/// One of several parts of the cases.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: usize,
    of: usize,
}

impl std::str::FromStr for Part {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            let (number, of) = (number.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&number).then_some(Self { number, of })
        });
        numbers.ok_or("a part is such as 1/2")
    }
}

#[derive(Subcommand, Debug)]
enum What {
    /// Print the names of the cases.
    List,
    /// The part of a hostile case that is another process.
    #[command(hide = true)]
    Attack(hostile::children::Args),
    /// The part of a case that an ordinary user does.
    #[command(hide = true)]
    Limits(hostile::limits::Args),
    /// Become a program that a seccomp filter keeps from perf_event_open().
    #[command(hide = true)]
    Filtered(cases::doctor::Filtered),
    /// Run the rows of the matrix that have one of these in their names.
    Matrix(matrix::Args),
    /// The part of a row that is another process.
    #[command(hide = true)]
    Read(matrix::Reading),
    /// Run the cases that set the recorder beside stock perf.
    Beside {
        /// Those for a guest whose kernel does not use the cycle counter.
        #[arg(long)]
        no_tsc: bool,
        /// Run only cases whose names contain one of these.
        filters: Vec<String>,
    },
    /// Run the cases of a device that is elsewhere in this guest.
    Device {
        /// Where it is.
        machine: device::Machine,
        /// Run only cases whose names contain one of these.
        filters: Vec<String>,
    },
    /// Run the cases for a guest that was booted like this.
    Boot {
        /// Like what.
        line: ring::boot::Line,
        /// Run only cases whose names contain one of these.
        filters: Vec<String>,
    },
    /// Write what libipt needs to decode the kernel's part of a recording by stock perf.
    #[command(hide = true)]
    Packets(soft_pt::exact::packets::Packets),
    /// Compare the instructions that decoders show of soft_pt's trace with those that were executed.
    Exact {
        #[command(subcommand)]
        part: soft_pt::exact::Part,
    },
    /// Record onto a disk, /dev/vda.
    Disk {
        #[command(subcommand)]
        part: recorder::disk::Part,
    },
    /// Verify a recording of pattern: every byte, and what was lost.
    Check {
        /// Its files, in their order.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Measure what a start and a stop cost.
    Bench(bench::Args),
    /// Run a program to trace.
    Workload(workload::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(What::List) => {
            for case in cases::all() {
                println!("{}", case.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(What::Beside { no_tsc, filters }) => beside(*no_tsc, filters),
        Some(What::Device { machine, filters }) => {
            run(machine.cases().into_iter(), filters, || {
                module::load("rust_perf")
            })
        }
        // A locked-down kernel loads none of our modules.
        Some(What::Boot { line, filters }) => line
            .prepare()
            .and_then(|()| run(line.cases().into_iter(), filters, || Ok(()))),
        Some(What::Exact { part }) => soft_pt::exact::run(part),
        Some(What::Packets(asked)) => {
            soft_pt::exact::packets::write(asked).map(|()| ExitCode::SUCCESS)
        }
        Some(What::Disk { part }) => recorder::disk::run(part),
        Some(What::Check { files }) => pattern::run(files),
        Some(What::Bench(args)) => bench::run(args),
        Some(What::Matrix(args)) => matrix::run(args),
        Some(What::Read(args)) => matrix::read(args),
        Some(What::Attack(part)) => hostile::children::part(part),
        Some(What::Limits(part)) => hostile::limits::part(part),
        Some(What::Filtered(asked)) => cases::doctor::filtered(asked),
        Some(What::Workload(workload)) => workload::run(workload),
        None => all(args.part, &args.filters),
    };

    result.unwrap_or_else(|error| {
        eprintln!("auxe2e: {error:#}");
        ExitCode::FAILURE
    })
}

fn all(part: Option<Part>, filters: &[String]) -> Result<ExitCode> {
    let Part { number, of } = part.unwrap_or(Part { number: 1, of: 1 });
    let cases = cases::all().skip(number - 1).step_by(of);
    let cases = cases.map(|case| (case.name, move || case.run()));
    // An earlier case may have unloaded modules.
    run(cases, filters, module::load_all)
}

fn beside(no_tsc: bool, filters: &[String]) -> Result<ExitCode> {
    // The differences between auxrec and perf do not depend on the kernel, and these cases take long.
    let stock = std::env::var_os("AUXPMU_KERNEL").is_some_and(|kernel| kernel == "stock");
    let tables: &[&[beside::Case]] = match (no_tsc, stock) {
        (true, _) => &[recorder::clock::CASES],
        (false, true) => &[beside::CASES, recorder::tracepoints::CASES],
        (false, false) => &[
            beside::CASES,
            recorder::tracepoints::CASES,
            beside::differences::CASES,
        ],
    };
    let cases = tables.iter().copied().flatten();
    let cases = cases.map(|case| (case.name, || case.run()));
    run(cases, filters, || Ok(()))
}

fn run<N: AsRef<str>, F: Fn() -> Result<String>>(
    cases: impl Iterator<Item = (N, F)>,
    filters: &[String],
    prepare: impl Fn() -> Result<()>,
) -> Result<ExitCode> {
    let chosen: Vec<_> = cases
        .filter(|(name, _)| {
            filters.is_empty() || filters.iter().any(|f| name.as_ref().contains(f.as_str()))
        })
        .collect();
    let mut report = ktap::Report::begin(chosen.len());

    for (name, case) in &chosen {
        let name = name.as_ref();
        let start = Instant::now();
        // An earlier case may have pinned this thread to one CPU.
        let outcome = attack::unpin()
            .and_then(|()| prepare())
            .and_then(|()| case());
        let time = start.elapsed().as_secs_f64();

        match outcome {
            Ok(note) => report.pass(name, &format!("{note} ({time:.1} s)")),
            Err(error) if error.is::<ktap::Skip>() => report.skip(name, &error.to_string()),
            Err(error) => report.fail(name, &format!("{error:#} ({time:.1} s)")),
        }
    }

    Ok(if report.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
