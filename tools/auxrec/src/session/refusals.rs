// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sessions on a system that refuses a call: which calls are made, what is undone, and which error is returned.

#![allow(clippy::unwrap_used)]

use std::ffi::CString;

use rustix::io::Errno;

use super::probe::STEP;
use super::*;
use crate::pmu::{EventSpec, Pmus, Role};
use crate::ring::IN_FLIGHT;
use crate::sys::fake::{Fake, UNIT};

const LIMITS: Limits = Limits {
    paranoid: 2,
    mlock_kb: 516,
    cpus: 2,
    memlock: Some(8 << 20),
    may_lock: true,
    may_perf: false,
    nofile: Some(1024),
    files: 0,
    filtered: false,
};

/// An event of a PMU of this type.
fn event(kind: u32) -> EventSpec {
    let dir = tempfile::tempdir().unwrap();
    let pmu = dir.path().join("unit");
    std::fs::create_dir(&pmu).unwrap();
    std::fs::write(pmu.join("type"), kind.to_string()).unwrap();
    Pmus::at(dir.path()).event("unit/config=9/u").unwrap()
}

/// Records all of CPUs 0 and 1.
fn cpus() -> Plan {
    Plan {
        events: vec![(event(UNIT), Role::Aux)],
        data: sys::page_size(),
        aux: sys::page_size(),
        cpus: Some(vec![0, 1]),
        ..Plan::default()
    }
}

/// Records threads 1, 2 and 3, each with its own rings.
fn threads() -> Plan {
    Plan {
        cpus: None,
        threads: Some(vec![1, 2, 3]),
        processes: vec![1],
        ..cpus()
    }
}

fn plans() -> [Plan; 5] {
    let filter = Some(CString::new("filter 0/8").unwrap());
    let beside = vec![
        (event(UNIT), Role::Aux),
        (event(UNIT + 1), Role::Member(0)),
        (event(UNIT + 1), Role::Other(0)),
    ];
    [
        cpus(),
        threads(),
        // The threads share the rings of each CPU.
        Plan {
            threads: Some(vec![1, 2]),
            inherit: true,
            ..cpus()
        },
        Plan {
            filter,
            events: beside.clone(),
            ..cpus()
        },
        Plan {
            overwrite: true,
            data: 2 * IN_FLIGHT,
            mode: Mode::Overwrite,
            events: beside,
            ..cpus()
        },
    ]
}

fn open(fake: &'static Fake, plan: Plan) -> Result<Session> {
    Session::open_on(fake, plan, &LIMITS)
}

/// A system that refuses this call.
fn refusing(call: &'static str, errno: Errno) -> &'static Fake {
    let fake = Fake::new();
    fake.refuse(move |_, text| (text == call).then_some(errno));
    fake
}

#[test]
fn events_are_open_before_rings_are_mapped() {
    let fake = Fake::new();
    let session = open(fake, cpus()).unwrap();
    let on = |cpu: u32| move |calls: [&str; 4]| calls.map(|call| format!("{call} cpu {cpu}"));
    let opened = ["open unit", "id unit", "open tracking", "id tracking"];
    let mut expected = [on(0)(opened), on(1)(opened)].concat();
    for cpu in [0, 1] {
        let to = format!("output tracking cpu {cpu} to unit");
        let mapped = ["map data rw unit", "map aux rw unit", &to, "open probe"];
        expected.extend(on(cpu)(mapped));
    }
    assert_eq!(fake.calls(), expected);
    // Nothing is enabled until the caller asks for it.
    session.track().unwrap();
    session.enable(true).unwrap();
    let more = fake.calls().split_off(expected.len());
    let names = ["enable tracking", "enable unit"];
    let on = names.map(|name| [0, 1].map(|cpu| format!("{name} cpu {cpu}")));
    assert_eq!(more, on.concat());
    assert_eq!(fake.left(), (6, 4));
    drop(session);
    assert_eq!(fake.left(), (0, 0));
}

/// Whichever call is refused, it is the last one, and everything that was open is closed.
#[test]
fn a_refusal_leaves_nothing_open() {
    for (number, plan) in plans().into_iter().enumerate() {
        let fake = Fake::new();
        fake.has_threads(&[1, 2, 3]);
        drop(open(fake, plan.clone()).unwrap());
        let calls = fake.calls();
        assert_eq!(fake.left(), (0, 0), "{number}");
        for (n, call) in calls.iter().enumerate() {
            for errno in [Errno::PERM, Errno::MFILE, Errno::AGAIN, Errno::NODEV] {
                let fake = Fake::new();
                fake.has_threads(&[1, 2, 3]);
                fake.refuse(move |at, _| (at == n).then_some(errno));
                let what = format!("{number}: {call}: {errno:?}");
                let text = open(fake, plan.clone()).unwrap_err().to_string();
                assert_eq!(fake.calls(), calls[..=n], "{what}");
                assert_eq!(fake.left(), (0, 0), "{what}");
                let begins = match call.split(' ').next().unwrap() {
                    "open" | "id" => "cannot open `",
                    "map" => "cannot map the ",
                    "output" => "cannot send the records of two events to one ring",
                    "clone" => "cannot keep the event of a ring",
                    "filter" => "cannot set the filter `filter 0/8` of `unit/config=9/u`",
                    _ => panic!("{what}"),
                };
                assert!(text.starts_with(begins), "{what}: {text}");
                let errno = std::io::Error::from(errno).to_string();
                assert!(text.contains(&errno), "{what}: {text}");
            }
        }
    }
}

#[test]
fn what_a_refusal_says() {
    let unit = "cannot open `unit/config=9/u` for all of CPU 1: ";
    for (call, errno, says) in [
        (
            "open unit cpu 1",
            Errno::PERM,
            [unit, "kernel.perf_event_paranoid is 2"],
        ),
        (
            "open unit cpu 1",
            Errno::MFILE,
            [unit, "the recording has "],
        ),
        (
            "open unit cpu 1",
            Errno::BUSY,
            [unit, "taken by another program"],
        ),
        (
            "open unit cpu 1",
            Errno::AGAIN,
            [unit, "no reason that is known here"],
        ),
        // The CPU went offline after the CPUs were listed.
        (
            "open unit cpu 1",
            Errno::NODEV,
            [unit, "does not work on that CPU"],
        ),
        (
            "open tracking cpu 1",
            Errno::NODEV,
            ["cannot open `dummy:u` for all of CPU 1", "on that CPU"],
        ),
        (
            "open probe cpu 1",
            Errno::NODEV,
            ["cannot open `dummy:u` for a CPU", "on that CPU"],
        ),
        (
            "map data rw unit cpu 0",
            Errno::PERM,
            ["cannot map the data ring of 8 KiB", "raise a limit"],
        ),
        (
            "map aux rw unit cpu 0",
            Errno::NOMEM,
            ["cannot map the AUX area of 4 KiB", "has no memory"],
        ),
        (
            "map aux rw unit cpu 1",
            Errno::AGAIN,
            ["cannot map the AUX area", "no reason that is known here"],
        ),
    ] {
        let fake = refusing(call, errno);
        let text = open(fake, cpus()).unwrap_err().to_string();
        let said = text.starts_with(says[0]) && text.contains(says[1]);
        assert!(said, "{call} {errno:?}: {text}");
    }
}

#[test]
fn threads_that_end_while_they_are_opened() {
    let opened = |fake: &'static Fake| {
        let session = open(fake, threads()).map_err(|e| e.to_string())?;
        let rings = session.rings().iter();
        let rings: Vec<_> = rings.map(|r| (r.thread, r.tracking.len())).collect();
        drop(session);
        assert_eq!(fake.left(), (0, 0));
        std::result::Result::<_, String>::Ok(rings)
    };
    let all = [(Some(1), 1), (Some(2), 1), (Some(3), 1)];
    assert_eq!(opened(Fake::new()).unwrap(), all);
    // The thread ends before its first event is open, or between its two events.
    let fake = refusing("open unit thread 2", Errno::SRCH);
    assert_eq!(opened(fake).unwrap(), [all[0], all[2]]);
    let fake = refusing("open tracking thread 2", Errno::SRCH);
    assert_eq!(opened(fake).unwrap(), [all[0], (Some(2), 0), all[2]]);
    let fake = Fake::new();
    fake.refuse(|_, call| call.starts_with("open").then_some(Errno::SRCH));
    let text = opened(fake).unwrap_err();
    assert!(text.starts_with("no thread is left to record"), "{text}");

    // A thread that was found later has inherited its creator's event. If a listed thread is busy, another program traces it.
    let fake = refusing("open unit thread 4", Errno::BUSY);
    fake.has_threads(&[1, 2, 3, 4, 5]);
    let late = [all[0], all[1], all[2], (Some(5), 1)];
    assert_eq!(opened(fake).unwrap(), late);
    let text = opened(refusing("open unit thread 2", Errno::BUSY)).unwrap_err();
    assert!(text.contains("taken by another program"), "{text}");
}

#[test]
fn a_unit_that_goes_before_it_is_on() {
    for (call, says) in [
        ("enable tracking cpu 1", "cannot enable `dummy:u`"),
        ("enable unit cpu 1", "cannot enable `unit/config=9/u`"),
        ("disable unit cpu 0", "cannot disable `unit/config=9/u`"),
    ] {
        let fake = refusing(call, Errno::NODEV);
        let session = open(fake, cpus()).unwrap();
        let tracked = session.track().and_then(|()| session.enable(true));
        let text = tracked.and_then(|()| session.disable()).unwrap_err();
        let text = text.to_string();
        assert!(text.starts_with(says), "{call}: {text}");
        drop(session);
        assert_eq!(fake.left(), (0, 0), "{call}");
    }
}

/// An event that the kernel has disabled, because its area was full, is restarted. If that fails, the next call tries again.
#[test]
fn a_restart_that_is_refused() {
    for call in ["disable unit cpu 0", "enable unit cpu 0"] {
        let fake = Fake::new();
        let session = open(fake, cpus()).unwrap();
        let restart = || session.rings()[0].restart();
        let before = fake.calls().len();
        // The trace is off.
        restart().unwrap();
        assert_eq!(fake.calls().len(), before);
        session.enable(true).unwrap();
        fake.refuse(move |_, text| (text == call).then_some(Errno::AGAIN));
        assert_eq!(restart().unwrap_err().raw_os_error(), Some(11), "{call}");
        fake.refuse(|_, _| None);
        let before = fake.calls().len();
        restart().unwrap();
        let calls = ["disable unit cpu 0", "enable unit cpu 0"];
        assert_eq!(fake.calls()[before..], calls);
    }
}

/// A ring is resumed after it was paused and read.
#[test]
fn a_pause_that_is_refused() {
    let [.., plan] = plans();
    for (call, asked) in [
        ("pause other cpu 0", 1),
        ("resume other cpu 0", 2),
        ("nothing", 2),
    ] {
        let fake = Fake::new();
        let mut session = open(fake, plan.clone()).unwrap();
        let before = fake.calls().len();
        fake.refuse(move |_, text| (text == call).then_some(Errno::AGAIN));
        let newest = session.rings_mut()[0].newest().map(|_| ());
        let text = newest.map_or_else(|e| e.to_string(), |()| String::new());
        let refused = call != "nothing";
        assert_eq!(
            text.starts_with("cannot pause a data ring"),
            refused,
            "{text}"
        );
        assert_eq!(fake.calls().len(), before + asked, "{call}");
    }
}

/// When a CPU is online again, its events are opened again. If one cannot be opened, nothing changes, and the next call tries again.
#[test]
fn a_cpu_that_goes_and_comes() {
    let back = |n: Option<usize>| {
        let fake = Fake::new();
        let mut session = open(fake, cpus()).unwrap();
        session.track().unwrap();
        session.enable(true).unwrap();
        let before = fake.left();
        // Its events still count.
        fake.pass(2 * STEP);
        session.rings_mut()[0].revive();
        fake.stop();
        assert_eq!(fake.calls().last().unwrap(), "count probe cpu 0");
        let look = |session: &mut Session| {
            let from = fake.calls().len();
            fake.pass(2 * STEP);
            session.rings_mut()[0].revive();
            fake.calls().split_off(from)
        };
        if let Some(n) = n {
            let from = fake.calls().len();
            fake.refuse(move |at, _| (at == from + n).then_some(Errno::NODEV));
            assert_eq!(look(&mut session).len(), n + 1);
            assert_eq!(fake.left(), before, "{n}");
            fake.refuse(|_, _| None);
        }
        let calls = look(&mut session);
        // The event that owns the rings stays open.
        assert_eq!(fake.left(), (before.0 + 1, before.1));
        let counts = session.rings()[0].counts();
        assert_eq!(counts[0].1.value, 200, "{n:?}");
        assert!(look(&mut session).len() == 1, "it is back");
        let offline = session.offline();
        assert_eq!(offline.len(), 1);
        drop(session);
        assert_eq!(fake.left(), (0, 0));
        calls
    };
    let calls = back(None);
    let expected = [
        "count probe cpu 0",
        // First, as it fails at once if the CPU is offline.
        "open probe cpu 0",
        "open unit cpu 0",
        "output unit cpu 0 to unit cpu 0",
        "id unit cpu 0",
        "open tracking cpu 0",
        "output tracking cpu 0 to unit cpu 0",
        "id tracking cpu 0",
        "enable tracking cpu 0",
        "enable unit cpu 0",
        "count unit cpu 0",
    ];
    assert_eq!(calls, expected);
    for n in 1..calls.len() {
        assert_eq!(back(Some(n)), calls, "{n}");
    }
}
