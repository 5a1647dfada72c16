// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The second part of the demonstration: stock perf decodes the trace of every instruction of a Debian program.

use crate::error::{Error, OnFile, Result};
use crate::step::Log;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// The traced program. The guest has it from the build root, so perf finds it here under the same path.
pub const PROGRAM: &str = "/usr/bin/perl";

/// The result of decoding a recording of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Instructions that stock perf finds.
    perf: u64,
    /// Errors that stock perf prints.
    errors: u64,
    /// Instructions that `auxrec report` finds.
    auxrec: u64,
    /// Bytes of trace.
    bytes: u64,
}

impl Traced {
    /// Decodes `perl.data` in `dir`, and writes a call tree and a flame graph to `dir`.
    ///
    /// # Errors
    ///
    /// When perf or `auxrec` fails, or its output lacks a number.
    pub fn decode(dir: &Path, auxrec: &Path) -> Result<Self> {
        let log = Log::create(&dir.join("decode.log"))?;
        let data = dir.join("perl.data");
        let perf = |arguments: &[&str]| {
            let mut command = Command::new("perf");
            command.args(arguments).arg("-i").arg(&data);
            command
        };

        let (count, errors) = instructions(perf(&["script", "--itrace=i1ie", "-F", "ip"]))?;
        let tree = log.output(
            "drawing a call tree",
            &mut perf(&[
                "report",
                "--stdio",
                "--itrace=i1000ig",
                "--children",
                "--call-graph=caller,0.5",
                "--percent-limit=5",
            ]),
        )?;
        let path = dir.join("perl-calls.txt");
        fs::write(&path, tree).on("write", &path)?;

        let said = log.output(
            "drawing a flame graph",
            Command::new(auxrec)
                .arg("report")
                .arg(&data)
                .arg("--flamegraph")
                .arg(dir.join("perl.svg")),
        )?;
        let number = |before: &str, after: &str| {
            said.lines()
                .find_map(|l| {
                    l.strip_prefix(before)?
                        .split_once(after)?
                        .0
                        .rsplit(' ')
                        .next()?
                        .parse()
                        .ok()
                })
                .ok_or_else(|| {
                    Error::Other(format!(
                        "auxrec report did not say how many{after}: see {}",
                        log.path().display()
                    ))
                })
        };
        Ok(Self {
            perf: count,
            errors,
            auxrec: number("# ", " instructions")?,
            bytes: number("# total:", " bytes")?,
        })
    }

    /// The first expectation that the result does not meet, if there is one.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        if self.errors > 0 {
            return Some(format!(
                "perf has {} errors in the trace of perl",
                self.errors
            ));
        }
        (self.perf == 0 || self.perf != self.auxrec).then(|| {
            format!(
                "perf finds {} instructions in the trace of perl, auxrec {}",
                self.perf, self.auxrec
            )
        })
    }

    /// The result in one line.
    #[must_use]
    pub fn line(&self) -> String {
        // In hundredths of a bit per instruction.
        let bits = self.bytes * 800 / self.perf.max(1);
        format!(
            "perl: {} instructions in {} bytes of Intel PT ({}.{:02} bits each), decoded by stock perf with {} errors",
            self.perf,
            self.bytes,
            bits / 100,
            bits % 100,
            self.errors
        )
    }
}

/// Counts the lines of perf's output that are an address, and the lines that report an error.
fn instructions(mut perf: Command) -> Result<(u64, u64)> {
    let mut child = perf
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| Error::Spawn {
            program: perf.get_program().to_string_lossy().into_owned(),
            source,
        })?;
    let mut counts = (0, 0);
    if let Some(output) = child.stdout.take() {
        let lines = BufReader::new(output).lines();
        lines
            .map_while(std::result::Result::ok)
            .for_each(|line| count(&line, &mut counts));
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(counts),
        Ok(status) => Err(Error::Other(format!("{perf:?} ended with {status}"))),
        Err(e) => Err(Error::Other(format!("{perf:?}: {e}"))),
    }
}

fn count(line: &str, (instructions, errors): &mut (u64, u64)) {
    if u64::from_str_radix(line.trim(), 16).is_ok() {
        *instructions += 1;
    } else if line.contains("error") {
        *errors += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let mut counts = (0, 0);
        for line in [
            "     7ffff7fdada3 ",
            "ffff",
            " instruction trace error type 1 time 17.0 cpu 1 pid 2 tid 2 ip 0 code 6: Trace doesn't match instruction",
            "",
        ] {
            count(line, &mut counts);
        }
        assert_eq!(counts, (2, 1));
    }

    #[test]
    fn nothing_is_hidden() {
        let good = Traced {
            perf: 1000,
            errors: 0,
            auxrec: 1000,
            bytes: 100,
        };
        assert_eq!(good.complaint(), None);
        assert!(good.line().contains("0.80 bits"));
        for bad in [
            Traced { errors: 1, ..good },
            Traced { perf: 999, ..good },
            Traced {
                perf: 0,
                auxrec: 0,
                ..good
            },
        ] {
            assert!(bad.complaint().is_some(), "{bad:?}");
        }
    }
}
