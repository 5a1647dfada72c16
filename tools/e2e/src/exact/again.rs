// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The same in another way: a program's trace against what `steptrace` has logged of it.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use steptrace::compare::{self, Decoded};
use steptrace::log;

use super::decoders::{image, perf, walk};
use super::judge::total;
use super::record::output;
use super::{Outcome, Program, Way, CODE};

/// Records a program that was logged.
pub(super) fn runs(programs: &Path, program: &Program, way: Way) -> Result<Outcome> {
    let path = programs.join(program.name);
    let path = path.to_str().context("no plain path")?;
    let mut command = vec![path];
    if program.name == "generated" {
        command.push(CODE);
    }
    let data = format!("/out/{}.{way}.data", program.name);
    let seen = output(
        &[
            "auxrec",
            "record",
            "-q",
            "-e",
            "intel_pt//u",
            "-m64,512",
            "--aux-watermark=512K",
            "-o",
            &data,
            "--",
        ],
        &command,
        "",
    )?;
    let alone = output(&[], &command, "")?;
    ensure!(
        seen.stdout == alone.stdout && seen.status == alone.status,
        "under auxrec it ends with {} and says {:?}, else with {} and says {:?}; {}",
        seen.status,
        String::from_utf8_lossy(&seen.stdout),
        alone.status,
        String::from_utf8_lossy(&alone.stdout),
        String::from_utf8_lossy(&seen.stderr),
    );
    Ok(Outcome::Good(alone.status.to_string()))
}

/// Compares what perf and libipt show of it with the log.
pub(super) fn compared(
    files: &Path,
    walker: &Path,
    program: &Program,
    way: Way,
) -> Result<Outcome> {
    let name = program.name;
    let data = files.join(format!("{name}.{way}.data"));
    let path = files.join(format!("{name}.log"));
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let logged = log::read(BufReader::new(file))?;
    let executed = total(&logged);
    ensure!(executed > 0, "the log is empty");
    let same = |decoded: Decoded| {
        let outcome = compare::compare(&logged, decoded);
        ensure!(outcome.is_equal(), "{outcome}");
        Ok(())
    };
    same(perf(&data)?).context("by perf")?;
    let mut note = format!("{executed} instructions in {} threads", logged.len());
    if program.one {
        same(walk(&data, walker, files, &image(&data)?)?).context("by libipt")?;
        note += ", by libipt as well";
    }
    Ok(Outcome::Good(note))
}
