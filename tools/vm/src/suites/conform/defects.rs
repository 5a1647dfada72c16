// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The defects of `c_broken.ko`, and the cases that find them. The parameter `defect` enables one at a time.

use crate::results::ktap::{self, Status};

/// A defect, and a case that must find it.
pub struct Defect {
    /// The name in `C_DEFECT()`.
    pub name: &'static str,
    /// The case that must fail.
    pub case: &'static str,
    /// A part of the reason with which the case must fail.
    pub says: &'static str,
}

const fn defect(name: &'static str, case: &'static str, says: &'static str) -> Defect {
    Defect { name, case, says }
}

/// The defects that leave no trace in the kernel.
pub const DEFECTS: [Defect; 24] = [
    defect(
        "never_truncated",
        "full: it is off then, CPU",
        "waiting for TRUNCATED",
    ),
    defect(
        "truncated_with_space",
        "full: no TRUNCATED where there is space, CPU",
        "TRUNCATED with",
    ),
    defect(
        "size_more",
        "records: add up, over many laps, CPU",
        "no packet begins with",
    ),
    defect(
        "size_less",
        "full: no TRUNCATED where there is space, CPU",
        "no record has a flag",
    ),
    defect(
        "ignores_space",
        "full: a page was read",
        "no more than one less",
    ),
    defect(
        "begins_at_zero",
        "records: add up, over many laps, CPU",
        "packet",
    ),
    defect(
        "overwrite_truncated",
        "overwrite: 4 times the smallest area, CPU",
        "never full",
    ),
    defect(
        "overwrite_head_stays",
        "overwrite: the head goes on, or is an offset",
        "it never moves",
    ),
    defect(
        "overwrite_head_back",
        "overwrite: the head goes on, or is an offset",
        "it goes back",
    ),
    defect(
        "overwrite_stops",
        "overwrite: 4 times the smallest area, CPU",
        "never full",
    ),
    defect(
        "area_holds_nothing",
        "end: an area holds the driver's module",
        "nothing holds the code",
    ),
    defect(
        "ignores_watermark",
        "watermark: a quarter of the area, records are no longer",
        "ignores the watermark",
    ),
    defect(
        "pause_ignored",
        "pause: a sibling pauses it, CPU",
        "it is paused, and",
    ),
    defect(
        "resume_lost",
        "pause: a sibling resumes it, CPU",
        "tracing: not in",
    ),
    defect(
        "itrace_start_again",
        "records: ITRACE_START once for a thread that is traced, CPU",
        "times, for 5 times",
    ),
    defect(
        "counts_nothing",
        "records: add up, over many laps, CPU",
        "and the event counted 0",
    ),
    defect(
        "unknown_flag",
        "records: one format, CPU",
        "flags that perf does not know",
    ),
    defect(
        "changes_format",
        "records: one format, CPU",
        "another format than those before",
    ),
    defect(
        "refuses_large",
        "map: an area 64 times as large as the smallest",
        "mapping an area of 128 pages",
    ),
    defect(
        "writes_unread",
        "records: what is not read does not change, CPU",
        "has changed",
    ),
    defect(
        "skips_unpadded",
        "records: add up, over many laps, CPU",
        "no packet begins with",
    ),
    defect(
        "restart_lost",
        "control: the period is set while it runs, CPU",
        "tracing: not in",
    ),
    defect(
        "drops_packets",
        "full: no TRUNCATED where there is space, CPU",
        "no record has a flag",
    ),
    defect(
        "full_for_good",
        "full: goes on where it ended, CPU",
        "not in",
    ),
];

/// The defects that leave something open in the kernel. Each has its own guest.
pub const LASTING: [Defect; 4] = [
    defect(
        "stop_begins_again",
        "records: all is there when the event is off, CPU",
        "the kernel says",
    ),
    defect(
        "start_nests",
        "control: its group is throttled, CPU",
        "the kernel says",
    ),
    defect(
        "stop_leaves_open",
        "records: all is there when the event is off, CPU",
        "aux_head has moved by 0",
    ),
    defect(
        "area_leaks",
        "end: nothing of the module is held when all is closed",
        "before",
    ),
];

/// The defects that random programs find within a few hundred steps.
pub const FOUND_BY_PROGRAMS: [&str; 16] = [
    "never_truncated",
    "truncated_with_space",
    "size_more",
    "size_less",
    "ignores_space",
    "begins_at_zero",
    "overwrite_truncated",
    "overwrite_head_stays",
    "overwrite_stops",
    "counts_nothing",
    "unknown_flag",
    "changes_format",
    "refuses_large",
    "writes_unread",
    "skips_unpadded",
    "full_for_good",
];

/// Whether the case passes without the defect, and fails with it for the right reason.
pub fn found(defect: &Defect, good: &str, bad: &str) -> Result<String, String> {
    let case = |said: &str| {
        let mut units = ktap::parse(said);
        let unit = units.pop().ok_or_else(|| format!("conform says: {said}"))?;
        let case = unit
            .children
            .into_iter()
            .find(|case| case.name == defect.case);
        case.ok_or_else(|| format!("the case \"{}\" did not run: {said}", defect.case))
    };
    if case(good)?.status != Status::Pass {
        return Err(format!("without a defect it fails too: {good}"));
    }
    let broken = case(bad)?;
    match broken.status {
        Status::Fail if bad.contains(defect.says) => Ok(defect.case.to_owned()),
        Status::Fail => Err(format!(
            "it fails, and does not say \"{}\": {bad}",
            defect.says
        )),
        _ => Err(format!(
            "it does not fail, although the driver is broken: {bad}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_must_be_found_for_its_reason() {
        let defect = defect("size", "a case", "too long");
        let said = |result: &str, reason: &str| {
            format!(
                "KTAP version 1\n1..1\n    KTAP version 1\n    # Subtest: unit\n    1..1\n    # {reason}\n    {result} 1 a case\n{result} 1 unit\n"
            )
        };
        let good = said("ok", "seen");
        found(&defect, &good, &said("not ok", "it is too long")).unwrap();
        for (good, bad, why) in [
            (&good, &good, "does not fail"),
            (&good, &said("not ok", "it is gone"), "does not say"),
            (
                &said("not ok", "too long"),
                &said("not ok", "too long"),
                "without a defect",
            ),
            (&good, &"error: no driver".to_owned(), "did not run"),
        ] {
            let error = found(&defect, good, bad).unwrap_err();
            assert!(error.contains(why), "{error} for {why}");
        }
    }
}
