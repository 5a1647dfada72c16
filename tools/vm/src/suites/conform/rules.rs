// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the lines of the kernel's source that the cases of `conform` refer to.

use crate::error::{OnFile, Result};
use crate::kernel::{Kernel, Kind};
use crate::results::ktap::Case;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The version of the kernel that the line numbers refer to.
const RULES_OF: &str = "7.3.4";

/// Checks that the text of each rule is at the stated line of the kernel's source.
///
/// # Errors
///
/// When the source or the program cannot be read.
pub fn check(kernel: &Kernel, conform: &Path) -> Result<Case> {
    let source = kernel.build_dir().join("source");
    let read = |file: &str| {
        let path = source.join(file);
        fs::read_to_string(&path).on("read", &path)
    };
    let version = version(&read("Makefile")?);
    let skip = match kernel.kind {
        Kind::Stock | Kind::Rt if version == RULES_OF => None,
        Kind::Stock | Kind::Rt => Some(format!(
            "they are those of Linux {RULES_OF}, and this is {version}"
        )),
        Kind::Lean | Kind::Debug => Some("patches have moved them".to_owned()),
    };
    if let Some(why) = skip {
        return Ok(Case::suite("rules", vec![Case::skip("lines", &why)]));
    }
    let output = Command::new(conform).arg("list").output();
    let list = String::from_utf8_lossy(&output.on("run", conform)?.stdout).into_owned();
    let mut sources = BTreeMap::new();
    for file in ["kernel/events/core.c", "kernel/events/ring_buffer.c"] {
        sources.insert(file, read(file)?);
    }
    let rules: Vec<_> = list
        .lines()
        .filter_map(|line| line.strip_prefix('\t'))
        .collect();
    let is_wrong = |rule: &&&str| !is_at_its_line(rule, &sources);
    let wrong: Vec<_> = rules.iter().filter(is_wrong).copied().collect();
    let verdict = match wrong.is_empty() && !rules.is_empty() {
        true => Ok(format!("{} rules", rules.len())),
        false => Err(format!(
            "of {} rules, not at their lines:\n{}",
            rules.len(),
            wrong.join("\n")
        )),
    };
    Ok(Case::suite("rules", vec![Case::judged("lines", verdict)]))
}

/// Whether the rule `FILE:LINE: TEXT` is right: the line contains the text.
fn is_at_its_line(rule: &str, sources: &BTreeMap<&str, String>) -> bool {
    let mut parts = rule.splitn(3, ':');
    let (Some(file), Some(line), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let source = sources.get(file).map(String::as_str).unwrap_or_default();
    let line = line
        .parse::<usize>()
        .ok()
        .and_then(|line| line.checked_sub(1));
    let found = line.and_then(|line| source.lines().nth(line));
    found.is_some_and(|found| found.contains(text.trim_start()))
}

/// The version in a kernel's Makefile.
fn version(makefile: &str) -> String {
    let number = |name: &str| {
        let lines = makefile.lines();
        let mut lines = lines.filter_map(|line| line.strip_prefix(name)?.trim().strip_prefix('='));
        lines.next().unwrap_or_default().trim().to_owned()
    };
    ["VERSION", "PATCHLEVEL", "SUBLEVEL"].map(number).join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_at_its_line() {
        let sources = BTreeMap::from([("a.c", "one\n\ttwo: 2\n".to_owned())]);
        for (rule, right) in [
            ("a.c:1: one", true),
            ("a.c:2: two: 2", true),
            ("a.c:2: one", false),
            ("a.c:3: one", false),
            ("a.c:0: one", false),
            ("b.c:1: one", false),
            ("a.c", false),
        ] {
            assert_eq!(is_at_its_line(rule, &sources), right, "{rule}");
        }
        assert_eq!(
            version("# x\nVERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\n"),
            "7.3.4"
        );
    }
}
