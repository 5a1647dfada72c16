// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the guest.

use super::*;

fn outcome(said: &str, status: Option<i32>, console: &str, timed_out: bool) -> Outcome {
    Outcome {
        said: said.to_owned(),
        status,
        timed_out,
        cut: false,
        failed: None,
        splats: splat::scan(console),
        console: "/nonexistent/console.log".into(),
        files: PathBuf::new(),
        process: 1,
        elapsed: Duration::from_secs(1),
        peak_kib: 0,
    }
}

#[test]
fn a_breakpoint_that_kills_before_init_is_told_from_others() {
    let oops = "[    2.029244] Oops: int3: 0000 [#1] SMP PTI\n";
    let up = "auxvm: guest is up\n";
    for (console, is) in [
        (oops.to_owned(), true),
        (format!("{up}{oops}"), false),
        ("[    2.0] Oops: Oops: 0002 [#1] SMP\n".to_owned(), false),
        (String::new(), false),
    ] {
        assert_eq!(
            outcome::is_old_breakpoint(console.as_bytes()),
            is,
            "{console}"
        );
    }
}

#[test]
fn verdicts() {
    let good = "KTAP version 1\n1..1\nok 1 a\n";
    let bad = "KTAP version 1\n1..1\nnot ok 1 a\n";
    let panic = "[ 1] Kernel panic - not syncing: x\n";
    let cases = [
        ("good", outcome(good, Some(0), "", false), 0),
        (
            "status without a failing case",
            outcome(good, Some(1), "", false),
            1,
        ),
        (
            "status with a failing case",
            outcome(bad, Some(1), "", false),
            1,
        ),
        (
            "a failing case that status hides",
            outcome(bad, Some(0), "", false),
            1,
        ),
        (
            "splat",
            outcome(good, Some(0), "[ 1] WARNING: x\n", false),
            1,
        ),
        ("panic", outcome(good, None, panic, false), 2),
        ("died", outcome(good, None, "", false), 1),
        ("timeout", outcome(good, None, "", true), 1),
        ("nothing said", outcome("", Some(0), "", false), 1),
        (
            "empty plan",
            outcome("KTAP version 1\n1..0\n", Some(0), "", false),
            1,
        ),
        (
            "no plan",
            outcome("KTAP version 1\nok 1 a\n", Some(0), "", false),
            1,
        ),
    ];
    for (name, outcome, failed) in cases {
        let suite = outcome.suite("guest");
        assert_eq!(suite.counts().failed, failed, "{name}");
        suite.for_each_failure(&mut |path, case| {
            let names_log = case.reason.contains("console.log");
            assert!(
                names_log || path.contains("/plan") || path.ends_with("/a"),
                "{name}: {path} {}",
                case.reason
            );
        });
    }
}

#[test]
fn a_plugin_that_fails_fails_the_guest() {
    let mut good = outcome("", Some(0), "", false);
    assert!(good.faults().is_empty());
    good.failed = Some("why".to_owned());
    assert_eq!(good.faults().len(), 1);
}
