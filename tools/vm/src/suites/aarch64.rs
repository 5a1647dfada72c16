// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tools for 64-bit Arm, under QEMU's user-mode emulator, compared with those for this machine: both must print and write the same.
//!
//! The emulator has no `perf_event_open()`, so nothing is recorded here.

use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::results::ktap::Case;
use crate::results::libtest;
use crate::step::{Log, Progress};
use crate::suites::install;
use crate::tools::{self, aarch64::Aarch64};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Architecture, Endianness, Object as _};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testdata::program;

type Verdict = std::result::Result<String, String>;
type Programs = [(String, PathBuf)];

/// The parts of the fuzzers' corpus with recordings, both intact and damaged.
const CORPUS: [&str; 4] = ["check", "convert", "file", "recover"];

/// The commands of `auxview` that run on each recording. `IN` is the recording.
const COMMANDS: [&[&str]; 7] = [
    &["check", "IN"],
    &["check", "--json", "IN"],
    &["report", "IN"],
    &["report", "--svg", "rings.svg", "IN"],
    &["dump", "IN"],
    &["recover", "IN", "-o", "recovered"],
    &["convert", "IN", "converted"],
];

/// The commands of `auxview` that run on the trace of a program. `ROOT` is the folder with the program's file.
const OF_CALLS: [&[&str]; 6] = [
    &["check", "IN"],
    &[
        "report",
        "--symfs",
        "ROOT",
        "--flamegraph",
        "calls.svg",
        "IN",
    ],
    &["report", "--symfs", "ROOT", "--folded", "calls.txt", "IN"],
    &["export", "--symfs", "ROOT", "-o", "calls", "IN"],
    &[
        "export", "--symfs", "ROOT", "--format", "firefox", "-o", "calls", "IN",
    ],
    &["script", "--symfs", "ROOT", "IN"],
];

/// The tests that run under the emulator, as options for cargo. They neither start a program of ours nor trace a process: the emulator
/// can do neither.
const TESTS: [&str; 12] = [
    "--package=auxcore",
    "--package=auxrec",
    "--package=auxview",
    "--package=conform",
    "--package=perfdata",
    "--package=tracering",
    "--lib",
    "--bins",
    "--test=check",
    "--test=export",
    "--test=ring_model",
    "--test=roundtrip",
];

/// Runs all cases.
///
/// # Errors
///
/// When the tools cannot be built, or a file cannot be read or written.
pub(crate) fn run(cache: &Cache, dir: &Path) -> Result<Case> {
    let dir = dir.join("aarch64");
    let machine = Aarch64::prepare(cache)?;
    let here = tools::build(cache)?;
    let there = tools::build_aarch64(cache, &machine)?;
    let progress = Progress::begin("the tools for aarch64");
    let both = Both {
        machine: &machine,
        here: &here,
        there: &there,
        work: dir.join("work"),
    };
    let mut cases = vec![
        Case::judged("static programs", are_static(&there)?),
        Case::judged("versions and help", words(&both)?),
        Case::judged("man pages and completions", pages(&both)?),
        Case::judged("recordings", recordings(&both, cache)?),
        Case::judged("calls of a program", calls(&both, &dir)?),
    ];
    let emulated = |program: &Path| machine.command(program);
    tools::pages(cache, &there, emulated)?;
    cases.push(install::check(cache, &dir, "aarch64", emulated)?);
    cases.extend(without_perf(&both, &dir)?);
    progress.end(&Case::suite("", cases.clone()).counts().summary());
    cases.push(unit_tests(cache, &machine, &dir)?);
    Ok(Case::suite("aarch64", cases))
}

/// No program may have an interpreter (`PT_INTERP`), which would load libraries.
fn are_static(programs: &Programs) -> Result<Verdict> {
    for (name, path) in programs {
        let bytes = fs::read(path).on("read", path)?;
        let elf = ElfFile64::<Endianness>::parse(&*bytes)
            .map_err(|error| Error::Other(format!("{} is no program: {error}", path.display())))?;
        let endian = elf.endian();
        let mut headers = elf.elf_program_headers().iter();
        if elf.architecture() != Architecture::Aarch64 {
            return Ok(Err(format!("{name} is for {:?}", elf.architecture())));
        }
        if headers.any(|header| header.p_type(endian) == object::elf::PT_INTERP) {
            return Ok(Err(format!("{name} needs libraries")));
        }
    }
    Ok(Ok(format!("{} programs", programs.len())))
}

/// The programs for this machine, and the same ones for 64-bit Arm.
struct Both<'a> {
    machine: &'a Aarch64,
    here: &'a Programs,
    there: &'a Programs,
    work: PathBuf,
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    status: Option<i32>,
    said: String,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Both<'_> {
    fn place(of: &Programs, name: &str) -> Result<PathBuf> {
        let found = of.iter().find(|(program, _)| program == name);
        found
            .map(|(_, path)| path.clone())
            .ok_or_else(|| Error::Other(format!("{name} is not built")))
    }

    fn natively(&self, name: &str) -> Result<Command> {
        Ok(Command::new(Self::place(self.here, name)?))
    }

    fn emulated(&self, name: &str) -> Result<Command> {
        Ok(self.machine.command(&Self::place(self.there, name)?))
    }

    /// Runs a command in an empty folder.
    fn ended(&self, mut command: Command, args: &[&str]) -> Result<Ended> {
        cache::remove(&self.work)?;
        fs::create_dir_all(&self.work).on("make", &self.work)?;
        let output = command
            .args(args)
            .current_dir(&self.work)
            .stdin(Stdio::null())
            .output()
            .on("run", Path::new(command.get_program()))?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said += &String::from_utf8_lossy(&output.stderr);
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.work).on("read", &self.work)? {
            let path = entry.on("read", &self.work)?.path();
            files.extend(read_all(&path)?);
        }
        Ok(Ended {
            status: output.status.code(),
            said,
            files,
        })
    }

    /// Runs a program natively and emulated. Returns the result, or the difference between both results.
    fn same(&self, name: &str, args: &[&str]) -> Result<std::result::Result<Ended, String>> {
        let here = self.ended(self.natively(name)?, args)?;
        let there = self.ended(self.emulated(name)?, args)?;
        Ok(match here == there {
            true => Ok(here),
            false => Err(format!(
                "`{name} {}` {}",
                args.join(" "),
                difference(&here, &there)
            )),
        })
    }
}

/// Reads a file, or all files below a folder.
fn read_all(path: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), fs::read(path).on("read", path)?)]);
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(path).on("read", path)? {
        all.extend(read_all(&entry.on("read", path)?.path())?);
    }
    Ok(all)
}

fn difference(here: &Ended, there: &Ended) -> String {
    if (here.status, &here.said) != (there.status, &there.said) {
        return format!(
            "ends with {:?}: {}; emulated with {:?}: {}",
            here.status, here.said, there.status, there.said
        );
    }
    let names = here.files.keys().chain(there.files.keys());
    let differs = |name: &&PathBuf| here.files.get(*name) != there.files.get(*name);
    let names = names.filter(differs).map(|name| name.display().to_string());
    format!(
        "writes other bytes into {}",
        names.collect::<Vec<_>>().join(", ")
    )
}

fn words(both: &Both<'_>) -> Result<Verdict> {
    for name in tools::PORTABLE {
        for option in ["--version", "--help"] {
            match both.same(name, &[option])? {
                Ok(ended) if ended.status == Some(0) && !ended.said.is_empty() => {}
                Ok(ended) => return Ok(Err(format!("{name} {option}: {ended:?}"))),
                Err(why) => return Ok(Err(why)),
            }
        }
    }
    Ok(Ok(format!("{} programs", tools::PORTABLE.len())))
}

fn pages(both: &Both<'_>) -> Result<Verdict> {
    let mut count = 0;
    for name in tools::DESCRIBED {
        match both.same(name, &["pages", "."])? {
            Ok(ended) => count += ended.files.len(),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(enough(count, 20, "pages"))
}

/// Runs all [`COMMANDS`] on all recordings of the corpus.
fn recordings(both: &Both<'_>, cache: &Cache) -> Result<Verdict> {
    let (mut good, mut count) = (0, 0);
    for part in CORPUS {
        let part = cache.checkout().join("tools/fuzz/corpus").join(part);
        for (path, _) in read_all(&part)? {
            for command in COMMANDS {
                match both.same("auxview", &given(command, &path, Path::new("/")))? {
                    Ok(ended) => good += usize::from(ended.status != Some(1)),
                    Err(why) => return Ok(Err(why)),
                }
                count += 1;
            }
        }
    }
    Ok(enough(good, 100, "commands that succeed").map(|note| format!("{note} of {count}")))
}

/// The command with the paths of its files.
fn given<'a>(command: &[&'a str], file: &'a Path, root: &'a Path) -> Vec<&'a str> {
    let word = |word: &&'a str| match *word {
        "IN" => file.to_str().unwrap_or_default(),
        "ROOT" => root.to_str().unwrap_or_default(),
        word => word,
    };
    command.iter().map(word).collect()
}

/// Runs all commands in [`OF_CALLS`] on traces of a program.
fn calls(both: &Both<'_>, dir: &Path) -> Result<Verdict> {
    let (root, file) = (dir.join("root"), dir.join("perf.data"));
    fs::create_dir_all(&root).on("make", &root)?;
    let place = root.join("prog");
    fs::write(&place, program::program()).on("write", &place)?;
    let mut count = 0;
    for config in program::configs() {
        let mut cpu = program::Cpu::new(config);
        for run in program::RUNS {
            cpu.run(10, run);
        }
        let made = program::recording(&[&cpu.ring.bytes], 1, "/prog", program::BUILD_ID);
        fs::write(&file, made).on("write", &file)?;
        for command in OF_CALLS {
            match both.same("auxview", &given(command, &file, &root))? {
                Ok(ended) if ended.status == Some(0) => count += 1,
                Ok(ended) => return Ok(Err(format!("{command:?}: {ended:?}"))),
                Err(why) => return Ok(Err(why)),
            }
        }
    }
    Ok(enough(count, OF_CALLS.len(), "commands"))
}

fn enough(count: usize, least: usize, of: &str) -> Verdict {
    match count >= least {
        true => Ok(format!("{count} {of}")),
        false => Err(format!("only {count} {of}, of {least} or more")),
    }
}

/// Commands of the recorder on a machine with perf, under an emulator without it: arguments, exit status, and parts of the output.
const WITHOUT_PERF: [(&[&str], i32, &[&str]); 4] = [
    (
        &["list"],
        0,
        &[
            "pattern (type 4000000): ",
            "\n  pattern/rate=0..16777215/\n",
        ],
    ),
    (
        &["doctor"],
        1,
        &[
            "perf_event_open() does not reach the kernel",
            "prevents: recording Arm SPE",
        ],
    ),
    (
        &["record", "-e", "pattern//", "--", "true"],
        1,
        &["cannot open `pattern//`", "an emulator lacks it"],
    ),
    (
        &["record", "--sideband", "--", "true"],
        1,
        &["cannot open `dummy:u`", "an emulator lacks it"],
    ),
];

/// Runs the recorder on a machine with a PMU, but without `perf_event_open()`.
fn without_perf(both: &Both<'_>, dir: &Path) -> Result<Vec<Case>> {
    let pmus = dir.join("pmus");
    let files = [
        ("pattern/type", "4000000\n"),
        ("pattern/format/rate", "config:0-23\n"),
    ];
    for (name, text) in files {
        let path = pmus.join(name);
        let folder = path.parent().unwrap_or(dir);
        fs::create_dir_all(folder).on("make", folder)?;
        fs::write(&path, text).on("write", &path)?;
    }
    // Without perf, auxrec gives another reason for the commands that fail.
    let has_perf = Path::new("/proc/sys/kernel/perf_event_paranoid").exists();
    let case = |(args, status, says): (&[&str], i32, &[&str])| {
        let name = format!("auxrec {}", args.join(" "));
        if !has_perf && status != 0 {
            return Ok(Case::skip(&name, "the kernel here has no perf events"));
        }
        let mut auxrec = both.emulated("auxrec")?;
        auxrec.env("AUXREC_PMUS", &pmus);
        let ended = both.ended(auxrec, args)?;
        let good = ended.status == Some(status) && says.iter().all(|say| ended.said.contains(say));
        let verdict = match good {
            true => Ok(ended.said),
            false => Err(format!("it ends with {:?}: {}", ended.status, ended.said)),
        };
        Ok(Case::judged(&name, verdict))
    };
    WITHOUT_PERF.into_iter().map(case).collect()
}

fn unit_tests(cache: &Cache, machine: &Aarch64, dir: &Path) -> Result<Case> {
    let progress = Progress::begin("cargo test for aarch64");
    let log = Log::create(&dir.join("cargo-test.log"))?;
    let mut cargo = Command::new("cargo");
    machine.configure(&mut cargo);
    cargo
        .current_dir(cache.checkout().join("tools"))
        .env("CARGO_TERM_COLOR", "never")
        // Enough to find differences between processors. `make check` runs more.
        .env("PROPTEST_CASES", "32")
        .args(["test", "--locked", "--no-fail-fast"])
        .args(["--target", Aarch64::TARGET])
        .args(TESTS)
        .args(["--", "--skip", "who_reads_may_stop"]);
    let good = log.status(&mut cargo)?.success();
    let case = libtest::parse(&log.text(), good);
    progress.end(&case.counts().summary());
    Ok(case)
}
