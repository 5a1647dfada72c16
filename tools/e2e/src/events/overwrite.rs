// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Data rings in which the newest records overwrite the oldest.

use std::thread;

use anyhow::{bail, ensure, Context, Result};
use perfdata::{Event, SampleId};

use crate::recorder::{accounted, Commander, Steps};
use crate::recording::{released, Seen, PAGE};
use crate::recording::{Reader, Recorder, TraceFile};
use crate::workload::pin;

/// The cases, by their names.
pub const ALL: [(&str, Steps); 2] = [
    ("the newest records, oldest overwritten", of_cpus),
    ("the newest records of a process", of_a_process),
];

/// Gives a thread of its own on CPU 1 a row of names, of which each is a record.
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

/// The numbers in names that the kernel told of, in the order of the file, and the bytes of all records of such events on CPU 1.
fn names(file: &TraceFile) -> Result<(Vec<u32>, u64)> {
    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let tracking = parsed.events().len() - 1;
    let (mut numbers, mut sum) = (Vec::new(), 0);
    for record in parsed.records() {
        let record = record?;
        let (event, id) = parsed.decode(&record)?;
        // What was made up has the time 0; a counter comes from the recorder.
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

/// A recorder with these options besides, that takes commands.
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

/// Far more records than the ring holds: the newest are in the file, in their order, none is there twice, and of what came after
/// none is missing.
fn of_cpus(name: &str) -> Result<String> {
    const MANY: u32 = 8000;
    const FEW: u32 = 20;
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    // Those that other tasks of the CPU cause before the snapshot do not fill it.
    let ring = 64;
    let recorder = overwriting(&file, &mut commander, &["-m", "64,16", "-a"])?;
    rename(0..MANY)?;
    ensure!(
        names(&file)?.0.is_empty(),
        "names are told of before a snapshot"
    );
    commander.ask("snapshot")?;
    let (numbers, sum) = names(&file)?;
    let want: Vec<u32> = (MANY - u32::try_from(numbers.len())?..MANY).collect();
    ensure!(
        !numbers.is_empty() && numbers == want,
        "not the newest names, in their order: {numbers:?}"
    );
    // As many as there is room for, but for one that was cut.
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

/// The rings of a process's events, on each CPU, are overwritten too.
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
