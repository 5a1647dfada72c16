// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The figures that `make bench` measures: `build/bench/figures.tsv`, and `Documentation/figures.md`, which is made from it.
//!
//! A line of the file is a figure: name, value, unit, target, and `met`, `missed` or, without a target, `-`. The first part of a name, up
//! to a full stop, is its group. A run of `make bench` replaces the groups that it measures, and keeps the others. The document is updated
//! in the same way.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::PathBuf;

/// The first line of the file.
const HEAD: &str = "name\tvalue\tunit\ttarget\tverdict";

/// The groups: name, title, and the command that measures it.
const GROUPS: [(&str, &str, &str); 10] = [
    (
        "bounce",
        "Commits with data, by sink of `pattern`",
        "make bench PART=driver",
    ),
    (
        "driver",
        "The framework beside drivers in C",
        "make bench PART=driver",
    ),
    (
        "parallel",
        "Two CPUs recorded at once",
        "make bench PART=parallel",
    ),
    ("reading", "Memory of the reader", "make bench PART=reading"),
    (
        "recorder",
        "The recorder beside perf record",
        "make bench PART=recorder",
    ),
    (
        "restart",
        "Instructions of the driver from interrupt to restart, beside `pattern`",
        "make bench PART=restart",
    ),
    (
        "ring",
        "An event of tracefs that is read, by the length of its text",
        "make bench PART=ring",
    ),
    (
        "starts",
        "Time until many CPUs are recorded, beside perf record",
        "make bench PART=starts",
    ),
    ("steps", "Single steps", "make bench PART=steps"),
    (
        "tracing",
        "A guest with the trace unit",
        "make bench PART=tracing",
    ),
];

/// A number, and the form in which it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Whole(i64),
    /// With two decimals.
    Hundredths(i64),
}

impl Value {
    fn hundredths(self) -> i64 {
        match self {
            Self::Whole(n) => n.saturating_mul(100),
            Self::Hundredths(n) => n,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(n) => write!(f, "{n}"),
            Self::Hundredths(n) => {
                let sign = if *n < 0 { "-" } else { "" };
                let n = n.unsigned_abs();
                write!(f, "{sign}{}.{:02}", n / 100, n % 100)
            }
        }
    }
}

/// The target of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    AtMost(Value),
    AtLeast(Value),
}

/// A figure that was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    name: String,
    value: Value,
    unit: &'static str,
    target: Option<Target>,
}

/// Converts a measured number. No measured number is larger than `i64::MAX`.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Figure {
    /// A number of something.
    #[must_use]
    pub fn count(name: impl Into<String>, value: u64, unit: &'static str) -> Self {
        Self::difference(name, signed(value), unit)
    }

    /// A number of something that may be below 0.
    #[must_use]
    pub fn difference(name: impl Into<String>, value: i64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value: Value::Whole(value),
            unit,
            target: None,
        }
    }

    /// A number in hundredths of the unit.
    #[must_use]
    pub fn hundredths(name: impl Into<String>, value: u64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value: Value::Hundredths(signed(value)),
            unit,
            target: None,
        }
    }

    /// The ratio of `part` to `whole`. It is rounded up: 1.00 means that `part` is at most `whole`.
    #[must_use]
    pub fn ratio(name: impl Into<String>, part: u64, whole: u64) -> Self {
        let ratio = part.saturating_mul(100).div_ceil(whole.max(1));
        Self::hundredths(name, ratio, "ratio")
    }

    /// Adds a maximum as target, in the unit of the figure.
    #[must_use]
    pub fn at_most(self, max: u64) -> Self {
        self.at_most_hundredths(max.saturating_mul(100))
    }

    /// Adds a maximum as target, in hundredths of the unit.
    #[must_use]
    pub fn at_most_hundredths(self, max: u64) -> Self {
        let target = self.like(signed(max));
        Self {
            target: Some(Target::AtMost(target)),
            ..self
        }
    }

    /// Adds a minimum as target, in hundredths of the unit.
    #[must_use]
    pub fn at_least_hundredths(self, least: u64) -> Self {
        let target = self.like(signed(least));
        Self {
            target: Some(Target::AtLeast(target)),
            ..self
        }
    }

    /// Converts hundredths of the unit to the form of the figure's value.
    fn like(&self, hundredths: i64) -> Value {
        match self.value {
            Value::Whole(_) => Value::Whole(hundredths / 100),
            Value::Hundredths(_) => Value::Hundredths(hundredths),
        }
    }

    /// Whether it misses its target.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        match self.target {
            None => false,
            Some(Target::AtMost(max)) => self.value.hundredths() > max.hundredths(),
            Some(Target::AtLeast(least)) => self.value.hundredths() < least.hundredths(),
        }
    }

    /// A line for the user, if the figure has a target.
    #[must_use]
    pub fn verdict(&self) -> Option<String> {
        self.target?;
        let row = self.row();
        Some(format!(
            "{}: {} {} {} (target: {})",
            row.verdict, row.name, row.value, row.unit, row.target
        ))
    }

    fn row(&self) -> Row {
        let verdict = match self.target {
            None => "-",
            Some(_) if self.is_missed() => "missed",
            Some(_) => "met",
        };
        Row {
            name: self.name.clone(),
            value: self.value.to_string(),
            unit: self.unit.to_owned(),
            target: match self.target {
                None => "-".to_owned(),
                Some(Target::AtMost(max)) => format!("<= {max}"),
                Some(Target::AtLeast(least)) => format!(">= {least}"),
            },
            verdict: verdict.to_owned(),
        }
    }
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    name: String,
    value: String,
    unit: String,
    target: String,
    verdict: String,
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split('\t').collect();
        let [name, value, unit, target, verdict] = words.try_into().ok()?;
        let known = GROUPS.iter().any(|(group, ..)| *group == group_of(name));
        let right = known && value.parse::<f64>().is_ok_and(f64::is_finite);
        (right && matches!(verdict, "met" | "missed" | "-")).then(|| Self {
            name: name.to_owned(),
            value: value.to_owned(),
            unit: unit.to_owned(),
            target: target.to_owned(),
            verdict: verdict.to_owned(),
        })
    }

    fn line(&self) -> String {
        [
            &*self.name,
            &self.value,
            &self.unit,
            &self.target,
            &self.verdict,
        ]
        .join("\t")
    }
}

fn group_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Parses a file. Returns its figures by name. The error names the line that is not a figure.
fn parse(text: &str) -> Result<BTreeMap<String, Row>, String> {
    let mut rows = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line == HEAD && number == 1 {
            continue;
        }
        let row = Row::parse(line).ok_or_else(|| format!("line {number} is no figure: {line}"))?;
        if let Some(row) = rows.insert(row.name.clone(), row) {
            return Err(format!("line {number} is the second one of {}", row.name));
        }
    }
    Ok(rows)
}

/// The text of the old file, with each measured group replaced as a whole.
fn merge(old: &str, new: &[Figure]) -> Result<String, String> {
    let measured = |name: &str| new.iter().any(|f| group_of(&f.name) == group_of(name));
    let mut rows = parse(old)?;
    rows.retain(|name, _| !measured(name));
    for figure in new {
        let row = figure.row();
        if Row::parse(&row.line()).as_ref() != Some(&row) {
            return Err(format!("{} is no name or value of a figure", row.line()));
        }
        if let Some(row) = rows.insert(row.name.clone(), row) {
            return Err(format!("{} is measured twice", row.name));
        }
    }
    let mut text = format!("{HEAD}\n");
    for row in rows.values() {
        text += &row.line();
        text.push('\n');
    }
    Ok(text)
}

/// The text of the document. A group that was not measured keeps its section of the old document.
fn document(text: &str, old: &str) -> Result<String, String> {
    let rows = parse(text)?;
    let mut document = "<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->\n\n# Figures\n\n\
        `make bench` measures these figures, and `make figures` writes this file. Do not edit it.\n\
        Instructions are those of the guest (QEMU's `-icount shift=0`).\n"
        .to_owned();
    for (group, title, command) in GROUPS {
        let heading = format!("\n## {title}\n\n`{command}`\n\n");
        document += &heading;
        let rows: Vec<&Row> = rows
            .values()
            .filter(|row| group_of(&row.name) == group)
            .collect();
        if rows.is_empty() {
            let rest = old.split_once(&heading).map(|(_, rest)| rest);
            let section = rest.map(|rest| rest.split("\n## ").next().unwrap_or(rest));
            document += section.unwrap_or("Not measured.\n");
            continue;
        }
        document += "| figure | value | unit | target | |\n|---|---:|---|---|---|\n";
        for row in rows {
            let Row {
                name,
                value,
                unit,
                target,
                verdict,
            } = row;
            let _ = writeln!(
                document,
                "| `{name}` | {value} | {unit} | {target} | {verdict} |"
            );
        }
    }
    Ok(document)
}

fn path(cache: &Cache) -> PathBuf {
    cache.build().join("bench/figures.tsv")
}

fn broken(cache: &Cache, why: &str) -> Error {
    Error::Other(format!(
        "{}: {why}; remove the file and measure again",
        path(cache).display()
    ))
}

/// Saves measured figures in the file.
///
/// # Errors
///
/// When the old file has a line that is not a figure, or the file cannot be written.
pub fn save(cache: &Cache, figures: &[Figure]) -> Result<()> {
    let path = path(cache);
    let old = if path.exists() {
        fs::read_to_string(&path).on("read", &path)?
    } else {
        String::new()
    };
    let text = merge(&old, figures).map_err(|why| broken(cache, &why))?;
    let new = path.with_extension("tsv.new");
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).on("make", dir)?;
    }
    fs::write(&new, text).on("write", &new)?;
    fs::rename(&new, &path).on("replace", &path)
}

/// Writes the document and returns its path, if anything was measured.
///
/// # Errors
///
/// When a file cannot be used.
pub fn write(cache: &Cache) -> Result<Option<PathBuf>> {
    let from = path(cache);
    if !from.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&from).on("read", &from)?;
    let to = cache.checkout().join("Documentation/figures.md");
    let old = match fs::read_to_string(&to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        old => old.on("read", &to)?,
    };
    let text = document(&text, &old).map_err(|why| broken(cache, &why))?;
    fs::write(&to, text).on("write", &to)?;
    Ok(Some(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let ratio = |part, whole| Figure::ratio("driver.x", part, whole).at_most(1).row();
        let cases = [
            (ratio(916, 916), "1.00", "<= 1.00", "met"),
            (ratio(917, 916), "1.01", "<= 1.00", "missed"),
            (ratio(1762, 916), "1.93", "<= 1.00", "missed"),
            (ratio(5, 0), "5.00", "<= 1.00", "missed"),
            (
                Figure::count("driver.x", 0, "lines").at_most(0).row(),
                "0",
                "<= 0",
                "met",
            ),
            (
                Figure::count("driver.x", 1, "lines").at_most(0).row(),
                "1",
                "<= 0",
                "missed",
            ),
            (
                Figure::hundredths("parallel.x", 179, "ratio")
                    .at_least_hundredths(180)
                    .row(),
                "1.79",
                ">= 1.80",
                "missed",
            ),
            (
                Figure::difference("driver.x", -3, "instructions").row(),
                "-3",
                "-",
                "-",
            ),
        ];
        for (row, value, target, verdict) in cases {
            assert_eq!(
                (&*row.value, &*row.target, &*row.verdict),
                (value, target, verdict)
            );
            assert_eq!(Row::parse(&row.line()), Some(row));
        }
    }

    #[test]
    fn groups_that_are_not_measured_stay() {
        let first = [
            Figure::count("driver.b", 2, "instructions"),
            Figure::count("driver.a", 1, "instructions"),
            Figure::count("steps.a", 7, "instructions"),
        ];
        let old = merge("", &first).unwrap();
        assert_eq!(
            old,
            format!("{HEAD}\ndriver.a\t1\tinstructions\t-\t-\ndriver.b\t2\tinstructions\t-\t-\nsteps.a\t7\tinstructions\t-\t-\n")
        );
        // `driver.b` is now called `driver.c`.
        let second = [
            Figure::count("driver.a", 3, "instructions").at_most(2),
            Figure::count("driver.c", 4, "lines"),
        ];
        assert_eq!(
            merge(&old, &second).unwrap(),
            format!("{HEAD}\ndriver.a\t3\tinstructions\t<= 2\tmissed\ndriver.c\t4\tlines\t-\t-\nsteps.a\t7\tinstructions\t-\t-\n")
        );
        assert_eq!(merge(&old, &[]).unwrap(), old);
    }

    #[test]
    fn what_is_no_file_of_figures_is_refused() {
        let line = "driver.a\t1\tinstructions\t-\t-";
        for bad in [
            format!("{line}\n{line}\n"),
            format!("{line}\n{HEAD}\n"),
            line.replace("\t-\t-", "\t-"),
            line.replace("\t-\t-", "\t-\tgood"),
            line.replace('1', "one"),
            line.replace("driver", "drivers"),
        ] {
            assert!(merge(&bad, &[]).is_err(), "{bad}");
        }
        assert!(merge(line, &[]).is_ok());
        let twice = [
            Figure::count("driver.a", 1, "x"),
            Figure::count("driver.a", 1, "x"),
        ];
        assert!(merge("", &twice).is_err());
        assert!(merge("", &[Figure::count("driver\ta", 1, "x")]).is_err());
    }

    #[test]
    fn the_document_has_all_figures_and_their_commands() {
        let figures = [
            Figure::ratio("driver.stock.minimal.restart.ratio", 3, 2).at_most(1),
            Figure::count("steps.call", 100, "instructions"),
        ];
        let text = document(&merge("", &figures).unwrap(), "").unwrap();
        for says in [
            "## The framework beside drivers in C\n\n`make bench PART=driver`\n\n| figure",
            "| `driver.stock.minimal.restart.ratio` | 1.50 | ratio | <= 1.00 | missed |\n",
            "| `steps.call` | 100 | instructions | - | - |\n",
            "`make bench PART=recorder`\n\nNot measured.\n",
        ] {
            assert!(text.contains(says), "{says}\n{text}");
        }
        assert!(document("nonsense\n", "").is_err());
    }

    #[test]
    fn a_group_that_is_not_measured_here_stays_in_the_document() {
        let figures = |name, value| {
            let figure = Figure::count(name, value, "instructions");
            merge("", &[figure]).unwrap()
        };
        let first = document(&figures("driver.a", 1), "").unwrap();
        let second = document(&figures("steps.b", 2), &first).unwrap();
        let third = document(&figures("driver.a", 3), &second).unwrap();
        assert_eq!(
            second.replace("| `driver.a` | 1 |", "| `driver.a` | 3 |"),
            third
        );
        assert_ne!(second, third);
        assert!(third.contains("| `steps.b` | 2 |"), "{third}");
    }

    #[test]
    fn it_is_saved_and_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("Documentation")).unwrap();
        let cache = Cache::new(dir.path(), dir.path(), "");
        assert!(write(&cache).unwrap().is_none());
        save(&cache, &[Figure::count("steps.a", 7, "instructions")]).unwrap();
        save(&cache, &[Figure::count("driver.a", 8, "instructions")]).unwrap();
        let text = fs::read_to_string(write(&cache).unwrap().unwrap()).unwrap();
        assert!(text.contains("| `steps.a` | 7 |"));
        assert!(text.contains("| `driver.a` | 8 |"));
        fs::write(path(&cache), "x\n").unwrap();
        assert!(save(&cache, &[]).is_err());
    }
}
