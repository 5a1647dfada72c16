// SPDX-License-Identifier: GPL-2.0 OR MIT

#![allow(clippy::unwrap_used)]

use super::*;
use crate::fuzz::parse;

fn model() -> Model {
    let unit = Unit {
        name: "unit".to_owned(),
        cpus: true,
        tasks: true,
        home: None,
        commits: true,
        exclusive: true,
        module: Some("driver".to_owned()),
        reloads: true,
        samples: true,
        normal: 2,
        overwrite: None,
    };
    Model::new(vec![unit], 2, true)
}

fn opens(slot: usize, whom: &str) -> String {
    format!(
        r#"{{"open":{{"slot":{slot},"unit":0,"whom":{whom},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}}}"#
    )
}

fn areas(slot: usize, pages: usize, at: &str) -> String {
    format!(r#"{{"map-aux":{{"slot":{slot},"pages":{pages},"overwrite":false,"at":"{at}"}}}}"#)
}

/// The outcome of the last step of each program.
#[test]
fn outcomes() {
    let cpu = r#"{"cpu":0}"#;
    let other = r#"{"cpu":1}"#;
    let map = |slot: usize, pages: usize| format!(r#"{{"map":{{"slot":{slot},"pages":{pages}}}}}"#);
    let redirect = r#"{"redirect":{"slot":1,"to":0}}"#.to_owned();
    let fails = |error| Outcome::Fails(vec![error]);
    let table = [
        (vec![opens(0, cpu)], Outcome::Done),
        (vec![opens(0, cpu), opens(1, cpu)], fails(Errno::BUSY)),
        (vec![opens(0, cpu), opens(1, other)], Outcome::Done),
        (vec![opens(0, cpu), opens(1, r#""me""#)], fails(Errno::BUSY)),
        (vec![opens(0, r#""no-cpu""#)], fails(Errno::INVAL)),
        (vec![opens(0, r#""no-process""#)], fails(Errno::SRCH)),
        (vec![opens(0, r#"{"child":0}"#)], Outcome::Nothing),
        (vec![opens(0, cpu), map(0, 3)], fails(Errno::INVAL)),
        (
            vec![opens(0, cpu), map(0, 8), map(0, 4)],
            fails(Errno::INVAL),
        ),
        (
            vec![opens(0, cpu), areas(0, 2, "behind")],
            fails(Errno::INVAL),
        ),
        (
            vec![opens(0, cpu), map(0, 8), areas(0, 1, "behind")],
            fails(Errno::NOMEM),
        ),
        (
            vec![opens(0, cpu), map(0, 8), areas(0, 2, "inside")],
            fails(Errno::INVAL),
        ),
        (
            vec![opens(0, cpu), map(0, 0), areas(0, 2, "inside")],
            Outcome::Done,
        ),
        (
            vec![
                opens(0, cpu),
                map(0, 8),
                areas(0, 2, "behind"),
                areas(0, 2, "far"),
            ],
            fails(Errno::INVAL),
        ),
        // The mapping keeps the closed event, and its place.
        (
            vec![
                opens(0, cpu),
                map(0, 8),
                r#"{"close":0}"#.to_owned(),
                opens(1, cpu),
            ],
            fails(Errno::BUSY),
        ),
        (
            vec![
                opens(0, cpu),
                map(0, 8),
                r#"{"close":0}"#.to_owned(),
                r#"{"unmap":{"slot":0,"aux":false}}"#.to_owned(),
                opens(1, cpu),
            ],
            Outcome::Done,
        ),
        (
            vec![opens(0, cpu), opens(1, other), map(0, 8), redirect.clone()],
            fails(Errno::INVAL),
        ),
        // The event's CPU was offline. The event is in no list, so another event can have its place and its ring.
        (
            vec![
                opens(0, other),
                map(0, 8),
                r#"{"online":{"cpu":1,"online":false}}"#.to_owned(),
                opens(1, other),
            ],
            Outcome::Fails(vec![Errno::NODEV, Errno::INVAL]),
        ),
        (
            vec![
                opens(0, other),
                map(0, 8),
                r#"{"online":{"cpu":1,"online":false}}"#.to_owned(),
                r#"{"online":{"cpu":1,"online":true}}"#.to_owned(),
                opens(1, other),
                redirect,
            ],
            Outcome::Done,
        ),
        (vec![r#"{"unload":0}"#.to_owned()], Outcome::Done),
        (
            vec![opens(0, cpu), r#"{"unload":0}"#.to_owned()],
            fails(Errno::AGAIN),
        ),
        (
            vec![opens(0, cpu), r#"{"trace":0}"#.to_owned()],
            Outcome::Nothing,
        ),
        (
            vec![
                opens(0, cpu),
                map(0, 8),
                areas(0, 2, "behind"),
                r#"{"trace":0}"#.to_owned(),
            ],
            Outcome::Done,
        ),
    ];
    for (lines, right) in table {
        let program = parse(&lines.join("\n")).unwrap();
        let mut model = model();
        let last = program.iter().map(|op| model.step(op)).last();
        assert_eq!(last, Some(right), "{lines:#?}");
    }
}

/// One unit for the whole machine: it makes no difference for which CPU an event is opened, and whether that CPU is offline.
#[test]
fn a_unit_of_all_cpus() {
    let mut model = model();
    for unit in &mut model.units {
        (unit.home, unit.commits) = (Some(0), false);
    }
    let open = |slot: usize, cpu: usize| opens(slot, &format!(r#"{{"cpu":{cpu}}}"#));
    let first = [
        r#"{"online":{"cpu":1,"online":false}}"#.to_owned(),
        open(0, 1),
    ];
    for op in parse(&first.join("\n")).unwrap() {
        assert_eq!(model.step(&op), Outcome::Done);
    }
    assert_eq!(model.cpu(0), Some(0));
    let second = parse(&open(1, 0)).unwrap();
    assert_eq!(model.step(&second[0]), Outcome::Fails(vec![Errno::BUSY]));
}

/// Trace that is copied when the last event stops is not required while another event runs. The program does not try a group with two PMUs
/// that trace CPUs only.
#[test]
fn groups_of_units_of_cpus() {
    let mut units = Vec::new();
    for (name, tasks) in [("one", false), ("other", false), ("soft", true)] {
        let mut unit = model().units.remove(0);
        unit.name = name.to_owned();
        unit.tasks = tasks;
        units.push(unit);
    }
    let open = |slot: usize, unit: usize, leader: &str| {
        format!(
            r#"{{"open":{{"slot":{slot},"unit":{unit},"whom":{{"cpu":0}},"off":true,"inherit":false,"on-exec":"nothing","leader":{leader}}}}}"#
        )
    };
    for (leader, first, second, right) in [
        (0, 2, 1, [Outcome::Done, Outcome::Nothing]),
        (2, 0, 1, [Outcome::Done, Outcome::Nothing]),
        (0, 1, 2, [Outcome::Nothing, Outcome::Done]),
    ] {
        let mut model = Model::new(units.clone(), 2, true);
        let program = [
            open(0, leader, "null"),
            open(1, first, "0"),
            open(2, second, "0"),
        ];
        let steps = parse(&program.join("\n")).unwrap();
        let seen: Vec<_> = steps.iter().map(|step| model.step(step)).collect();
        assert_eq!(seen[1..], right, "{program:?}");
    }
}

#[test]
fn trace_that_sources_share() {
    let lines = [
        opens(0, r#"{"cpu":0}"#),
        r#"{"map":{"slot":0,"pages":8}}"#.to_owned(),
        areas(0, 2, "behind"),
        opens(1, r#"{"cpu":1}"#),
        r#"{"enable":1}"#.to_owned(),
    ];
    let program = parse(&lines.join("\n")).unwrap();
    for (commits, right) in [(true, true), (false, false)] {
        let mut model = model();
        for unit in &mut model.units {
            unit.commits = commits;
        }
        for op in &program {
            assert_eq!(model.step(op), Outcome::Done);
        }
        assert_eq!(model.must_trace(0), right);
        model.step(&Op::Disable(1));
        assert!(model.must_trace(0));
    }
}

/// By way of an event without AUX, perf redirects an event to a ring with the area of another PMU.
#[test]
fn foreign_areas() {
    let mut units = model().units;
    units.push(Unit {
        name: "other".to_owned(),
        ..units[0].clone()
    });
    let open = |slot: usize, unit: &str| {
        opens(slot, r#"{"cpu":0}"#).replace(r#""unit":0"#, &format!(r#""unit":{unit}"#))
    };
    let redirect =
        |slot: usize, to: usize| format!(r#"{{"redirect":{{"slot":{slot},"to":{to}}}}}"#);
    let begin = [open(0, "0"), open(1, "null"), open(2, "1")];
    let map = r#"{"map":{"slot":0,"pages":8}}"#.to_owned();
    let [to_ring, to_other] = [redirect(1, 0), redirect(2, 1)];
    let area = areas(0, 2, "behind");
    for (permitted, right) in [(true, Outcome::Done), (false, Outcome::Nothing)] {
        // The event of the other PMU is redirected after the area is mapped, and before.
        for order in [
            [&map, &area, &to_ring, &to_other],
            [&map, &to_ring, &to_other, &area],
        ] {
            let lines = begin.iter().chain(order).cloned().collect::<Vec<_>>();
            let program = parse(&lines.join("\n")).unwrap();
            let mut model = Model::new(units.clone(), 2, true).with_foreign_areas(permitted);
            for op in &program {
                let right = match op {
                    Op::Redirect { slot: 2, .. } => &right,
                    _ => &Outcome::Done,
                };
                assert_eq!(&model.step(op), right);
            }
            assert!(model.must_trace(0));
            assert!(!model.must_trace(2));
            assert_eq!(model.buffer(2).is_some(), permitted);
        }
    }
}

/// Whether the event of the first slot may write.
#[test]
fn who_may_write() {
    let table = [
        (vec![], false),
        (vec![r#"{"enable":0}"#], true),
        (vec![r#"{"enable":0}"#, r#"{"disable":0}"#], false),
        (
            vec![r#"{"enable":0}"#, r#"{"online":{"cpu":1,"online":false}}"#],
            false,
        ),
        (
            vec![r#"{"online":{"cpu":1,"online":false}}"#, r#"{"enable":0}"#],
            false,
        ),
        (vec![r#"{"refresh":0}"#], true),
        (vec![r#"{"toggle":{"slot":0,"times":2}}"#], false),
    ];
    for (lines, right) in table {
        let mut model = model();
        for op in parse(&opens(0, r#"{"cpu":1}"#)).unwrap() {
            assert_eq!(model.step(&op), Outcome::Done);
        }
        for op in parse(&lines.join("\n")).unwrap() {
            model.step(&op);
        }
        assert_eq!(model.may_run(0), right, "{lines:#?}");
    }
}

#[test]
fn each_step_is_read_as_it_is_printed() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = crate::fuzz::op::program(3, 400, 20);
    let program = strategy.new_tree(&mut runner).unwrap().current();
    let text: Vec<_> = program.iter().map(ToString::to_string).collect();
    assert_eq!(parse(&text.join("\n")).unwrap(), program);
    parse("{\"enable\":0").unwrap_err();
}
