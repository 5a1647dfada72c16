// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The matrix: each sink in each mode, with rings of each size and readers of each kind.
//!
//! A row opens the events itself and reads their rings in this process, so it controls when they are read. There are two cases:
//! - If the records depend on the reader only, [`model`](crate::model) predicts the whole sequence of AUX records, which must match
//!   exactly.
//! - If the scheduler has an influence, each record must be possible.
//!
//! In every row, every byte must be right. The bytes that the event's counter counts must be in the ring or the file, or be reported as
//! lost.

mod oracle;
mod readers;
mod row;

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};

use oracle::Sum;
pub use readers::{read, Reading, Target};
use row::{rows, Mode, Reader, Row, SINKS};

use crate::events::probe::Probe;
use crate::model::Sink;
use crate::module::{self, counter, LOST};

/// How often a row with a reader that must keep up is tried: a guest may have no processor when the reader should read.
const TRIES: u32 = 4;

/// Which rows to run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print their names.
    #[arg(long)]
    list: bool,
    /// Only those whose names contain one of these, or are one with `=` before it.
    filters: Vec<String>,
}

/// Runs the chosen rows, and reports in KTAP.
///
/// # Errors
/// If the driver cannot be loaded.
pub fn run(args: &Args) -> Result<ExitCode> {
    module::load_all()?;
    let chosen: Vec<_> = rows(&sinks())
        .into_iter()
        .map(|row| (row.to_string(), row))
        .filter(|(name, _)| {
            args.filters.is_empty() || args.filters.iter().any(|f| chooses(f, name))
        })
        .collect();
    if args.list {
        for (name, _) in &chosen {
            println!("{name}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = crate::ktap::Report::begin(chosen.len());
    for (name, row) in &chosen {
        let start = Instant::now();
        let outcome = row.run();
        let time = start.elapsed().as_secs_f64();
        match outcome {
            Ok(note) => report.pass(name, &format!("{note} ({time:.2} s)")),
            Err(error) => report.fail(name, &format!("{error:#} ({time:.2} s)")),
        }
    }
    Ok(if report.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whether a filter is part of a name; `=NAME` must be the whole name.
fn chooses(filter: &str, name: &str) -> bool {
    match filter.strip_prefix('=') {
        Some(whole) => name == whole,
        None => name.contains(filter),
    }
}

/// The sinks that the driver supports.
fn sinks() -> Vec<Sink> {
    let caps = Path::new("/sys/bus/event_source/devices/pattern/caps/sinks");
    let said = std::fs::read_to_string(caps).unwrap_or_else(|_| "direct".into());
    let has = |sink: &&Sink| {
        let name = match sink {
            Sink::Direct => "direct",
            Sink::Sg => "sg",
            Sink::Flat => "flat",
        };
        said.contains(name)
    };
    SINKS.iter().filter(has).copied().collect()
}

/// Bytes that the driver has reported lost, by cause.
fn reported() -> Result<[u64; 3]> {
    let [no_space, gap, collision] = LOST.map(|name| counter("pattern", name));
    Ok([no_space?, gap?, collision?])
}

impl Row {
    fn run(&self) -> Result<String> {
        let mut tick_us = match self.reader {
            // The ring is filled in 60 ms or more.
            Reader::KeepsUp => (60_000 / self.pace().ticks).max(1000),
            Reader::Dies if self.pages < 1024 => 500,
            _ if self.pages < 1024 => 100,
            _ => 1000,
        };
        for _ in 1..TRIES {
            match self.attempt(tick_us) {
                // The next attempt has slower ticks, and so more time.
                Ok(None) => tick_us *= 4,
                Ok(Some(seen)) => return Ok(seen),
                Err(error) => return Err(error),
            }
        }
        bail!("the reader has never kept up");
    }

    /// Runs the row once. Returns `None` if the reader must keep up and did not.
    fn attempt(&self, tick_us: u64) -> Result<Option<String>> {
        let setup = self.setup();
        let attr = self.attr(tick_us)?;
        let before = reported()?;
        let target = match self.mode {
            Mode::Cpu | Mode::System => None,
            Mode::Task | Mode::TaskCpu | Mode::Inherited => {
                Some(Target::start(self.mode == Mode::Inherited)?)
            }
        };
        let tid = target.as_ref().map_or(-1, |target| target.tid);
        let cpus: &[i32] = match self.mode {
            Mode::Cpu => &[1],
            Mode::Task => &[-1],
            Mode::System | Mode::TaskCpu | Mode::Inherited => &[0, 1],
        };
        let mut probes = cpus
            .iter()
            .map(|&cpu| {
                self.refuse(&attr, cpu)?;
                Probe::open(&attr, tid, cpu, self.pages, setup.overwrite)
            })
            .collect::<Result<Vec<_>>>()?;
        let siblings = probes
            .iter()
            .zip(cpus)
            .map(|(probe, cpu)| self.siblings(probe, *cpu))
            .collect::<Result<Vec<_>>>()?;

        let kept = thread::scope(|scope| {
            let threads: Vec<_> = probes
                .iter_mut()
                .zip(cpus)
                .map(|(probe, cpu)| scope.spawn(move || self.read(probe, *cpu)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| bail!("a reader's thread died"))
                })
                .collect::<Result<Vec<_>>>()
        });
        drop(target);
        let kept = kept?;

        let mut sum = Sum::default();
        for ((probe, files), cpu) in probes.iter_mut().zip(kept).zip(cpus) {
            let at = format!("CPU {cpu}");
            match self.check(probe, files).context(at)? {
                Some(one) => sum = sum.plus(one),
                None => return Ok(None),
            }
        }
        drop((siblings, probes));
        let after = reported()?;
        let [no_space, gap, collision] = [0, 1, 2].map(|n| after[n] - before[n]);
        let lost = no_space + gap + collision;
        ensure!(
            sum.generated == sum.trace + sum.overwritten + lost,
            "{} bytes were generated; {} are there, {} were overwritten and {lost} reported lost",
            sum.generated,
            sum.trace,
            sum.overwritten
        );
        ensure!(
            sum.missing <= lost,
            "{} bytes are missing in the stream, and {lost} were reported lost",
            sum.missing
        );
        ensure!(
            no_space == 0 || sum.truncations > 0,
            "{no_space} bytes found no space, and no record says TRUNCATED"
        );
        ensure!(
            self.is_silent() == (sum.generated == 0),
            "{} bytes were generated",
            sum.generated
        );
        Ok(Some(format!(
            "{} bytes: {} there, {} overwritten, {lost} lost; {} records, {} truncations, {} streams, CPUs {:?}",
            sum.generated,
            sum.trace,
            sum.overwritten,
            sum.records,
            sum.truncations,
            sum.streams,
            sum.cpus,
        )))
    }
}
