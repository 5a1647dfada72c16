// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the trace and the records that a row has read.

use std::collections::BTreeSet;

use anyhow::{bail, ensure, Context, Result};

use super::readers::part;
use super::row::{Mode, Reader, Row};
use crate::events::probe::Probe;
use crate::model::{say, Fault, Follower, Model, Setup, Sink, BARRIER};
use crate::stream::{self, Content};

/// The results of a row's events, which can be added.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) generated: u64,
    pub(super) trace: u64,
    pub(super) missing: u64,
    pub(super) overwritten: u64,
    pub(super) overhead: u64,
    pub(super) records: usize,
    pub(super) truncations: usize,
    pub(super) cpus: BTreeSet<u16>,
    pub(super) streams: usize,
}

impl Sum {
    pub(super) fn plus(mut self, other: Self) -> Self {
        self.cpus.extend(other.cpus);
        Self {
            generated: self.generated + other.generated,
            trace: self.trace + other.trace,
            missing: self.missing + other.missing,
            overwritten: self.overwritten + other.overwritten,
            overhead: self.overhead + other.overhead,
            records: self.records + other.records,
            truncations: self.truncations + other.truncations,
            streams: self.streams + other.streams,
            cpus: self.cpus,
        }
    }
}

/// Bytes without trace, by the records of a ring in overwrite mode: padding and barriers. A barrier shows by its length, which differs from
/// that of a packet.
fn overhead(setup: &Setup, records: &[perfdata::Aux]) -> u64 {
    let of_one = |record: &perfdata::Aux| {
        let begin = record.offset - record.size;
        let pad = begin.next_multiple_of(setup.align) - begin;
        let rest = record.size.saturating_sub(pad);
        let barrier = rest > 0 && rest % setup.packet == BARRIER % setup.packet;
        pad + if barrier { BARRIER } else { 0 }
    };
    records.iter().map(of_one).sum()
}

fn first_difference(expected: &[perfdata::Aux], got: &[perfdata::Aux]) -> String {
    let n = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
    let one = |records: &[perfdata::Aux]| records.get(n).map_or("none".to_owned(), say);
    format!(
        "AUX record {n} of {} is {}, and of {} must be {}",
        got.len(),
        one(got),
        expected.len(),
        one(expected)
    )
}

/// The trace up to the head: the file of a dead reader, followed by the rest of the ring. The reader may die before it releases bytes, so
/// both may have the same bytes, which must be equal.
fn joined(probe: &Probe, mut file: Vec<u8>) -> Result<Vec<u8>> {
    let (tail, held) = probe.peek()?;
    let tail = usize::try_from(tail)?;
    let both = file.len().checked_sub(tail).with_context(|| {
        format!(
            "the dead reader had given back {tail} bytes, and only {} are in its file",
            file.len()
        )
    })?;
    ensure!(both <= held.len(), "the file has more than was written");
    let (twice, rest) = held.split_at(both);
    ensure!(
        file.get(tail..) == Some(twice),
        "the ring has changed under its reader"
    );
    file.extend_from_slice(rest);
    Ok(file)
}

impl Row {
    /// Checks the results of an event. Returns `None` if its reader should have kept up and did not.
    pub(super) fn check(&self, probe: &mut Probe, file: Option<Vec<u8>>) -> Result<Option<Sum>> {
        let setup = self.setup();
        let generated = probe.generated()?;
        probe.read_records()?;
        ensure!(probe.lost_records == 0, "records were lost");
        let head = probe.head();
        let records = &probe.records;
        let begins_in_order = records.iter().all(|r| r.offset >= r.size) || !setup.overwrite;
        ensure!(begins_in_order, "a record that ends before it can begin");
        // The records are checked first, because they show most defects.
        let expected = self.predict();
        match &expected {
            Some(expected) if expected.records() == records => ensure!(
                generated == expected.generated(),
                "{generated} bytes were generated, and {} must be",
                expected.generated()
            ),
            Some(expected) => {
                let differs = first_difference(expected.records(), records);
                if self.reader != Reader::KeepsUp {
                    bail!(differs);
                }
                // The reader may not have kept up. The records must be possible nevertheless.
                Follower::new(setup, false)
                    .follow(records)
                    .context(differs)?;
                return Ok(None);
            }
            None => Follower::new(setup, true).follow(records)?,
        }

        let content = if setup.overwrite {
            probe.snapshot()?;
            let len = u64::try_from(probe.trace.len())?;
            ensure!(
                len == head.min(setup.ring),
                "a snapshot of {len} bytes at {head:#x}"
            );
            stream::read(&probe.trace, probe.from, true)?
        } else if let Some(file) = file {
            stream::read(&joined(probe, file)?, 0, false)?
        } else {
            probe.read_trace(u64::MAX)?;
            stream::read(&probe.trace, 0, false)?
        };
        ensure!(
            self.cpu_is_right(&content),
            "trace of the CPUs {:?}",
            content.cpus
        );

        let reported: u64 = probe.records.iter().map(|r| r.size).sum();
        ensure!(
            setup.overwrite || reported + content.padding == head,
            "the records report {reported} bytes, {} are padding, and the head is at {head}",
            content.padding
        );
        let records = &probe.records;
        // In overwrite mode, packets without trace that were overwritten count, too.
        let overhead = match (&expected, setup.overwrite) {
            (_, false) => content.overhead,
            (Some(expected), true) => expected.overhead(),
            (None, true) => overhead(&setup, records),
        };
        let overwritten = (head - overhead)
            .checked_sub(content.trace)
            .with_context(|| format!("{} bytes of trace in {head}", content.trace))?;
        ensure!(
            overwritten == 0 || setup.overwrite,
            "{overwritten} bytes of the ring are neither trace nor packets without"
        );
        ensure!(
            self.sink != Sink::Flat || content.unmarked == 0 || self.fault != Fault::None,
            "bytes are missing at {:#x?}, and {} times no barrier says so",
            content.gaps,
            content.unmarked
        );
        if let Some(expected) = expected.filter(|_| !setup.overwrite) {
            ensure!(
                content.overhead == expected.overhead(),
                "{} bytes of packets without trace, and {} must be",
                content.overhead,
                expected.overhead()
            );
        }

        Ok(Some(Sum {
            generated,
            trace: content.trace,
            missing: content.missing,
            overwritten,
            overhead: content.overhead,
            records: records.len(),
            truncations: probe.truncations(),
            streams: content.streams.len(),
            cpus: content.cpus,
        }))
    }

    /// Checks that the trace comes from CPUs on which the event was.
    fn cpu_is_right(&self, content: &Content) -> bool {
        match self.mode {
            Mode::Cpu => content.cpus.iter().all(|&cpu| cpu == 1),
            Mode::Task => true,
            Mode::System | Mode::TaskCpu | Mode::Inherited => content.cpus.len() <= 1,
        }
    }

    /// The predicted records, if they can be predicted.
    fn predict(&self) -> Option<Model> {
        if !self.is_predictable() {
            return None;
        }
        let setup = self.setup();
        let mut model = Model::new(setup);
        model.enable();
        match self.reader {
            _ if self.is_silent() => {}
            Reader::KeepsUp => {
                model.run_kept_up();
                if model.lost() != 0 {
                    // With this ring, even a fast reader loses trace, and the time of its next read is unknown.
                    return None;
                }
            }
            Reader::Slow => {
                model.run();
                while !model.is_silent() {
                    model.drain(part(&setup));
                    model.enable();
                    model.run();
                }
            }
            Reader::Stops | Reader::Once => model.run(),
            Reader::Dies | Reader::Snapshots => return None,
        }
        model.disable();
        Some(model)
    }
}
