// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pages about a campaign: one in HTML about this checkout's campaign, and `Documentation/campaign.md`.

use super::Outcome;
use crate::results::ktap::{Case, Status};
use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.4 sans-serif;margin:2em auto;max-width:70em;padding:0 1em}\
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}\
td.n{text-align:right}.bad{color:#b00;font-weight:bold}.good{color:#070}.none{color:#777}code{white-space:nowrap}";

/// The HTML page: the result of each part, the failed and the skipped cases, the figures, and a picture.
pub(super) fn page(
    tree: &str,
    parts: &[(&str, &str, Option<Outcome>)],
    figures: &str,
    picture: Option<&str>,
) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>auxpmu: make verify</title><style>{STYLE}</style>\n\
         <h1>auxpmu: make verify</h1>\n<p>Commit {}.</p>\n",
        text(tree)
    );
    // Writing to a String cannot fail.
    let _ = write_parts(&mut out, parts);
    let outcomes = || parts.iter().filter_map(|(.., outcome)| outcome.as_ref());
    let mut failed = Vec::new();
    let mut skipped = Vec::new();
    for outcome in outcomes() {
        for case in &outcome.cases {
            walk(&outcome.name, case, &mut failed, &mut skipped);
        }
    }
    list(&mut out, "Failed", &failed);
    write_figures(&mut out, figures);
    if let Some(svg) = picture.and_then(|svg| svg.find("<svg").map(|at| &svg[at..])) {
        let _ = write!(
            out,
            "<h2>A recording of <code>make demo</code></h2>\n{svg}\n"
        );
    }
    list(&mut out, "Skipped", &skipped);
    out += "</html>\n";
    out
}

fn write_parts(out: &mut String, parts: &[(&str, &str, Option<Outcome>)]) -> std::fmt::Result {
    *out += "<h2>Parts</h2>\n<table><tr><th>part<th>command<th>passed<th>failed<th>skipped<th>minutes<th>commit<th>\n";
    for (name, args, outcome) in parts {
        write!(out, "<tr><td>{}<td><code>{}</code>", text(name), text(args))?;
        let Some(outcome) = outcome else {
            writeln!(out, "<td><td><td><td><td><td class=\"none\">has not run")?;
            continue;
        };
        match outcome.counts() {
            Some(counts) => write!(
                out,
                "<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}",
                counts.passed, counts.failed, counts.skipped
            )?,
            None => write!(out, "<td><td><td>")?,
        }
        let minutes = outcome.seconds.div_ceil(60);
        write!(out, "<td class=\"n\">{minutes}<td>{}", text(&outcome.tree))?;
        let (class, word) = match outcome.good {
            true => ("good", "passed"),
            false => ("bad", "failed"),
        };
        writeln!(out, "<td class=\"{class}\">{word}: {}", text(&outcome.said))?;
    }
    *out += "</table>\n";
    Ok(())
}

const DOCUMENT: &str = "<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->\n\n# The last campaign\n\n\
`make verify` runs these parts ([testing.md](testing.md#everything)); `make figures` writes this\n\
page. A row is the last run of a part, with the commit that it ran on.\n\n\
| part | command | passed | failed | skipped | minutes | commit | result |\n|---|---|---|---|---|---|---|---|\n";

/// The end of the row of a part that has not run.
const NEVER: &str = " | has not run |";

/// The text of `Documentation/campaign.md`. A part without a result here keeps its row of the `old` text.
pub(super) fn document(parts: &[(&str, &str, Option<Outcome>)], old: &str) -> String {
    let mut out = DOCUMENT.to_owned();
    for (name, args, outcome) in parts {
        let begin = format!("| {name} |");
        // An unescaped bar would end the cell.
        let args = args.replace('|', "\\|");
        let Some(outcome) = outcome else {
            let is_row = |line: &&str| line.starts_with(&begin) && !line.ends_with(NEVER);
            match old.lines().find(is_row) {
                Some(row) => out += row,
                None => out += &format!("{begin} `{args}` | | | | |{NEVER}"),
            }
            out.push('\n');
            continue;
        };
        let counts = outcome.counts().map_or_else(
            || " | | ".to_owned(),
            |c| format!("{} | {} | {}", c.passed, c.failed, c.skipped),
        );
        let minutes = outcome.seconds.div_ceil(60);
        let mut word = if outcome.good { "passed" } else { "failed" }.to_owned();
        if outcome.cases.is_empty() {
            let said = outcome.said.trim_start_matches("# ").replace('|', "\\|");
            word = format!("{word}: {said}");
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{begin} `{args}` | {counts} | {minutes} | {} | {word} |",
            outcome.tree
        );
    }
    out
}

/// Collects the failed and the skipped cases, each with its path and reason.
fn walk(
    above: &str,
    case: &Case,
    failed: &mut Vec<(String, String)>,
    skipped: &mut Vec<(String, String)>,
) {
    let path = format!("{above}/{}", case.name);
    for child in &case.children {
        walk(&path, child, failed, skipped);
    }
    let below: usize = case.children.iter().map(|c| c.counts().failed).sum();
    match case.status {
        Status::Fail if below == 0 => failed.push((path, case.reason.clone())),
        Status::Skip if case.children.is_empty() => skipped.push((path, case.reason.clone())),
        _ => {}
    }
}

fn list(out: &mut String, title: &str, cases: &[(String, String)]) {
    let _ = writeln!(out, "<h2>{title}: {}</h2>\n<table>", cases.len());
    for (path, reason) in cases {
        let _ = writeln!(out, "<tr><td>{}<td>{}", text(path), text(reason));
    }
    *out += "</table>\n";
}

/// Writes the table of figures. `figures` has the fields that `make bench` writes: name, value, unit, target, verdict.
fn write_figures(out: &mut String, figures: &str) {
    let rows: Vec<&str> = figures.lines().skip(1).collect();
    let missed = rows.iter().filter(|row| row.ends_with("\tmissed")).count();
    let _ = writeln!(
        out,
        "<h2>Figures: {}, {missed} targets missed</h2>\n<table><tr><th>name<th>value<th>unit<th>target<th>",
        rows.len()
    );
    for row in rows {
        *out += "<tr>";
        for (number, field) in row.split('\t').enumerate() {
            let class = match (number, field) {
                (1, _) => "n",
                (4, "missed") => "bad",
                (4, "met") => "good",
                _ => "",
            };
            let _ = write!(out, "<td class=\"{class}\">{}", text(field));
        }
        *out += "\n";
    }
    *out += "</table>\n";
}

/// Escapes a text for HTML.
fn text(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_came_out() {
        let cases = vec![
            Case::pass("a"),
            Case::fail("b<c>", "1 & 2"),
            Case::skip("d", "no such thing"),
        ];
        let outcome = Outcome {
            name: "one".to_owned(),
            tree: "abb".to_owned(),
            good: false,
            seconds: 61,
            said: "1 passed, 1 failed".to_owned(),
            cases: vec![Case::suite("s", cases)],
        };
        let parts = [("one", "test", Some(outcome)), ("two", "bench", None)];
        let figures = "name\tvalue\tunit\ttarget\tverdict\nx.y\t7\tbytes\t<= 5\tmissed\n";
        let page = page("abc", &parts, figures, Some("<?xml?><svg>p</svg>"));
        for part in [
            "Commit abc.",
            "<td>abb<td",
            "failed: 1 passed, 1 failed",
            "has not run",
            "one/s/b&lt;c&gt;<td>1 &amp; 2",
            "one/s/d<td>no such thing",
            "1 targets missed",
            "<td class=\"bad\">missed",
            "<svg>p</svg>",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        assert!(!page.contains("<?xml"));
    }

    #[test]
    fn parts_that_did_not_run_keep_their_rows() {
        let outcome = |good| Outcome {
            name: "one".to_owned(),
            tree: "abb".to_owned(),
            good,
            seconds: 61,
            said: String::new(),
            cases: vec![Case::pass("a"), Case::skip("d", "no such thing")],
        };
        let parts = |one| [("one", "test a|b", one), ("two", "bench", None)];
        let first = document(&parts(Some(outcome(false))), "");
        let [one, two] = ["| one |", "| two |"].map(|begin| {
            let line = first.lines().find(|line| line.starts_with(begin));
            line.unwrap().to_owned()
        });
        assert_eq!(one, "| one | `test a\\|b` | 1 | 0 | 1 | 2 | abb | failed |");
        assert!(two.ends_with("has not run |"), "{two}");
        assert_eq!(document(&parts(None), &first), first);
        assert_ne!(document(&parts(Some(outcome(true))), &first), first);
        let said = Outcome {
            said: "# 7 steps | as foreseen".to_owned(),
            cases: Vec::new(),
            ..outcome(true)
        };
        let row = "passed: 7 steps \\| as foreseen |\n";
        assert!(document(&parts(Some(said)), &first).contains(row));
    }
}
