// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Proves from user space that a perf PMU with an AUX area keeps perf's contract.
//!
//! ```text
//! conform [--pmu 'NAME[/TERMS/]']… [FILTER…]
//! ```
//!
//! It tests any PMU of the machine, in C or in Rust. Of the driver it needs only what `perf_event_open()`, the mappings and sysfs show. A
//! [case](cases::Case) names the line of the kernel whose rule it tests. If the format of the trace is known, a [stream](stream::Stream)
//! checks each byte; otherwise the trace is opaque.
//!
//! - [`discover`]: finds PMUs, and tries what each can do.
//! - [`pmu`]: a PMU, and opening its events.
//! - [`rig`]: an event with its rings, and the work that it traces.
//! - [`records`]: the records of a data ring, and the [ledger](records::Ledger) of the AUX area that they must add up to.
//! - [`cases`]: the requirements.
//! - [`memory`]: runs the cases while the kernel's memory runs out.
//! - [`fuzz`]: random programs, and a model that predicts their outcome.
//!
//! The result is KTAP: a subtest for each PMU.

mod cases;
mod discover;
mod fuzz;
mod kernel;
mod ktap;
mod memory;
mod module;
mod part;
mod pmu;
mod records;
mod rig;
mod skip;
mod stream;

use std::process::ExitCode;

use anyhow::{bail, Result};
use clap::{Parser, Subcommand};

use cases::Case;
use kernel::Watch;
use ktap::Report;
use memory::Memory;
use pmu::Pmu;
use skip::Skip;

/// Proves that perf PMUs with AUX areas keep perf's contract, and reports in KTAP.
#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The PMU, with terms of its format if it needs any. Without this option: all PMUs with AUX areas.
    #[arg(long = "pmu", value_name = "NAME[/TERMS/]")]
    pmus: Vec<String>,
    /// Decode the trace as this stream, and verify each byte.
    #[arg(long, value_enum, value_name = "STREAM")]
    stream: Option<stream::Known>,
    /// How long a case waits for an expected event before it fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    patience: u64,
    /// Repeat each case while the Nth allocation of kernel memory in it fails, for N from 1 up to this number. No failed allocation may
    /// do harm, and the case must pass afterwards. Needs a kernel with fault injection.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    no_memory: Option<u32>,
    /// Run only cases whose names contain one of these.
    filters: Vec<String>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List all cases, each with the rule of the kernel that it verifies.
    List,
    /// List the PMUs with AUX areas, and their capabilities.
    Pmus,
    /// Execute random programs of system calls, and compare the results with a model.
    Fuzz(fuzz::Args),
    /// Run the part of a case that is a process of its own.
    #[command(hide = true)]
    Part(part::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::List) => {
            for case in cases::all() {
                println!("{}\n\t{}", case.name, case.rule);
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Pmus) => pmus(),
        Some(Command::Fuzz(args)) => fuzz::run(args),
        Some(Command::Part(part)) => part::run(part),
        None => run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Exit status if there is no PMU to test.
const NOTHING: u8 = 4;
const NONE: &str = "this machine has no PMU with an AUX area that this user can open";

fn pmus() -> Result<ExitCode> {
    let found = discover::all();
    for pmu in &found {
        println!("{pmu}");
    }
    Ok(none(&found).unwrap_or(ExitCode::SUCCESS))
}

fn none(found: &[Pmu]) -> Option<ExitCode> {
    found.is_empty().then(|| {
        eprintln!("{NONE}: \"auxrec list\" says what there is");
        ExitCode::from(NOTHING)
    })
}

fn run(args: &Args) -> Result<ExitCode> {
    rig::set_patience(args.patience);
    let mut chosen = match args.pmus.as_slice() {
        [] => discover::all(),
        named => named
            .iter()
            .map(|name| discover::named(name))
            .collect::<Result<_>>()?,
    };
    if let Some(code) = none(&chosen) {
        Report::skip(NONE);
        return Ok(code);
    }
    for pmu in &mut chosen {
        pmu.stream = args.stream.or(pmu.stream);
    }
    let is_meant = |case: &Case| {
        let meant = |filter: &String| case.name.contains(filter.as_str());
        args.filters.is_empty() || args.filters.iter().any(meant)
    };
    let cases: Vec<_> = cases::all().into_iter().filter(is_meant).collect();
    if cases.is_empty() {
        bail!("no case has a name with one of these: \"conform list\" prints the names");
    }
    let memory = args.no_memory.map(Memory::new).transpose()?;
    let mut report = Report::begin(chosen.len());
    let mut watch = Watch::begin();
    for pmu in &chosen {
        let mut sub = report.sub(&pmu.name, cases.len());
        sub.note(&pmu.to_string());
        for case in &cases {
            let seen = match &memory {
                Some(memory) => memory.run_out(case, pmu),
                None => (case.run)(pmu),
            };
            // A kernel warning is a failure of the case during which it was logged.
            match (watch.complaints(), seen) {
                (complaints, seen) if !complaints.is_empty() => {
                    let seen = seen.unwrap_or_else(|error| format!("{error:#}"));
                    let reason = format!("the kernel says: {}\n{seen}", complaints.join("\n"));
                    sub.fail(&case.name, &case.rule, &reason);
                }
                (_, Ok(note)) => sub.pass(&case.name, &note),
                (_, Err(error)) => match error.downcast_ref::<Skip>() {
                    Some(skip) => sub.skip(&case.name, &skip.to_string()),
                    None => sub.fail(&case.name, &case.rule, &format!("{error:#}")),
                },
            }
        }
        sub.end();
    }
    Ok(match report.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
