// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that viewers show in an export what was executed: Perfetto's own classes for its format, and speedscope in a browser.
//!
//! Both come from their package registries. pip and the browser come from Debian, in the build root that `RUNNER=viewers` makes.

use super::executed::{Printed, Verdict};
use super::recordings::{Recording, PLAIN, THREADS};
use super::rows::Row;
use super::spans::spans;
use super::{judged, record, steps, Recorded};
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use crate::suites::exact::programs;
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PERFETTO: &str = "perfetto==0.59.1";
const SPEEDSCOPE: &str = "speedscope@1.25.0";

/// The recordings that are made in the guest.
const RECORDED: [&Recording; 2] = [&PLAIN, &THREADS];

/// A row: its name, the recording, the command that exports the recording and reads the export, and the check of the output.
type Shown = (
    &'static str,
    &'static Recording,
    &'static str,
    fn(&Printed<'_>) -> Verdict,
);

const ROWS: [Shown; 4] = [
    (
        "Perfetto's classes",
        &PLAIN,
        "$AUXREC export --no-lines -o spans $DATA >summary && PYTHONPATH=$PERFETTO python3 $SCRIPTS/slices.py spans",
        spans::<false>,
    ),
    (
        "Perfetto's classes, instructions",
        &PLAIN,
        "$AUXREC export --no-lines --clock instructions -o spans $DATA >summary && PYTHONPATH=$PERFETTO python3 $SCRIPTS/slices.py spans",
        spans::<true>,
    ),
    (
        "Perfetto's classes, threads",
        &THREADS,
        "$AUXREC export --no-lines -o spans $DATA >summary && PYTHONPATH=$PERFETTO python3 $SCRIPTS/slices.py spans",
        spans::<false>,
    ),
    (
        "speedscope, instructions",
        &PLAIN,
        "$AUXREC export --no-lines --clock instructions --format firefox -o spans $DATA >summary && python3 $SCRIPTS/speedscope.py $SPEEDSCOPE spans",
        spans::<true>,
    ),
];

/// Records programs in a guest, exports the recordings, and opens the exports with the viewers.
///
/// # Errors
///
/// When this is not the build root for viewers, a build fails, or a file cannot be read or written.
pub(crate) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let viewers = fetch(cache)?;
    let dir = dir.join("viewers");
    let tools = tools::build(cache)?;
    let built = modules::build(cache, kernel, Mode::Plain)?;
    programs(cache)?;
    let progress = Progress::begin("what viewers show of exports");
    let outcome = record(cache, &dir, kernel, &built.files, &tools, &RECORDED)?;
    if let Some(fault) = outcome.faults().first() {
        return Ok(Case::suite(
            "viewers",
            vec![Case::fail(&fault.name, &fault.reason)],
        ));
    }
    let tool = |name: &str| {
        let found = tools.iter().find(|(tool, _)| tool == name);
        found
            .map(|(_, path)| path.clone())
            .ok_or_else(|| Error::Other(format!("{name} was not built")))
    };
    let recorded = Recorded {
        files_of_unit: outcome.files.clone(),
        files: outcome.files,
        programs: cache.build().join("programs"),
        environment: vec![
            ("AUXREC", tool("auxrec")?),
            ("PERFETTO", viewers.join("python")),
            (
                "SPEEDSCOPE",
                viewers.join("node_modules/speedscope/dist/release/index.html"),
            ),
            (
                "SCRIPTS",
                cache
                    .checkout()
                    .join("tools/vm/src/suites/exact/matrix/scripts/viewers"),
            ),
        ],
        executed: steps(
            cache,
            &dir,
            &tool("steptrace")?,
            &RECORDED.map(|recording| recording.program),
        )?,
    };
    let row = |(name, recording, command, right): Shown| Row {
        name: name.to_owned(),
        recording,
        command,
        right,
    };
    let suite = Case::suite("viewers", judged(&dir, &recorded, &ROWS.map(row))?);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Fetches the viewers with pip and npm.
fn fetch(cache: &Cache) -> Result<PathBuf> {
    let name = format!("viewers-{}", hash([PERFETTO, SPEEDSCOPE, "1"]));
    cache.entry(&name, |temporary, _| {
        let progress = Progress::begin("fetching Perfetto's classes and speedscope");
        let log = Log::create(&cache.log("viewers.log"))?;
        let mut pip = Command::new("pip3");
        pip.args([
            "install",
            "--no-input",
            "--no-compile",
            "--root-user-action=ignore",
            "--target",
        ])
        .arg(temporary.join("python"))
        .arg(PERFETTO);
        log.run("pip, which installs perfetto,", &mut pip)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"])
            .arg("--prefix")
            .arg(temporary)
            .arg(SPEEDSCOPE)
            // Node trusts only its own certificates by default.
            .env("NODE_EXTRA_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt")
            .env("npm_config_cache", temporary.join("npm"));
        log.run("npm, which installs speedscope,", &mut npm)?;
        let downloads = temporary.join("npm");
        fs::remove_dir_all(&downloads).on("remove", &downloads)?;
        progress.end("ready");
        Ok(())
    })
}
