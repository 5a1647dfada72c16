// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The instructions that perf and libipt show of a recording, and the files that have the executed code.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{ensure, Context, Result};
use auxview::pieces::Pieces;
use auxview::trace::Trace;
use object::{Object, ObjectSegment, ObjectSymbol};
use perfdata::Event;
use steptrace::compare::{self, Decoded};
use steptrace::log::Threads;

/// The address of a symbol.
pub(super) fn address(bytes: &[u8], name: &str) -> Result<u64> {
    let file = object::File::parse(bytes).context("no program")?;
    let symbol = file.symbol_by_name(name);
    Ok(symbol
        .with_context(|| format!("there is no symbol {name}"))?
        .address())
}

/// The offset of a symbol in its file.
pub(super) fn offset(bytes: &[u8], name: &str) -> Result<u64> {
    let address = address(bytes, name)?;
    let file = object::File::parse(bytes).context("no program")?;
    let offset = file.segments().find_map(|segment| {
        let into = address.checked_sub(segment.address())?;
        (into < segment.size()).then(|| segment.file_range().0 + into)
    });
    offset.context("the symbol is in no segment")
}

/// The code of a program that is in files, by address.
pub(super) struct Image(pub(super) BTreeMap<u64, Mapped>);

/// A mapped part of a file.
pub(super) struct Mapped {
    pub(super) file: String,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Image {
    pub(super) fn has(&self, ip: u64) -> bool {
        let before = self.0.range(..=ip).next_back();
        before.is_some_and(|(at, part)| ip - at < part.len)
    }

    /// Whether a decoder reports an error because no file has the instruction.
    pub(super) fn explains(&self, error: &str) -> bool {
        // libipt reports only the position in the trace.
        if error.contains("no memory mapped at this address") {
            return true;
        }
        let mut words = error.split_whitespace().skip_while(|word| *word != "ip");
        let ip = words.nth(1).and_then(|word| word.strip_prefix("0x"));
        let ip = ip.and_then(|word| u64::from_str_radix(word, 16).ok());
        error.contains("Failed to get instruction") && ip.is_some_and(|ip| !self.has(ip))
    }
}

/// The instructions that perf shows of a recording.
pub(super) fn perf(data: &Path) -> Result<Decoded> {
    let mut script = Command::new("perf");
    script
        .args(["script", "--itrace=i1ie", "-F", "tid,ip", "-i"])
        .arg(data);
    let mut child = script
        .env("HOME", "/tmp")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start perf")?;
    let shown = child.stdout.take().context("no way to its output")?;
    // perf's messages are short enough for the pipe, so they are read later.
    let decoded = compare::read(BufReader::new(shown));
    let output = child.wait_with_output().context("cannot wait for perf")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    decoded
}

/// Removes the instructions of `env`: perf started it, and it executed the program.
pub(super) fn forget_env(logged: &Threads, decoded: &mut Threads) {
    let begin = logged.values().next().and_then(|ips| ips.first());
    for ips in decoded.values_mut() {
        if let Some(at) = ips.iter().rposition(|ip| Some(ip) == begin) {
            ips.drain(..at);
        }
    }
}

/// The driver's counts: instructions, and how often it had no space.
pub(super) fn counted(data: &Path) -> Result<(u64, u64)> {
    let bytes = fs::read(data)?;
    let trace = Trace::read(&bytes)?;
    let counts = trace.rings.values().flat_map(|ring| &ring.counts);
    let losses = trace.rings.values().map(|ring| ring.loss.truncated);
    Ok((counts.map(|count| count.value).sum(), losses.sum()))
}

/// The executable mappings of files. Code that the recorder has saved is left out: it is valid only at certain times, which libipt does not
/// consider.
pub(super) fn image(data: &Path) -> Result<Image> {
    let bytes = fs::read(data)?;
    let file = perfdata::File::parse(&bytes)?;
    // A later mapping at the same address replaces an earlier one.
    let mut image = BTreeMap::new();
    for record in file.records() {
        let record = record?;
        let (Event::Mmap2(map), _) = file.decode(&record)? else {
            continue;
        };
        let name = std::str::from_utf8(map.filename)?.trim_end_matches('\0');
        let is_file = name.starts_with('/') && !name.starts_with("//");
        if map.prot & 4 != 0 && is_file && !name.ends_with(".data.code") {
            let part = Mapped {
                file: name.to_owned(),
                offset: map.pgoff,
                len: map.len,
            };
            image.insert(map.addr, part);
        }
    }
    Ok(Image(image))
}

/// Writes the trace of the only ring that has any to a file for `ptwalk`.
fn ring(data: &Path, files: &Path) -> Result<PathBuf> {
    let bytes = fs::read(data)?;
    let trace = Trace::read(&bytes)?;
    ensure!(trace.problems.is_empty(), "{:?}", trace.problems);
    let mut rings = trace.rings.values().filter(|ring| !ring.pieces.is_empty());
    let ring = rings.next().context("no trace")?;
    ensure!(rings.next().is_none(), "trace in several rings");
    let raw = files.join("ring");
    let files = [&bytes];
    let mut read = Pieces::of(&files);
    let pieces = ring.pieces.iter().map(|piece| read.bytes(piece));
    fs::write(&raw, pieces.collect::<Result<Vec<_>, _>>()?.concat())?;
    Ok(raw)
}

/// The packets of the only ring that has trace, as libipt reads them, one in each line.
pub(super) fn packets(data: &Path, walker: &Path, files: &Path) -> Result<String> {
    let raw = ring(data, files)?;
    let read = Command::new(walker).arg("--packets").arg(raw).output()?;
    let packets = String::from_utf8(read.stdout)?;
    ensure!(
        read.status.success(),
        "{} {}",
        packets.lines().last().unwrap_or_default(),
        String::from_utf8_lossy(&read.stderr)
    );
    Ok(packets)
}

/// The instructions that libipt shows of the only ring that has trace.
pub(super) fn walk(data: &Path, walker: &Path, files: &Path, image: &Image) -> Result<Decoded> {
    let walked = walked(data, walker, files, image)?;
    // The exit status is 1 if the output contains errors.
    let decoded = compare::read(&walked.stdout[..])?;
    ensure!(
        walked.status.success() || !decoded.errors.is_empty(),
        "ptwalk: {}",
        String::from_utf8_lossy(&walked.stderr)
    );
    Ok(decoded)
}

/// Runs `ptwalk`, which follows the only trace of a recording with libipt.
fn walked(data: &Path, walker: &Path, files: &Path, image: &Image) -> Result<Output> {
    let raw = ring(data, files)?;
    let parts = image.0.iter().map(|(at, part)| {
        let Mapped { file, offset, len } = part;
        format!("{file}:{offset:x}:{len:x}:{at:x}")
    });
    let walked = Command::new(walker).arg(&raw).args(parts).output();
    walked.context("cannot start ptwalk")
}

/// A PTWRITE: its payload, and its address, or 0 for the function that perf accepts as a PTWRITE.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) payload: u64,
    pub(super) address: u64,
}

impl Write {
    /// Parses a line that the program has printed.
    pub(super) fn said(line: &str) -> Option<Self> {
        let (payload, address) = line.split_once(' ')?;
        Some(Self {
            payload: hex(payload)?,
            address: hex(address)?,
        })
    }

    /// Parses a line of `perf script --itrace=w -F ip,synth`, such as ` IP: 1 payload: 0x77  401000`.
    fn shown(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip_while(|word| *word != "IP:");
        let has_address = words.nth(1)? == "1";
        let payload = hex(words.nth(1)?)?;
        let address = hex(words.last()?)?;
        Some(Self {
            payload,
            address: if has_address { address } else { 0 },
        })
    }
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

/// Runs `perf script`. Returns its output.
fn script(data: &Path, options: &[&str]) -> Result<String> {
    let mut script = Command::new("perf");
    script.arg("script").args(options).arg("-i").arg(data);
    let shown = script.env("HOME", "/tmp").output();
    let shown = shown.context("cannot start perf")?;
    ensure!(
        shown.status.success(),
        "{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    Ok(String::from_utf8(shown.stdout)?)
}

/// The instructions and cycles between branches, where perf shows them: ` IPC: 1.00 (12/12)`.
pub(super) fn cycles_by_perf(data: &Path) -> Result<Vec<(u64, u64)>> {
    let shown = script(data, &["--itrace=be", "-F", "ip,ipc"])?;
    let pair = |words: &str| {
        let (instructions, cycles) = words.split_once(')')?.0.split_once('/')?;
        Some((instructions.parse().ok()?, cycles.parse().ok()?))
    };
    let pairs = shown.lines().filter_map(|line| {
        let words = line.split_once("IPC:")?.1.split_once('(')?.1;
        Some(pair(words).with_context(|| format!("perf says `{line}`")))
    });
    pairs.collect()
}

/// The PTWRITE packets that perf shows.
pub(super) fn writes_by_perf(data: &Path) -> Result<Vec<Write>> {
    let shown = script(data, &["--itrace=w", "-F", "ip,synth"])?;
    let write = |line| Write::shown(line).with_context(|| format!("perf says `{line}`"));
    let lines = shown.lines().filter(|line| !line.trim().is_empty());
    lines.map(write).collect()
}

/// The PTWRITE packets that libipt shows.
pub(super) fn writes_by_libipt(
    data: &Path,
    walker: &Path,
    files: &Path,
    image: &Image,
) -> Result<Vec<Write>> {
    let walked = walked(data, walker, files, image)?;
    let walked = String::from_utf8(walked.stdout)?;
    let events = walked
        .lines()
        .filter_map(|line| line.strip_prefix("event ptwrite "));
    let write = |line| Write::said(line).with_context(|| format!("ptwalk says `{line}`"));
    events.map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_have() {
        let part = |len| Mapped {
            file: "/bin/a".to_owned(),
            offset: 0,
            len,
        };
        let image = Image(BTreeMap::from([(0x1000, part(0x10)), (0x2000, part(0x20))]));
        let table = [
            (0xfff, false),
            (0x1000, true),
            (0x100f, true),
            (0x1010, false),
            (0x201f, true),
        ];
        for (ip, has) in table {
            assert_eq!(image.has(ip), has, "{ip:x}");
        }
        let error = |ip, what| format!(" instruction trace error type 1 ip {ip} code 5: {what}");
        assert!(image.explains(&error("0x1010", "Failed to get instruction")));
        assert!(!image.explains(&error("0x1000", "Failed to get instruction")));
        assert!(!image.explains(&error("0x1010", "Lost trace data")));
    }

    #[test]
    fn what_was_written() {
        let write = |payload, address| Some(Write { payload, address });
        let shown = Write::shown;
        assert_eq!(Write::said("0x12 0x401000"), write(0x12, 0x40_1000));
        assert_eq!(Write::said("0 0"), write(0, 0));
        assert_eq!(
            shown(" IP: 1 payload: 0x12  401000"),
            write(0x12, 0x40_1000)
        );
        assert_eq!(shown(" IP: 0 payload: 0  401000"), write(0, 0));
        assert_eq!(
            shown(" IP: 0 payload: 0x6f48 Ho   401000"),
            write(0x6f48, 0)
        );
        assert_eq!(shown(" error type 1"), None);
    }
}
