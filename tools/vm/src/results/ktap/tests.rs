// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the parser and the writer, with valid and with broken KTAP.

use super::*;
use proptest::prelude::*;

fn totals(text: &str) -> (usize, usize, usize) {
    let mut sum = (0, 0, 0);
    for case in parse(text) {
        let c = case.counts();
        sum = (sum.0 + c.passed, sum.1 + c.failed, sum.2 + c.skipped);
    }
    sum
}

#[test]
fn table() {
    let kunit = "KTAP version 1\n1..1\n    KTAP version 1\n    # Subtest: s\n    # module: m\n    1..2\n    ok 1 a\n    # b: EXPECTATION FAILED\n    not ok 2 b\n# s: pass:1 fail:1 skip:0 total:2\nnot ok 1 s\n";
    let lying = kunit.replace("not ok 1 s", "ok 1 s");
    let cases: &[(&str, &str, (usize, usize, usize))] = &[
        ("plain", "KTAP version 1\n1..2\nok 1 a\nok 2 b\n", (2, 0, 0)),
        ("plan last", "KTAP version 1\nok 1 a\n1..1\n", (1, 0, 0)),
        (
            "fail",
            "KTAP version 1\n1..2\nok 1 a\nnot ok 2 b\n",
            (1, 1, 0),
        ),
        (
            "skip",
            "KTAP version 1\n1..2\nok 1 a # SKIP no kvm\nok 2 - b\n",
            (1, 0, 1),
        ),
        ("no plan", "KTAP version 1\nok 1 a\n", (1, 1, 0)),
        ("empty plan", "KTAP version 1\n1..0\n", (0, 1, 0)),
        ("cut", "KTAP version 1\n1..3\nok 1 a\n", (1, 1, 0)),
        (
            "too many",
            "KTAP version 1\n1..1\nok 1 a\nok 2 b\n",
            (2, 1, 0),
        ),
        (
            "numbers",
            "KTAP version 1\n1..2\nok 1 a\nok 3 b\n",
            (2, 1, 0),
        ),
        ("nothing", "hello\n", (0, 1, 0)),
        (
            "bail out",
            "KTAP version 1\n1..2\nok 1 a\nBail out! tired\n",
            (1, 2, 0),
        ),
        ("bail out only", "Bail out! tired\n", (0, 2, 0)),
        ("kunit", kunit, (1, 1, 0)),
        ("parent lies", &lying, (1, 1, 0)),
        (
            "two documents",
            "KTAP version 1\n1..1\nok 1 a\nKTAP version 1\n1..1\nnot ok 1 b\n",
            (1, 1, 0),
        ),
        (
            "second document empty",
            "KTAP version 1\n1..1\nok 1 a\nKTAP version 1\n1..0\n",
            (1, 1, 0),
        ),
        (
            "suite cut",
            "KTAP version 1\n1..1\n  KTAP version 1\n  1..2\n  ok 1 a\n",
            (1, 1, 0),
        ),
        (
            "nested plan missing",
            "KTAP version 1\n1..1\n  KTAP version 1\n  ok 1 a\nok 1 s\n",
            (1, 1, 0),
        ),
        (
            "noise",
            "boot\nKTAP version 1\n1..1\nokay then\n[ 1.0] not a result\nok 1 a\nbye\n",
            (1, 0, 0),
        ),
        (
            "not ok over passes",
            "KTAP version 1\n1..1\n  KTAP version 1\n  1..1\n  ok 1 a\nnot ok 1 s\n",
            (1, 1, 0),
        ),
    ];
    for (name, text, want) in cases {
        assert_eq!(totals(text), *want, "{name}");
    }
}

#[test]
fn logs_and_reasons_stay_with_their_case() {
    let cases =
        parse("KTAP version 1\n1..2\n# one\nnot ok 1 a # TIMEOUT\ntwo\nok 2 b # SKIP later\n");
    assert_eq!(
        (cases[0].log.clone(), cases[0].reason.as_str()),
        (vec!["one".to_owned()], "TIMEOUT")
    );
    assert_eq!(
        (cases[1].log.clone(), cases[1].reason.as_str()),
        (vec!["two".to_owned()], "later")
    );
}

#[test]
fn text_of_several_lines_is_no_result() {
    let mut said = Case::pass("said");
    said.log = vec!["KTAP version 1\n1..2\nnot ok 1 other".to_owned()];
    let failed = Case::fail("failed", "it says\nok 3 - third");
    let text = write(&[said, failed]);

    assert_eq!(totals(&text), (1, 1, 0), "{text}");
    assert!(text.contains("# FAIL it says ok 3 - third"), "{text}");
}

#[test]
fn a_cut_suite_is_named() {
    let before = "KTAP version 1\n1..1\n# Subtest: s\n  KTAP version 1\n  1..1\n  ok 1 a\n";
    let within = "KTAP version 1\n1..1\n  KTAP version 1\n  # Subtest: s\n  1..1\n  ok 1 a\n";
    for text in [before, within] {
        let mut seen = Vec::new();
        parse(text)[0].for_each_failure(&mut |path, _| seen.push(path.to_owned()));
        assert_eq!(seen, ["s"], "{text}");
    }
}

#[test]
fn a_suite_of_nothing_fails() {
    assert_eq!(Case::suite("s", vec![]).counts().failed, 1);
    assert!(!Counts::default().good());
}

#[test]
fn failures_have_paths() {
    let tree = Case::suite(
        "a",
        vec![Case::suite(
            "b",
            vec![Case::pass("c"), Case::fail("d", "why")],
        )],
    );
    let mut seen = Vec::new();
    tree.for_each_failure(&mut |path, case| seen.push((path.to_owned(), case.reason.clone())));
    assert_eq!(seen, [("a/b/d".to_owned(), "why".to_owned())]);
}

fn tree() -> impl Strategy<Value = Case> {
    let name = "[a-zA-Z#\\\\-][a-z0-9 #:\\\\-]{0,12}[a-z#\\\\]";
    let leaf = (
        name,
        0..3,
        "[a-z]{0,8}",
        proptest::collection::vec("[a-z]{1,9}", 0..3),
    )
        .prop_map(|(name, status, reason, log)| {
            match status {
                0 => Case::pass(&name),
                1 => Case::fail(&name, &reason),
                _ => Case::skip(&name, &reason),
            }
            .with_log(log)
        });
    leaf.prop_recursive(3, 24, 5, move |inner| {
        (name, proptest::collection::vec(inner, 1..5))
            .prop_map(|(name, cases)| Case::suite(&name, cases))
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(cases in proptest::collection::vec(tree(), 1..5)) {
        prop_assert_eq!(parse(&write(&cases)), cases);
    }

    #[test]
    fn any_text_is_survived(text in "(KTAP version 1\n|1\\.\\.[0-3]\n|  |ok 1\n|not ok 2 b\n|Bail out!\n|# x\n|.{0,9}\n){0,20}") {
        prop_assert!(!parse(&text).is_empty());
    }

    #[test]
    fn a_cut_stream_never_passes(cases in proptest::collection::vec(tree(), 1..5), at in 0..100usize) {
        let text = write(&cases);
        let lines: Vec<_> = text.lines().collect();
        let keep = lines.len() * at / 100;
        let failed: usize = parse(&lines[..keep].join("\n")).iter().map(|c| c.counts().failed).sum();
        prop_assert!(failed > 0);
    }
}
