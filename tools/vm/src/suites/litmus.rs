// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Litmus tests of the ring's barriers, under the kernel's own memory model: `Documentation/litmus/*.litmus`.
//!
//! A test must hold as written, and must not hold if any one of its barriers is left out. Otherwise it would prove nothing about that
//! barrier. The variant without (X) leaves out each line that ends with `// (X)`. If the line ends with `// (X), else: CODE`, CODE replaces
//! it. The head of the file states what herd7 must find: `Result: Never`, and for each mark `Without (X): Sometimes`.

use crate::archive::Archive;
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suite with herd7: trixie has none.
const SUITE: &str = "forky";

/// The package of herd7, and those of the libraries that it needs in later versions than trixie's.
const PACKAGES: [&str; 3] = ["herdtools7", "libc6", "libgmp10"];

/// Runs all tests. `model` is the kernel's `tools/memory-model`.
///
/// # Errors
///
/// When herd7 or the model cannot be had, or a file cannot be read or written.
pub fn run(cache: &Cache, model: &Path) -> Result<Case> {
    let herd = Herd::prepare(cache, model)?;
    let folder = cache.checkout().join("Documentation/litmus");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).on("read", &folder)? {
        let path = entry.on("read", &folder)?.path();
        if path.extension().is_some_and(|e| e == "litmus") {
            files.push(path);
        }
    }
    files.sort();

    let dir = cache.build().join("test/litmus");
    let progress = Progress::begin("litmus tests");
    let mut suites = Vec::new();
    for path in &files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(path).on("read", path)?;
        let cases = match Test::parse(&text) {
            Ok(test) => test
                .variants
                .iter()
                .map(|variant| herd.judge(&dir, &name, &text, variant))
                .collect::<Result<_>>()?,
            Err(fault) => vec![Case::fail("form", &fault)],
        };
        suites.push(Case::suite(&name, cases));
    }
    let suite = Case::suite("litmus", suites);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// A variant of a test.
#[derive(Debug, PartialEq, Eq)]
struct Variant {
    /// The mark whose lines are left out, if any.
    without: Option<String>,
    /// What herd7 must find: Never, Sometimes or Always.
    expected: String,
}

/// The variants that the head of a file announces.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    variants: Vec<Variant>,
}

impl Test {
    /// Parses the head, and checks that it announces each mark in the file and no other.
    fn parse(text: &str) -> Result<Self, String> {
        let mut variants = Vec::new();
        for line in text.lines() {
            let line = line.trim_start_matches([' ', '*']);
            if let Some(expected) = line.strip_prefix("Result: ") {
                variants.push(Variant {
                    without: None,
                    expected: expected.trim().to_owned(),
                });
            } else if let Some((mark, expected)) = line
                .strip_prefix("Without (")
                .and_then(|rest| rest.split_once("): "))
            {
                variants.push(Variant {
                    without: Some(mark.to_owned()),
                    expected: expected.trim().to_owned(),
                });
            }
        }
        let announced: BTreeSet<_> = variants
            .iter()
            .filter_map(|v| v.without.as_deref())
            .collect();
        let marked: BTreeSet<_> = text.lines().filter_map(|l| Some(mark(l)?.1)).collect();
        if variants.iter().filter(|v| v.without.is_none()).count() != 1 {
            return Err("it must say \"Result: …\" once".to_owned());
        }
        if announced != marked {
            return Err(format!(
                "it announces {announced:?} and marks {marked:?}: each mark needs its \"Without (…): …\""
            ));
        }
        Ok(Self { variants })
    }
}

/// A line's code, its mark, and the code that replaces the line in the variant without the mark.
fn mark(line: &str) -> Option<(&str, &str, &str)> {
    let (code, comment) = line.split_once("// (")?;
    let (mark, rest) = comment.split_once(')')?;
    Some((code, mark, rest.strip_prefix(", else: ").unwrap_or("")))
}

/// The text of the test without the lines that have the mark `left_out`.
fn without(text: &str, left_out: Option<&str>) -> String {
    let mut out = String::new();
    for line in text.lines() {
        out += match mark(line) {
            Some((_, mark, instead)) if Some(mark) == left_out => instead,
            Some((code, ..)) => code.trim_end(),
            None => line,
        };
        out.push('\n');
    }
    out
}

/// herd7, with the libraries that it was built for.
struct Herd {
    dir: PathBuf,
    model: PathBuf,
}

impl Herd {
    fn prepare(cache: &Cache, model: &Path) -> Result<Self> {
        if !model.join("linux-kernel.cfg").is_file() {
            return Err(Error::Other(format!(
                "{} has no memory model: the kernel's source is not whole; remove it, or run `make clean-cache`.",
                model.display()
            )));
        }
        let mut parts = vec![SUITE];
        parts.extend(PACKAGES);
        let dir = cache.entry(&format!("herd-{}", hash(parts)), |temporary, _| {
            let progress = Progress::begin("fetching herd7");
            fetch(cache, temporary)?;
            progress.end("ready");
            Ok(())
        })?;
        Ok(Self {
            dir,
            model: model.to_owned(),
        })
    }

    fn command(&self) -> Command {
        let libraries = self.dir.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(&libraries)
            .arg(self.dir.join("herd7"))
            .arg("-set-libdir")
            .arg(self.dir.join("usr/share/herdtools7/herd"))
            .args(["-conf", "linux-kernel.cfg"])
            .current_dir(&self.model);
        command
    }

    fn judge(&self, dir: &Path, name: &str, text: &str, variant: &Variant) -> Result<Case> {
        let (case, file) = match &variant.without {
            None => ("as written".to_owned(), name.to_owned()),
            Some(mark) => (
                format!("without ({mark})"),
                format!("{name}-without-{mark}"),
            ),
        };
        let log = Log::create(&dir.join(format!("{file}.log")))?;
        let path = dir.join(format!("{file}.litmus"));
        fs::write(&path, without(text, variant.without.as_deref())).on("write", &path)?;
        let ended = log.status(self.command().arg(&path))?;
        let said = log.text();
        let found = observation(&said).unwrap_or("nothing");

        Ok(if ended.success() && found == variant.expected {
            Case::pass(&case)
        } else {
            Case::fail(
                &case,
                &format!(
                    "expected {}, herd7 found {found}; see {}",
                    variant.expected,
                    log.path().display()
                ),
            )
            .with_log(said.lines().map(str::to_owned).collect())
        })
    }
}

/// herd7's result for the condition, from a line such as "Observation NAME Never 0 3".
fn observation(said: &str) -> Option<&str> {
    let line = said.lines().find_map(|l| l.strip_prefix("Observation "))?;
    line.split_whitespace().nth(1)
}

/// Fetches the packages, and unpacks the files that are needed into `dir`.
fn fetch(cache: &Cache, dir: &Path) -> Result<()> {
    let log = Log::create(&cache.log("herd.log"))?;
    let work = dir.join("apt");
    // A mirror that is some weeks behind is good enough.
    let archive = Archive::new(work.clone(), SUITE)?.with(&["Acquire::Check-Valid-Until=false"]);
    archive.update(&log, true)?;
    archive.fetch(&log, &PACKAGES, dir)?;
    let (programs, herd) = (dir.join("usr/bin"), dir.join("herd7"));
    fs::rename(programs.join("herd7"), &herd).on("move", &herd)?;
    // The package's other programs take most of the space.
    for unneeded in [&programs, &work] {
        fs::remove_dir_all(unneeded).on("remove", unneeded)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "C t\n(*\n * Result: Never\n * Without (A): Sometimes\n * Without (B): Always\n *)\nif (x) { // (A), else: {\n\twmb(); // (B)\n}\n";

    #[test]
    fn a_mark_is_left_out_alone() {
        let code = |left_out| {
            let text = without(TEXT, left_out);
            text.lines().skip(6).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(code(None), ["if (x) {", "\twmb();", "}"]);
        assert_eq!(code(Some("A")), ["{", "\twmb();", "}"]);
        assert_eq!(code(Some("B")), ["if (x) {", "", "}"]);
    }

    #[test]
    fn every_mark_is_announced() {
        let test = Test::parse(TEXT).unwrap();
        assert_eq!(test.variants.len(), 3);
        assert_eq!(test.variants[2].without.as_deref(), Some("B"));
        assert_eq!(test.variants[2].expected, "Always");
        assert!(Test::parse(&TEXT.replace("// (B)", "")).is_err());
        assert!(Test::parse(&TEXT.replace(" * Without (A): Sometimes\n", "")).is_err());
        assert!(Test::parse("C t\n").is_err());
    }

    #[test]
    fn what_herd_says_is_understood() {
        let said = "Test t Allowed\nStates 3\nNo\nObservation t Never 0 3\n";
        assert_eq!(observation(said), Some("Never"));
        assert_eq!(observation("Warning: syntax error"), None);
    }
}
