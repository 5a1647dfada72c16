// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A campaign: all suites on all kernels, the fuzzers and the benchmarks, part by part, and a page about the results.
//!
//! Each part is a separate run of this program. Its result is stored in `build/verify/NAME` with the state of the tree. So an interrupted
//! campaign continues, and a campaign on a changed tree starts anew. A campaign takes long, and the defects that it finds are fixed
//! meanwhile. So it can be given the commit with which it began. Then parts that passed on that commit or a later one count, and the page
//! lists the commit of each part.

pub mod mutants;
mod page;

use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::results::ktap::{self, Case, Counts};
use serde_json::{json, Value};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A part: its name, the arguments of this program, and the build root that it needs (`RUNNER` of `root.sh`).
struct Part {
    name: &'static str,
    args: &'static str,
    runner: &'static str,
}

const fn part(name: &'static str, args: &'static str) -> Part {
    Part {
        name,
        args,
        runner: "",
    }
}

/// All parts. Those that fail soonest are first.
const PARTS: [Part; 43] = [
    part("test", "test"),
    // Suites of which `make test` runs only some cases, or none.
    part("host", "test --suite host"),
    part("matrix", "test --suite matrix"),
    part("e2e", "test --suite e2e"),
    part("beside", "test --suite beside"),
    part("aarch64", "test --suite aarch64"),
    part("golden", "test --suite golden"),
    part("stress", "test --suite stress"),
    part("conform", "test --suite conform"),
    part("exact", "test --suite exact"),
    part("rt-kbuild", "test --suite kbuild --kernel rt"),
    part("rt-matrix", "test --suite matrix --kernel rt"),
    part("rt-e2e", "test --suite e2e --kernel rt"),
    part("rt-conform", "test --suite conform --kernel rt"),
    // The suite's other cases run on the stock kernel, whichever kernel is asked for.
    part("rt-exact", "test --suite exact --kernel rt --case soft_pt"),
    part(
        "rt-exact-kernel",
        "test --suite exact --kernel rt --case code --case guest --case pairs --case samples",
    ),
    part("debug-selftests", "test --suite selftests --kernel debug"),
    part("debug-stress", "test --suite stress --kernel debug"),
    part("debug-kbuild", "test --suite kbuild --kernel debug"),
    part("debug-kunit", "test --suite kunit --kernel debug"),
    part("debug-matrix", "test --suite matrix --kernel debug"),
    part("debug-e2e", "test --suite e2e --kernel debug"),
    part(
        "debug-conform-units",
        "test --suite conform --kernel debug --case units --case pattern --case c_pattern --case minimal",
    ),
    part(
        "debug-conform-soft_pt",
        "test --suite conform --kernel debug --case units --case soft_pt",
    ),
    part(
        "debug-conform-trace_unit",
        "test --suite conform --kernel debug --case units --case trace_unit",
    ),
    part(
        "debug-no-memory-pattern",
        "test --suite conform --kernel debug --case no-memory --case pattern",
    ),
    part(
        "debug-no-memory-soft_pt",
        "test --suite conform --kernel debug --case no-memory --case soft_pt",
    ),
    part(
        "debug-no-memory-trace_unit",
        "test --suite conform --kernel debug --case no-memory --case trace_unit",
    ),
    part(
        "debug-conform-programs",
        "test --suite conform --kernel debug --case programs",
    ),
    part(
        "debug-conform-defects",
        "test --suite conform --kernel debug --case defects",
    ),
    // Without the cases that trace a whole kernel: their unit is outside the guest, where the kernel's checkers do not see it.
    part(
        "debug-exact",
        "test --suite exact --kernel debug --case soft_pt",
    ),
    part("adversary", "adversary --kernel debug --seconds 600"),
    part(
        "operations-1",
        "adversary --kernel debug --operations 2500000 --seed 1000000",
    ),
    part(
        "operations-2",
        "adversary --kernel debug --operations 2500000 --seed 2000000",
    ),
    part(
        "operations-3",
        "adversary --kernel debug --operations 2500000 --seed 3000000",
    ),
    part(
        "operations-4",
        "adversary --kernel debug --operations 2500000 --seed 4000000",
    ),
    part("adversary-rt", "adversary --kernel rt --seconds 600"),
    part("adversary-stock", "adversary --kernel stock --seconds 600"),
    part("fuzz", "fuzz --seconds 300"),
    part("mutants", "mutants"),
    part("demo", "demo"),
    part("bench", "bench"),
    Part {
        name: "viewers",
        args: "test --suite viewers",
        runner: "viewers",
    },
];

/// The result of a part.
struct Outcome {
    name: String,
    /// The state of the tree that it ran on.
    tree: String,
    good: bool,
    seconds: u64,
    /// The last line that it printed: its result, or its error.
    said: String,
    /// Its cases, if it is a suite.
    cases: Vec<Case>,
}

impl Outcome {
    fn counts(&self) -> Option<Counts> {
        let suite = Case::suite(&self.name, self.cases.clone());
        (!self.cases.is_empty()).then(|| suite.counts())
    }
}

/// Runs the parts in `names`, or all. Skips parts that need another build root, and parts that have passed on this tree, on `since` or on a
/// later commit. Returns the path of the page, and whether all wanted parts of this build root have passed.
///
/// # Errors
///
/// When there is no such part or commit, or a result cannot be written.
pub fn run(cache: &Cache, names: &[String], since: Option<&str>) -> Result<(PathBuf, bool)> {
    let runner = std::env::var("RUNNER").unwrap_or_default();
    let dir = cache.build().join("verify");
    fs::create_dir_all(&dir).on("make", &dir)?;
    if let Some(unknown) = names
        .iter()
        .find(|name| !PARTS.iter().any(|part| part.name == **name))
    {
        let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        return Err(Error::Other(format!(
            "there is no part \"{unknown}\": give some of {}",
            known.join(", ")
        )));
    }
    let trees = Trees::of(cache, since)?;
    let mut good = true;
    for part in &PARTS {
        let wanted = names.is_empty() || names.iter().any(|name| name == part.name);
        if !wanted || part.runner != runner {
            continue;
        }
        let folder = dir.join(part.name);
        let before = read(&folder, part.name, &trees);
        let outcome = match before.filter(|outcome| outcome.good) {
            Some(outcome) => outcome,
            None => part.run(cache, &folder, &trees)?,
        };
        crate::out!(
            "verify: {}: {}, {} s: {}",
            part.name,
            if outcome.good { "passed" } else { "FAILED" },
            outcome.seconds,
            outcome.said
        );
        good &= outcome.good;
        write_page(cache, &dir, &trees)?;
    }
    Ok((write_page(cache, &dir, &trees)?, good))
}

impl Part {
    fn run(&self, cache: &Cache, folder: &Path, trees: &Trees) -> Result<Outcome> {
        fs::create_dir_all(folder).on("make", folder)?;
        let results = cache.build().join("test/all.ktap");
        let kept = folder.join("all.ktap");
        for old in [&results, &kept] {
            match fs::remove_file(old) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.on("remove", old)?,
            }
        }
        let program = std::env::current_exe().map_err(|source| Error::Spawn {
            program: "this program".to_owned(),
            source,
        })?;
        let start = Instant::now();
        let mut command = Command::new(&program);
        command.args(self.args.split(' ')).env_remove("KERNEL");
        let (good, said) = logged(command, &folder.join("log"))?;
        // The documents name files by their path in the checkout.
        let said = said.replace(&format!("{}/", cache.checkout().display()), "");
        if results.exists() {
            fs::copy(&results, &kept).on("copy", &results)?;
        }
        let seconds = start.elapsed().as_secs();
        let state = json!({ "tree": trees.this, "good": good, "seconds": seconds, "said": said });
        let path = folder.join("state.json");
        fs::write(&path, state.to_string()).on("write", &path)?;
        let name = self.name;
        read(folder, name, trees).ok_or_else(|| {
            Error::Other(format!(
                "what part {name} came to cannot be read from {}",
                path.display()
            ))
        })
    }
}

/// Runs a command. Its standard output goes to ours and into the log, its standard error only into the log. Returns whether it succeeded,
/// and a last line: that of the output if it succeeded, else that of the log.
fn logged(mut command: Command, log: &Path) -> Result<(bool, String)> {
    let program = command.get_program().to_string_lossy().into_owned();
    let spawned = |source| Error::Spawn { program, source };
    let mut file = fs::File::create(log).on("write", log)?;
    let errors = file.try_clone().on("write", log)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(spawned)?;
    let mut last = String::new();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n') {
            let line = line.on("read", log)?;
            let line = String::from_utf8_lossy(&line);
            crate::out!("{line}");
            writeln!(file, "{line}").on("write", log)?;
            if !line.trim().is_empty() {
                last = line.trim().to_owned();
            }
        }
    }
    let status = child.wait().on("wait for", log)?;
    if status.success() && !last.is_empty() {
        return Ok((true, last));
    }
    let text = fs::read_to_string(log).unwrap_or_default();
    let said = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok((status.success(), said.unwrap_or_default().trim().to_owned()))
}

/// The result of a part, if it has run to its end on one of these trees.
fn read(folder: &Path, name: &str, trees: &Trees) -> Option<Outcome> {
    let state = fs::read_to_string(folder.join("state.json")).ok()?;
    let state: Value = serde_json::from_str(&state).ok()?;
    let tree = state.get("tree")?.as_str()?;
    if !trees.count(tree) {
        return None;
    }
    let cases = fs::read_to_string(folder.join("all.ktap"));
    Some(Outcome {
        name: name.to_owned(),
        tree: tree.to_owned(),
        good: state.get("good")?.as_bool()?,
        seconds: state.get("seconds")?.as_u64()?,
        said: state.get("said")?.as_str()?.to_owned(),
        cases: cases.map(|text| ktap::parse(&text)).unwrap_or_default(),
    })
}

/// Writes `Documentation/campaign.md` and returns its path, if a part has run here on a commit of this branch.
///
/// # Errors
///
/// When the commits cannot be listed, or the file cannot be written.
pub fn document(cache: &Cache) -> Result<Option<PathBuf>> {
    let outcomes = outcomes(&cache.build().join("verify"), &Trees::all(cache)?);
    if outcomes.iter().all(|(.., outcome)| outcome.is_none()) {
        return Ok(None);
    }
    let path = cache.checkout().join("Documentation/campaign.md");
    let old = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        old => old.on("read", &path)?,
    };
    fs::write(&path, page::document(&outcomes, &old)).on("write", &path)?;
    Ok(Some(path))
}

/// The name and arguments of each part, and its result on one of these trees, if there is one.
type Outcomes = [(&'static str, &'static str, Option<Outcome>); PARTS.len()];

fn outcomes(dir: &Path, trees: &Trees) -> Outcomes {
    PARTS.map(|part| {
        let outcome = read(&dir.join(part.name), part.name, trees);
        (part.name, part.args, outcome)
    })
}

fn write_page(cache: &Cache, dir: &Path, trees: &Trees) -> Result<PathBuf> {
    let outcomes = outcomes(dir, trees);
    let figures = fs::read_to_string(cache.build().join("bench/figures.tsv")).unwrap_or_default();
    let picture = fs::read_to_string(cache.build().join("demo/timeline.svg")).ok();
    let path = dir.join("report.html");
    let page = page::page(&trees.this, &outcomes, &figures, picture.as_deref());
    fs::write(&path, page).on("write", &path)?;
    Ok(path)
}

/// The states of the tree whose results count.
struct Trees {
    /// The current state: the commit, and a hash of the uncommitted changes.
    this: String,
    /// Other commits whose results count.
    earlier: Vec<String>,
}

impl Trees {
    fn of(cache: &Cache, since: Option<&str>) -> Result<Self> {
        let git = |args: &[&str]| git(cache, args);
        let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
        let changes = git(&["diff", "HEAD"])?;
        let this = match changes.as_str() {
            "" => commit.trim().to_owned(),
            changes => format!("{} and changes {}", commit.trim(), hash([changes])),
        };
        let Some(since) = since else {
            let earlier = Vec::new();
            return Ok(Self { this, earlier });
        };
        let first = format!("{since}^{{commit}}");
        let mut earlier = git(&["rev-parse", "--verify", "--short=12", &first])?;
        let after = format!("{}..HEAD", earlier.trim());
        earlier += &git(&["rev-list", "--abbrev-commit", "--abbrev=12", &after])?;
        let earlier = earlier.lines().map(str::to_owned).collect();
        Ok(Self { this, earlier })
    }

    /// All commits of this branch.
    fn all(cache: &Cache) -> Result<Self> {
        let commits = git(
            cache,
            &["rev-list", "--abbrev-commit", "--abbrev=12", "HEAD"],
        )?;
        Ok(Self {
            this: String::new(),
            earlier: commits.lines().map(str::to_owned).collect(),
        })
    }

    fn count(&self, tree: &str) -> bool {
        self.this == tree || self.earlier.iter().any(|earlier| earlier == tree)
    }
}

fn git(cache: &Cache, args: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-C"]);
    let output = command.arg(cache.checkout()).args(args).output();
    let output = output.map_err(|source| Error::Spawn {
        program: "git".to_owned(),
        source,
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Error::Other(format!(
            "git {} failed in {}: {}; a campaign needs a checkout with its history",
            args.join(" "),
            cache.checkout().display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::Suite;

    #[test]
    fn each_suite_has_a_part_and_names_differ() {
        // `make test` runs all of their cases.
        let whole = [
            Suite::Litmus,
            Suite::Kbuild,
            Suite::Kunit,
            Suite::Disk,
            Suite::Old,
            Suite::Selftests,
            Suite::Break,
        ];
        for suite in Suite::ALL {
            let wanted = match whole.contains(&suite) {
                true => "test".to_owned(),
                false => format!("test --suite {suite}"),
            };
            let has = |part: &Part| part.args == wanted;
            assert!(PARTS.iter().any(has), "no part runs {suite}");
        }
        let names: std::collections::BTreeSet<_> = PARTS.iter().map(|part| part.name).collect();
        assert_eq!(names.len(), PARTS.len());
    }

    #[test]
    fn what_a_part_came_to_is_of_a_tree() {
        let dir = tempfile::tempdir().unwrap();
        let state =
            r#"{ "tree": "abc", "good": true, "seconds": 7, "said": "2 passed, 0 failed" }"#;
        fs::write(dir.path().join("state.json"), state).unwrap();
        let trees = |this: &str, earlier: &[&str]| Trees {
            this: this.to_owned(),
            earlier: earlier.iter().copied().map(str::to_owned).collect(),
        };
        let outcome = read(dir.path(), "x", &trees("abc", &[])).unwrap();
        assert!(outcome.good && outcome.seconds == 7 && outcome.counts().is_none());
        assert!(read(dir.path(), "x", &trees("abd", &[])).is_none());
        let outcome = read(dir.path(), "x", &trees("abd", &["abb", "abc"])).unwrap();
        assert_eq!(outcome.tree, "abc");
        fs::write(dir.path().join("state.json"), "{").unwrap();
        assert!(read(dir.path(), "x", &trees("abc", &[])).is_none());
    }

    #[test]
    fn output_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one >&2; echo two; echo three; echo; exit 3"]);
        let (good, said) = logged(command, &log).unwrap();
        assert_eq!((good, said.as_str()), (false, "three"));
        let kept = fs::read_to_string(&log).unwrap();
        assert!(["one", "two", "three"]
            .iter()
            .all(|word| kept.contains(word)));
    }
}
