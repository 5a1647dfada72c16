// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Flame graphs of a program whose every instruction is known.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use auxview::flamegraph::calls;
use intel_pt::insn::Mode;
use testdata::program::*;

fn folded(recording: &[u8], root: &Path) -> (String, u64) {
    let calls = calls(recording, root).unwrap();
    let mut text = Vec::new();
    calls.fold(&mut text).unwrap();
    (String::from_utf8(text).unwrap(), calls.losses())
}

const FOLDED: &str = "\
prog;main 7
prog;main;f 6
prog;main;handler 4
prog;main;prog+0x1040 2
prog;main;restore::rate() 2
prog;tail 1
";

#[test]
fn every_instruction_is_counted_where_it_was() {
    let root = root();
    for config in configs() {
        let mut cpu = Cpu::new(config);
        for run in RUNS {
            cpu.run(10, run);
        }
        let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
        let (text, losses) = folded(&made, root.path());
        assert_eq!((text.as_str(), losses), (FOLDED, 0), "{config:?}");

        let picture = calls(&made, root.path()).unwrap().draw().unwrap();
        let picture = String::from_utf8(picture).unwrap();
        assert!(picture.starts_with("<?xml") && picture.contains("restore::rate()"));
    }
}

#[test]
fn a_name_that_is_not_utf8() {
    let root = root();
    let name = OsStr::from_bytes(b"pro\xffg");
    fs::rename(root.path().join("prog"), root.path().join(name)).unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    for run in RUNS {
        cpu.run(10, run);
    }
    let made = recording(&[&cpu.ring.bytes], 1, b"/pro\xffg", BUILD_ID);
    let want = FOLDED.replace("prog+", "pro\u{fffd}g+");
    assert_eq!(folded(&made, root.path()), (want, 0));
}

/// Code of a JIT, which the recorder has saved as it was in memory.
#[test]
fn a_file_in_no_format() {
    let root = root();
    let mut code = fs::read(root.path().join("prog")).unwrap();
    code[..4].fill(0);
    fs::write(root.path().join("trace.code"), code).unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    for run in RUNS {
        cpu.run(10, run);
    }
    let made = recording(&[&cpu.ring.bytes], 1, "/trace.code", None);
    let (text, losses) = folded(&made, root.path());
    let named = text
        .lines()
        .all(|line| line.starts_with("prog;trace.code+0x"));
    let counts = text.lines().filter_map(|line| line.rsplit_once(' '));
    let sum: u64 = counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    assert!(named && sum == 22 && losses == 0, "{losses} {text}");
}

/// A thread that is stopped after each instruction, and continues on the other CPU.
#[test]
fn calls_are_kept_when_the_cpu_changes() {
    let root = root();
    for config in configs() {
        let mut cpus = [Cpu::new(config), Cpu::new(config)];
        let mut time = 0;
        for run in RUNS {
            for (n, pair) in run.windows(2).enumerate() {
                time += 1_000_000;
                cpus[n % 2].run(time, pair);
            }
        }
        let rings = cpus.each_ref().map(|cpu| cpu.ring.bytes.as_slice());
        let made = recording(&rings, 1, "/prog", BUILD_ID);
        let (text, losses) = folded(&made, root.path());
        assert_eq!((text.as_str(), losses), (FOLDED, 0), "{config:?}");
    }
}

/// If only some code is traced, its instructions are counted where it was called, as far as the trace shows that.
#[test]
fn code_that_is_not_traced_is_left_out() {
    let root = root();
    let f: &[u64] = &[F, F + 1, F + 2, MAIN + 5];
    let main: [&[u64]; 4] = [
        &[MAIN, F],
        &[MAIN + 5, MAIN, F],
        &[MAIN + 5, MAIN + 7, NAMELESS],
        &[MAIN + 9, 0],
    ];
    for (runs, want) in [([f; 4], "prog;f 12\n"), (main, "prog;main 6\n")] {
        for config in configs() {
            let mut cpu = Cpu::new(config);
            for run in runs {
                cpu.run(10, run);
            }
            let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
            let (text, losses) = folded(&made, root.path());
            assert_eq!((text.as_str(), losses), (want, 0), "{config:?}");
        }
    }
}

/// After a damaged part, following continues at the next place where it can begin.
#[test]
fn what_is_wrong_is_said_and_left_out() {
    let root = root();
    let mut good = Cpu::new(configs().next().unwrap());
    for run in RUNS {
        good.run(10, run);
    }
    let all = &good.ring.bytes;
    let (first, count) = folded(&recording(&[all], 1, "/prog", BUILD_ID), root.path());
    assert_eq!((first.as_str(), count), (FOLDED, 0));

    // Trace at an address that no record maps.
    let mut stranger = Cpu::new(configs().next().unwrap());
    stranger
        .pt
        .enable(0x1234, Mode::Bits64, &mut stranger.ring)
        .unwrap();
    // The last byte of the trace is the first of a TSC.
    let mut cut = all.clone();
    cut.resize(all.len().next_multiple_of(8) + 7, 0);
    cut.push(0x19);
    for (wrong, why) in [
        (
            [stranger.ring.bytes.as_slice(), all].concat(),
            "no record describes",
        ),
        ([&all[..40], all].concat(), "packet"),
        ([all.as_slice(), &[0x02, 0xff]].concat(), "no packet"),
        (cut, "cut"),
        (vec![0xff; 64], "PSB"),
    ] {
        let made = recording(&[&wrong], 1, "/prog", BUILD_ID);
        let found = calls(&made, root.path()).unwrap();
        assert_eq!(found.losses(), 1, "{why}: {}", found.summary());
        assert!(found.summary().contains(why), "{why}: {}", found.summary());
        if why != "PSB" {
            assert!(found.count() >= 22, "{why}: {}", found.summary());
        } else {
            assert!(found
                .draw()
                .unwrap_err()
                .to_string()
                .contains("nothing to draw"));
        }
    }
}

/// A recording from another machine can name any file.
#[test]
fn names_of_other_files_are_refused() {
    let root = root();
    let inner = root.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    cpu.run(10, RUNS[0]);
    for (root, file, why) in [
        (&*inner, "/../prog", "No such file"),
        (Path::new("/"), "/proc/kmsg", "it is in procfs"),
        (root.path(), "/\x1b[2J", "/\\u{1b}[2J, which cannot be read"),
    ] {
        let made = recording(&[&cpu.ring.bytes], 1, file, BUILD_ID);
        let error = calls(&made, root).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    // A path that does lead to the file: the root is its own parent.
    let made = recording(&[&cpu.ring.bytes], 1, "/inner/../../prog", BUILD_ID);
    assert!(calls(&made, root.path()).is_ok());
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let root = root();
    fs::write(root.path().join("text"), "no program").unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    cpu.run(10, RUNS[0]);
    let bytes = cpu.ring.bytes.as_slice();

    for (made, why) in [
        (
            recording(&[bytes], 1, "/gone", BUILD_ID),
            "/gone, which cannot be read",
        ),
        (
            recording(&[bytes], 1, "/text", BUILD_ID),
            "/text is not the file that was traced: it has no build-id",
        ),
        (
            recording(&[bytes], 1, "/", BUILD_ID),
            "it is no regular file",
        ),
        (
            recording(&[bytes], 1, "/prog", [8; 20]),
            "its build-id is 0707",
        ),
        (
            recording(&[bytes], 2, "/prog", BUILD_ID),
            "no trace of Intel PT",
        ),
    ] {
        let error = calls(&made, root.path()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
