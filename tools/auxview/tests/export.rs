// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Exports of a program whose every instruction is known.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;

use auxview::export::{export, script, Clock, Format, Options, PIECE, PIECE_MIN};
use proptest::prelude::*;
use serde_json::Value;
use testdata::program::*;

/// Output of `script`.
#[derive(Clone, Default)]
struct Text(Rc<RefCell<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options(root: &Path, clock: Clock) -> Options<'_> {
    Options {
        places: root.into(),
        clock: Some(clock),
        lines: true,
    }
}

/// The lines of `script`: time, and the name of the function that begins.
fn spans(recording: &[u8], root: &Path, clock: Clock) -> Vec<(u64, Option<String>)> {
    let text = Text::default();
    script(recording, &options(root, clock), Box::new(text.clone())).unwrap();
    let text = String::from_utf8(text.0.take()).unwrap();
    let line = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        assert_eq!(fields[1..4], ["5", "5", "prog"], "{line}");
        let name = match fields[4] {
            "begin" => Some(fields[6].to_owned()),
            _ => None,
        };
        (fields[0].parse().unwrap(), name)
    };
    text.lines().map(line).collect()
}

/// Checks that each end has a begin, that all spans end, and that times do not decrease.
fn assert_balanced(spans: &[(u64, Option<String>)]) {
    let mut depth = 0;
    let mut last = 0;
    for (time, begins) in spans {
        assert!(*time >= last, "{time} comes behind {last}: {spans:?}");
        last = *time;
        depth += if begins.is_some() { 1 } else { -1 };
        assert!(depth >= 0, "an end without a begin: {spans:?}");
    }
    assert_eq!(depth, 0, "{spans:?}");
}

/// `begin(NAME)` as `NAME{`, an end as `}`.
fn shape(spans: &[(u64, Option<String>)]) -> String {
    let text = |(_, name): &(u64, Option<String>)| match name {
        Some(name) => format!("{name}{{"),
        None => "}".to_owned(),
    };
    spans.iter().map(text).collect()
}

const SHAPE: &str = "main{f{}f{}prog+0x1040{}handler{}restore::rate(){}}tail{}";

fn all_runs(config: intel_pt::Config) -> Cpu {
    let mut cpu = Cpu::new(config);
    for run in RUNS {
        cpu.run(10, run);
    }
    cpu
}

#[test]
fn spans_are_the_calls() {
    let root = root();
    for config in configs() {
        let cpu = all_runs(config);
        let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
        for clock in [Clock::Time, Clock::Instructions] {
            let spans = spans(&made, root.path(), clock);
            assert_balanced(&spans);
            assert_eq!(shape(&spans), SHAPE, "{config:?} {clock:?}");
        }
    }
}

/// Times count the instructions of the program.
#[test]
fn instructions_are_counted() {
    let root = root();
    let cpu = all_runs(configs().next().unwrap());
    let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
    let times: Vec<_> = spans(&made, root.path(), Clock::Instructions)
        .iter()
        .map(|(time, _)| *time)
        .collect();
    // main, f of three instructions, back, f, back, the one without a name, back and the system call; handler, restore; tail.
    assert_eq!(times, [0, 1, 4, 6, 9, 11, 13, 14, 18, 18, 20, 21, 21, 22]);
}

/// The clock of the test machine advances each time that the encoder reads it.
#[test]
fn times_are_those_of_packets() {
    let root = root();
    let mut cpu = Cpu::new(configs().next().unwrap());
    cpu.run(1_000_000, RUNS[0]);
    cpu.run(2_000_000, RUNS[1]);
    let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
    let spans = spans(&made, root.path(), Clock::Time);
    let first = spans[0].0;
    assert!((1_000_000..1_010_000).contains(&first), "{spans:?}");
    // An instruction after the last packet with a time takes a nanosecond.
    let offsets: Vec<_> = spans[1..7].iter().map(|(time, _)| time - first).collect();
    assert_eq!(offsets, [1, 4, 6, 9, 11, 13]);
    let (handler, name) = &spans[7];
    assert_eq!(name.as_deref(), Some("handler"));
    assert!((2_000_000..2_010_000).contains(handler), "{spans:?}");
}

/// Where trace is missing, no function is open, and a span shows the gap.
#[test]
fn gaps_are_shown() {
    let root = root();
    let config = configs().next().unwrap();
    let second = all_runs(config);
    // Bytes that are no packet, in the middle of main.
    let mut first = Cpu::new(config);
    first.run(10, &[MAIN, F, F + 1]);
    let bad = [0x02, 0xff];
    let bytes = [&first.ring.bytes[..], &bad, &second.ring.bytes].concat();
    let made = recording(&[&bytes], 1, "/prog", BUILD_ID);
    for clock in [Clock::Time, Clock::Instructions] {
        let spans = spans(&made, root.path(), clock);
        assert_balanced(&spans);
        assert_eq!(
            shape(&spans),
            format!("main{{f{{}}}}[trace lost]{{}}{SHAPE}")
        );
    }
}

/// A program that calls `f` `count` times.
fn many(count: usize) -> Cpu {
    let mut cpu = Cpu::new(configs().next().unwrap());
    let mut run = Vec::new();
    for _ in 0..count {
        run.extend([MAIN, F, F + 1, F + 2, MAIN + 5]);
    }
    run.push(MAIN + 7);
    cpu.run(10, &run);
    cpu
}

/// Each file begins with the spans that are open, and ends them.
#[test]
fn pieces_open_by_themselves() {
    let root = root();
    let dir = tempfile::tempdir().unwrap();
    let made = recording(&[&many(20_000).ring.bytes], 1, "/prog", BUILD_ID);
    for (format, name) in [(Format::Perfetto, "p"), (Format::Firefox, "f")] {
        let output = dir.path().join(name);
        let options = options(root.path(), Clock::Time);
        let done = export(&made, &options, format, &output, PIECE_MIN).unwrap();
        assert!(done.files.len() > 5, "{:?}", done.files);
        assert!(!output.exists());
        let mut calls = 0;
        for (n, file) in (1..).zip(&done.files) {
            assert_eq!(*file, dir.path().join(format!("{name}.{n}")));
            let bytes = fs::read(file).unwrap();
            let len = u64::try_from(bytes.len()).unwrap();
            assert!(len < 2 * PIECE_MIN, "{len} bytes in {}", file.display());
            if format == Format::Firefox {
                calls += old_spans(&serde_json::from_slice(&bytes).unwrap());
            }
        }
        if format == Format::Firefox {
            assert_eq!(calls, 20_000);
        }
    }
    let options = options(root.path(), Clock::Time);
    let error = export(
        &made,
        &options,
        Format::Perfetto,
        &dir.path().join("x"),
        1000,
    )
    .unwrap_err();
    assert!(error.to_string().contains("65536 at least"), "{error}");
}

/// Number of calls of `f` in the part for speedscope, which reads the samples in their order. Each file begins and ends outside of all
/// calls.
fn old_spans(file: &Value) -> usize {
    assert_eq!(file["systemHost"]["name"], "Firefox");
    let thread = &file["profile"]["threads"][0];
    let stacks = thread["stackTable"]["data"].as_array().unwrap();
    let samples = thread["samples"]["data"].as_array().unwrap();
    let name = |stack: &Value| {
        let row = &stacks[usize::try_from(stack.as_u64()?).ok()?];
        let frame = usize::try_from(row[1].as_u64()?).ok()?;
        thread["stringTable"][frame].as_str().map(str::to_owned)
    };
    assert_eq!(name(&samples[0][0]).unwrap(), "main (in prog)");
    assert!(samples.last().unwrap()[0].is_null());
    // The processed profile has as many samples, unless some are very long.
    let processed = &file["threads"][0]["samples"];
    assert_eq!(
        processed["length"].as_u64().unwrap(),
        u64::try_from(samples.len()).unwrap()
    );
    let weights: u64 = processed["weight"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w.as_u64().unwrap())
        .sum();
    let duration = file["duration"].as_f64().unwrap() * 1e6;
    let error = duration - f64::from(u32::try_from(weights).unwrap());
    assert!(error.abs() < 1.0, "{duration} {weights}");
    let times: Vec<_> = samples.iter().map(|row| row[1].as_f64().unwrap()).collect();
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    let is_f = |row: &&Value| name(&row[0]).as_deref() == Some("f (in prog)");
    // A call that was open in the file before begins again, at the time of its caller.
    let again = times[0] == times[1] && is_f(&&samples[1]);
    samples.iter().filter(is_f).count() - usize::from(again)
}

/// The reader may close the pipe early, as in `auxview script | head -n1`.
#[test]
fn who_reads_may_stop() {
    let root = root();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("perf.data");
    let made = recording(&[&many(20_000).ring.bytes], 1, "/prog", BUILD_ID);
    fs::write(&file, made).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_auxview"))
        .args(["script", "--symfs"])
        .args([root.path(), &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The output is longer than a pipe holds.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}

#[test]
fn nothing_is_refused() {
    let root = root();
    let dir = tempfile::tempdir().unwrap();
    let made = recording(&[&[0xff; 64]], 1, "/prog", BUILD_ID);
    let options = options(root.path(), Clock::Time);
    let output = dir.path().join("out");
    let error = export(&made, &options, Format::Perfetto, &output, PIECE).unwrap_err();
    assert!(error.to_string().contains("nothing to export"), "{error}");
    assert!(!output.exists());
}

proptest! {
    /// Damaged trace gives balanced spans, and times that do not decrease.
    #[test]
    fn damage_keeps_the_balance(
        place in 0_usize..400,
        how in 0..3,
        bytes in proptest::collection::vec(any::<u8>(), 1..20),
        rings in 1_usize..3,
        seen in any::<bool>(),
    ) {
        let root = root();
        let config = configs().nth(2).unwrap();
        let mut trace = all_runs(config).ring.bytes;
        let place = place % trace.len();
        let end = (place + bytes.len()).min(trace.len());
        match how {
            0 => trace.iter_mut().skip(place).zip(&bytes).for_each(|(old, flip)| *old ^= flip),
            1 => drop(trace.splice(place..end, [])),
            _ => drop(trace.splice(place..place, bytes)),
        }
        let whole = all_runs(config).ring.bytes;
        let all = [trace.as_slice(), whole.as_slice()];
        let made = recording(&all[..rings], 1, "/prog", BUILD_ID);
        let clock = if seen { Clock::Time } else { Clock::Instructions };
        let text = Text::default();
        if script(&made, &options(root.path(), clock), Box::new(text)).is_ok() {
            assert_balanced(&spans(&made, root.path(), clock));
        }
    }
}
