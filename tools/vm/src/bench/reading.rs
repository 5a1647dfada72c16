// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory that the reader needs for a recording with much trace.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::peak_memory;
use crate::results::figures::Figure;
use crate::tools;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;
use testdata::program;

/// Bytes of trace in the recording.
const TRACE: u64 = 1 << 30;

/// The folder in `build/` for the recording and for what the commands write.
const PLACE: &str = "bench/reading";

/// The commands that read it: the name of the figure, and the arguments of `auxview`.
const COMMANDS: [(&str, &str); 2] = [
    ("report", "report --folded out.folded"),
    ("export", "export -o out.pftrace"),
];

/// The target: at most this many MiB.
const MIB: u64 = 256;

/// The results: the MiB of each command.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures(Vec<u64>);

/// Measures the peak memory use of each command.
///
/// # Errors
///
/// When a command fails.
pub fn run(cache: &Cache) -> Result<Figures> {
    let dir = cache.build().join(PLACE);
    fs::create_dir_all(&dir).on("create", &dir)?;
    let recording = dir.join("perf.data");
    let file = File::create(&recording).on("create", &recording)?;
    program::long(BufWriter::new(file), TRACE);
    let prog = dir.join("prog");
    fs::write(&prog, program::program()).on("write", &prog)?;
    let programs = tools::build(cache)?;
    let auxview = programs.iter().find(|(name, _)| name == "auxview");
    let (_, auxview) =
        auxview.ok_or_else(|| Error::Other("tools/auxview is not in this checkout".to_owned()))?;
    let peaks = COMMANDS.map(|(_, command)| peak(auxview, command, &dir));
    fs::remove_dir_all(&dir).on("remove", &dir)?;
    Ok(Figures(peaks.into_iter().collect::<Result<_>>()?))
}

/// The peak memory use of a command, in MiB.
fn peak(auxview: &Path, command: &str, dir: &Path) -> Result<u64> {
    let failed = |why: &str| Error::Other(format!("auxview {command}: {why}"));
    let said = dir.join("said");
    let out = File::create(&said).on("create", &said)?;
    let errors = out.try_clone().on("open", &said)?;
    let mut running = Command::new(auxview)
        .args(command.split(' '))
        .args(["--symfs", ".", "perf.data"])
        .current_dir(dir)
        .stdout(out)
        .stderr(errors)
        .spawn()
        .map_err(|e| failed(&e.to_string()))?;
    let mut max = 0;
    let status = loop {
        max = max.max(peak_memory(&running));
        let ended = running.try_wait().map_err(|e| failed(&e.to_string()))?;
        if let Some(status) = ended {
            break status;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let said = fs::read_to_string(&said).on("read", &said)?;
    // An iteration of the loop in the program has 5 instructions, and less than 64 bytes of trace.
    let least = TRACE / 64 * 5;
    let count = said.lines().find_map(|line| {
        let (count, _) = line.strip_prefix("# ")?.split_once(" instructions of ")?;
        count.parse::<u64>().ok()
    });
    let all = count.is_some_and(|count| count >= least) && !said.contains("not followed");
    match status.success() && all && max > 0 {
        true => Ok(max.div_ceil(1 << 10)),
        false => Err(failed(&said)),
    }
}

impl Figures {
    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |((name, _), mib): (&(&str, &str), &u64)| {
            format!("auxview {name} of 1 GiB of trace: {mib} MiB of memory")
        };
        COMMANDS.iter().zip(&self.0).map(line).collect()
    }

    /// The figures, with their targets.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |((name, _), mib): (&(&str, &str), &u64)| {
            Figure::count(format!("reading.{name}.1-GiB"), *mib, "MiB").at_most(MIB)
        };
        COMMANDS.iter().zip(&self.0).map(figure).collect()
    }
}
