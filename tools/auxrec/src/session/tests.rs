// SPDX-License-Identifier: GPL-2.0 OR MIT

#![allow(clippy::unwrap_used)]

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::pmu::{EventSpec, Pmus, Role};
use crate::sys::Event;

/// No kernel gives a thread this id.
const GONE: u32 = 1 << 30;

/// A session of these threads' tracking events; [`None`] where this user may open no event.
fn open(plan: Plan) -> Option<Result<Session>> {
    let plan = Plan {
        data: sys::page_size(),
        ..plan
    };
    Event::open(&plan.tracking_attr(), 0, -1).ok()?;
    Some(Session::open(plan, &Limits::read(1)))
}

fn me() -> u32 {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap()
}

#[test]
fn threads_that_have_ended_are_skipped() {
    let threads = Some(vec![GONE, me(), GONE + 1]);
    for (cpus, thread) in [(None, Some(me())), (Some(vec![0]), None)] {
        let plan = Plan {
            cpus,
            threads: threads.clone(),
            ..Plan::default()
        };
        let Some(session) = open(plan) else { return };
        let session = session.unwrap();
        let [rings] = session.rings() else {
            panic!("{:?}", session.rings())
        };
        assert_eq!((rings.idx, rings.thread), (0, thread));
        assert_eq!(rings.events().len(), 1);
    }
}

#[test]
fn no_thread_is_left() {
    for cpus in [None, Some(vec![0])] {
        let plan = Plan {
            cpus,
            threads: Some(vec![GONE]),
            ..Plan::default()
        };
        let Some(session) = open(plan) else { return };
        let text = session.unwrap_err().to_string();
        assert!(text.starts_with("no thread is left to record"), "{text}");
    }
}

#[test]
fn threads_that_were_not_listed() {
    let (send, receive) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        send.send(me()).unwrap();
        let _ = ended.recv();
    });
    let tid = receive.recv().unwrap();
    let session = open(Plan {
        threads: Some(vec![me()]),
        processes: vec![std::process::id()],
        ..Plan::default()
    });
    drop(end);
    other.join().unwrap();
    let Some(session) = session else { return };
    let session = session.unwrap();
    let mut threads = session.rings().iter().map(|rings| rings.thread);
    assert!(threads.any(|thread| thread == Some(tid)));
}

#[test]
fn threads_are_listed_until_none_is_new() {
    let lists = [vec![1, 2, 3], vec![3, 4, 5], vec![3, 4, 5, 6], vec![7]];
    let mut lists = lists.into_iter();
    let mut opened = Vec::new();
    let open = |thread, late| {
        opened.push((thread, late));
        // The last thread that was listed has inherited the event.
        Ok(thread != 6)
    };
    each_thread(&[1, 2], || lists.next().unwrap(), open).unwrap();
    let late = (3..=6).map(|thread| (thread, true));
    let all: Vec<_> = [(1, false), (2, false)].into_iter().chain(late).collect();
    assert_eq!(opened, all);
    // A process that starts threads for ever does not keep the recording from beginning.
    let mut next = 0;
    let list = || {
        next += 1;
        vec![next]
    };
    each_thread(&[0], list, |_, _| Ok(true)).unwrap();
}

/// An event of a PMU on these CPUs that the kernel can open anywhere. It has no AUX area.
fn event(cpus: &[u32]) -> (EventSpec, Role) {
    let dir = tempfile::tempdir().unwrap();
    let pmu = dir.path().join("unit");
    std::fs::create_dir(&pmu).unwrap();
    let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
    std::fs::write(pmu.join("type"), "1").unwrap();
    std::fs::write(pmu.join("cpumask"), cpus.join(",") + "\n").unwrap();
    let event = Pmus::at(dir.path()).event("unit/config=9/u").unwrap();
    (event, Role::Aux)
}

#[test]
fn a_pmu_on_some_cpus() {
    let plan = |cpus| Plan {
        events: vec![event(&[1, 3]), event(&[])],
        cpus: Some(cpus),
        ..Plan::default()
    };
    // The second event can be opened anywhere, and the tracking event is where the first is not.
    let all = [(0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 2)];
    let plan_of_all = plan(vec![0, 1, 2]);
    assert_eq!(plan_of_all.places(), all);
    assert!(plan_of_all.check_cpus().is_ok());
    let text = plan(vec![0, 2]).check_cpus().unwrap_err().to_string();
    let says = "PMU `unit` cannot trace any of the CPUs 0, 2: it is on CPU 1, 3 only";
    assert!(text.starts_with(says), "{text}");
}

#[test]
fn where_a_pmu_is_not_there_are_sideband_records() {
    let plan = Plan {
        events: vec![event(&[1])],
        cpus: Some(vec![0]),
        threads: Some(vec![me()]),
        aux: sys::page_size(),
        overwrite: true,
        ..Plan::default()
    };
    let Some(session) = open(plan) else { return };
    let session = session.unwrap();
    let [rings] = session.rings() else {
        panic!("{:?}", session.rings())
    };
    assert!(!rings.have_aux() && rings.ids(1).len() == 1 && rings.ids(0).is_empty());
    // The tracking event is on, whatever becomes of the trace.
    session.track().unwrap();
    session.enable(false).unwrap();
    session.disable().unwrap();
    assert!(rings.switched.lock().on && session.switch().rings.is_empty());
}
