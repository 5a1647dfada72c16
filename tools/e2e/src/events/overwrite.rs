// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Data rings in overwrite mode: the newest records overwrite the oldest.

use std::thread;

use anyhow::{bail, ensure, Context, Result};
use perfdata::{Event, SampleId};

use crate::recorder::{accounted, Commander, Steps};
use crate::recording::{released, Seen, PAGE};
use crate::recording::{Reader, Recorder, TraceFile};
use crate::workload::pin;

/// The cases, with their names.
pub const ALL: [(&str, Steps); 2] = [
    ("the newest records, oldest overwritten", of_cpus),
    ("the newest records of a process", of_a_process),
];

/// Starts a thread on CPU 1 that renames itself once for each number. Each renaming causes a COMM record.
fn rename(numbers: std::ops::Range<u32>) -> Result<()> {
    let rename = move || -> Result<()> {
        pin(1)?;
        for number in numbers {
            let name = std::ffi::CString::new(format!("n{number:07}"))?;
            rustix::thread::set_name(&name)?;
        }
        Ok(())
    };
    match thread::spawn(rename).join() {
        Ok(result) => result,
        Err(_) => bail!("the thread that renames itself died"),
    }
}

/// The numbers in the names of COMM records, in the order of the file; and the bytes of all records of the tracking event on CPU 1.
fn names(file: &TraceFile) -> Result<(Vec<u32>, u64)> {
    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let tracking = parsed.events().len() - 1;
    let (mut numbers, mut sum) = (Vec::new(), 0);
    for record in parsed.records() {
        let record = record?;
        let (event, id) = parsed.decode(&record)?;
        // Synthesised records have time 0. READ records come from the recorder.
        let SampleId {
            time: Some(1..),
            cpu: Some(1),
            ..
        } = id.unwrap_or_default()
        else {
            continue;
        };
        if parsed.event_of(&record) != tracking || matches!(event, Event::Read(_)) {
            continue;
        }
        sum += 8 + u64::try_from(record.body.len())?;
        if let Event::Comm(comm) = event {
            let name = std::str::from_utf8(comm.comm).unwrap_or_default();
            numbers.extend(name.strip_prefix('n').and_then(|n| n.parse::<u32>().ok()));
        }
    }
    Ok((numbers, sum))
}

/// Starts a recorder in overwrite mode that accepts commands, with further options.
fn overwriting(file: &TraceFile, commander: &mut Commander, options: &[&str]) -> Result<Recorder> {
    let mut arguments: Vec<String> = ["-e", "pattern/rate=64/", "-S", "--overwrite"]
        .iter()
        .chain(options)
        .copied()
        .map(str::to_owned)
        .collect();
    arguments.extend(commander.arguments());

    let recorder = Recorder::start(file.path(), &arguments)?;
    commander.ask("ping")?;
    Ok(recorder)
}

/// Causes far more records than the ring holds. The file must have the newest ones, each once and in order. After another snapshot, no
/// later record may be missing.
fn of_cpus(name: &str) -> Result<String> {
    const MANY: u32 = 8000;
    const FEW: u32 = 20;
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    // The ring is so large that records of other tasks on the CPU do not fill it.
    let ring = 64;
    let recorder = overwriting(&file, &mut commander, &["-m", "64,16", "-a"])?;
    rename(0..MANY)?;
    ensure!(
        names(&file)?.0.is_empty(),
        "names are reported before a snapshot"
    );
    commander.ask("snapshot")?;
    let (numbers, sum) = names(&file)?;
    let want: Vec<u32> = (MANY - u32::try_from(numbers.len())?..MANY).collect();
    ensure!(
        !numbers.is_empty() && numbers == want,
        "not the newest names, in their order: {numbers:?}"
    );
    // The ring must be full of whole records; one may be cut.
    let least = ring * PAGE - u64::try_from(auxrec::ring::IN_FLIGHT)? - 256;
    ensure!(
        (least..=ring * PAGE).contains(&sum),
        "{sum} bytes of records in a ring of {ring} pages"
    );
    rename(MANY..MANY + FEW)?;
    commander.ask("snapshot")?;
    commander.ask("stop")?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    let first = *want.first().context("no name")?;
    let (numbers, _) = names(&file)?;
    ensure!(
        numbers == (first..MANY + FEW).collect::<Vec<_>>(),
        "after another snapshot: {numbers:?}"
    );
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(format!(
        "{} names of {MANY}, {sum} bytes; {seen}",
        want.len()
    ))
}

/// The rings of a process's events are in overwrite mode, too, on each CPU.
fn of_a_process(name: &str) -> Result<String> {
    const MANY: u32 = 2000;
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let me = std::process::id().to_string();
    let recorder = overwriting(&file, &mut commander, &["-m", "16,16", "-p", &me])?;
    rename(0..MANY)?;
    commander.ask("snapshot")?;
    commander.ask("stop")?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    let (numbers, sum) = names(&file)?;
    ensure!(
        !numbers.is_empty() && sum <= 16 * PAGE,
        "{sum} bytes: {numbers:?}"
    );
    let want: Vec<u32> = (MANY - u32::try_from(numbers.len())?..MANY).collect();
    ensure!(numbers == want, "not the newest names: {numbers:?}");
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(format!("{} names of {MANY}; {seen}", want.len()))
}
