// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records an event of one of our modules: the framework's tracepoint of a commit. The commit's offset in the AUX area identifies it: the
//! recorder's file has an AUX record for each commit, in order.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{ensure, Context, Result};
use perfdata::{Event, File};
use rustix::process::Signal;
use tracering::format::Format;
use tracering::{Bytes, Map};

use super::{accounted, Instance, Log, ROOM};
use crate::module::counter;
use crate::recorder::with;
use crate::recording::released;
use crate::recording::{Reader, Recorder, TraceFile};
use crate::wait::wait_for;

const EVENT: &str = "events/rust_perf/rust_perf_commit";
const CPUS: [u32; 2] = [0, 1];

/// Offsets and sizes of the AUX records of each CPU, in order.
fn records(bytes: &[u8]) -> Result<BTreeMap<u32, Vec<(u64, u64)>>> {
    let file = File::parse(bytes)?;
    let mut all: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for record in file.records() {
        let (event, who) = file.decode(&record?)?;
        if let Event::Aux(aux) = event {
            let cpu = who.and_then(|who| who.cpu);
            let cpu = cpu.context("an AUX record of no CPU")?;
            if aux.size != 0 {
                all.entry(cpu).or_default().push((aux.offset, aux.size));
            }
        }
    }
    Ok(all)
}

/// For each CPU, the commits that were read or lost must be as many as the AUX records. Losses must be where the kernel reports them.
pub fn commits() -> Result<String> {
    let instance = Instance::new(4, ROOM)?;
    let tracefs = &instance.tracefs;
    tracefs.write("buffer_size_kb", "8")?;
    let format = Format::parse(&tracefs.read(format!("{EVENT}/format"))?)?;
    // A commit of no bytes has no AUX record.
    tracefs.write(format!("{EVENT}/filter"), "size != 0")?;
    tracefs.write(format!("{EVENT}/enable"), "1")?;
    let head = |event: Bytes<'_>| {
        let field = format.field("aux_head");
        let head = field.and_then(|field| field.unsigned(event));
        head.context("a commit without aux_head")
    };
    let mut maps = CPUS
        .iter()
        .map(|cpu| instance.map(*cpu))
        .collect::<Result<Vec<Map>>>()?;
    let mut logs = CPUS.map(|_| Log::default());
    let file = TraceFile::new("tracefs events of a module");
    let count = |name| counter("pattern", name);
    let before = (count("commits")?, count("bytes")?);
    let more = ["-C", "0,1", "--aux-watermark", "4K"];
    let recorder = Recorder::start(file.path(), &with("rate=8192", 64, &more))?;
    // First few commits, then more than the buffers hold.
    for enough in [40, 80, 2000] {
        wait_for("commits", || Ok(count("commits")? - before.0 >= enough))?;
        for (map, log) in maps.iter_mut().zip(&mut logs) {
            while let Some(reader) = map.reader()? {
                log.take_by(reader, head)?;
            }
        }
    }
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    // Trace that found no space has no commit.
    ensure!(
        [0, 3].contains(&ended.status),
        "{}: {}",
        ended.status,
        ended.errors
    );
    released()?;
    let committed = count("bytes")? - before.1;

    let records = records(&fs::read(file.path())?)?;
    let mut said = Vec::new();
    let mut sum = 0;
    for ((cpu, map), mut log) in CPUS.into_iter().zip(&mut maps).zip(logs) {
        while let Some(reader) = map.reader()? {
            log.take_by(reader, head)?;
        }
        let records = records.get(&cpu).context("a CPU without AUX records")?;
        for number in &mut log.numbers {
            let place = records.binary_search_by_key(number, |(offset, _)| *offset);
            let place = place.ok().with_context(|| {
                format!("CPU {cpu}: no AUX record begins where a commit does, at {number:#x}")
            })?;
            *number = u64::try_from(place)?;
        }
        let written = u64::try_from(records.len())?;
        let lost = accounted(&instance, cpu, &log, written, true)?;
        ensure!(
            lost > 0 && log.numbers.len() > 40,
            "CPU {cpu}: {lost} lost of {written} commits"
        );
        sum += records.iter().map(|(_, size)| size).sum::<u64>();
        said.push(format!("CPU {cpu}: {written} commits, {lost} lost"));
    }
    ensure!(
        sum == committed,
        "{sum} bytes by AUX records, and debugfs counts {committed}"
    );
    Ok(said.join("; "))
}
