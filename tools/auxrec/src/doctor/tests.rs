// SPDX-License-Identifier: GPL-2.0 OR MIT

#![allow(clippy::unwrap_used)]

use rustix::io::Errno;

use super::*;
use crate::json;
use crate::limits::Limits;

/// A server on which everything is allowed.
fn server() -> Host {
    Host {
        release: "7.3.12+deb13-amd64".into(),
        limits: Limits {
            paranoid: 2,
            mlock_kb: 516,
            cpus: 64,
            memlock: Some(8 << 20),
            may_lock: true,
            may_perf: true,
            nofile: Some(1024),
            files: 0,
            filtered: false,
        },
        hard_files: Some(1 << 20),
        call: Errno::INVAL,
        contained: false,
        lockdown: Lockdown::None,
        processor: Processor::Intel { pt: true },
        guest: false,
        pmus: vec!["cpu".into(), "intel_pt".into()],
        unloaded: ["ext4".to_owned()].into(),
    }
}

/// The same server for an ordinary user.
fn user() -> Host {
    let mut host = server();
    (host.limits.may_lock, host.limits.may_perf) = (false, false);
    host
}

/// A host that differs from another one.
fn with(mut host: Host, change: fn(&mut Host)) -> Host {
    change(&mut host);
    host
}

/// For each host: the names of its findings, and words in the first of them.
#[test]
fn findings() {
    let table: &[(Host, &[&str], &[&str])] = &[
        (server(), &[], &[]),
        (
            user(),
            &["perf_event_paranoid", "locked_memory"],
            &[
                "is 2",
                "CPUs (-a, -C)",
                "modifier u",
                "sysctl kernel.perf_event_paranoid=-1",
                "setcap cap_perfmon+ep",
            ],
        ),
        (
            with(user(), |host| host.limits.paranoid = 1),
            &["perf_event_paranoid", "locked_memory"],
            &["is 1", "CPUs (-a, -C)"],
        ),
        (
            with(user(), |host| host.limits.paranoid = 0),
            &["locked_memory"],
            &[
                "perf_event_mlock_kb is 516 for each of 64 CPUs",
                "rings larger than 512 KiB and 128 KiB on each CPU",
                "ulimit -l",
                "CAP_IPC_LOCK",
            ],
        ),
        (with(user(), |host| host.limits.paranoid = -1), &[], &[]),
        (
            with(user(), |host| {
                (host.limits.paranoid, host.contained) = (3, true);
            }),
            &["perf_event_paranoid", "locked_memory"],
            &[
                "is 3",
                "all recording",
                "namespace of a container",
                "--cap-add PERFMON",
            ],
        ),
        (
            with(server(), |host| {
                (host.limits.filtered, host.call) = (true, Errno::NOSYS);
            }),
            &["perf_event_open"],
            &[
                "does not reach the kernel",
                "all recording",
                "seccomp",
                "--cap-add PERFMON",
            ],
        ),
        (
            with(server(), |host| {
                (host.limits.filtered, host.call) = (true, Errno::PERM);
            }),
            &["perf_event_open"],
            &["does not reach the kernel", "seccomp"],
        ),
        (
            with(server(), |host| host.call = Errno::NOSYS),
            &["perf_event_open"],
            &["is not there", "CONFIG_PERF_EVENTS"],
        ),
        (
            with(server(), |host| host.hard_files = Some(256)),
            &["open_files"],
            &[
                "raised to 256 only",
                "recording of 64 CPUs may have 897 files",
                "ulimit -n 897",
            ],
        ),
        (with(server(), |host| host.hard_files = None), &[], &[]),
        (
            with(server(), |host| host.release = "6.8.0-45-generic".into()),
            &["kernel"],
            &[
                "6.8.0-45-generic",
                "a thread (-t)",
                "6.9",
                "aux-action",
                "6.13",
                "soft_pt",
            ],
        ),
        (
            with(server(), |host| host.release = "8.0.0".into()),
            &[],
            &[],
        ),
        (
            with(server(), |host| host.lockdown = Lockdown::Integrity),
            &["lockdown"],
            &["(integrity)", "soft_pt", "mokutil"],
        ),
        (
            with(server(), |host| host.lockdown = Lockdown::Confidentiality),
            &["lockdown"],
            &["(confidentiality)", "of your own build; events of tracefs"],
        ),
        (
            with(server(), |host| {
                (host.guest, host.pmus) = (true, Vec::new());
                host.unloaded = ["soft_pt".into()].into();
            }),
            &["intel_pt", "module"],
            &[
                "virtual machine",
                "Intel PT",
                "record on the host",
                "soft_pt",
            ],
        ),
        // A guest to which the hypervisor shows the trace unit.
        (with(server(), |host| host.guest = true), &[], &[]),
        (
            with(server(), |host| host.pmus.clear()),
            &["intel_pt"],
            &["its driver registered no PMU", "dmesg"],
        ),
        (
            with(server(), |host| {
                host.pmus.clear();
                host.processor = Processor::Intel { pt: false };
            }),
            &["intel_pt"],
            &["finds no Intel PT", "firmware", "soft_pt"],
        ),
        (
            with(server(), |host| {
                host.pmus.clear();
                host.processor = Processor::Other;
            }),
            &[],
            &[],
        ),
        (
            with(server(), |host| {
                host.processor = Processor::Arm;
                host.unloaded = ["arm_spe_pmu".into(), "coresight_etm4x".into()].into();
            }),
            &["module", "module"],
            &[
                "arm_spe_pmu is installed",
                "Arm SPE",
                "modprobe arm_spe_pmu",
            ],
        ),
        (
            with(server(), |host| host.processor = Processor::Arm),
            &["arm_spe"],
            &["no PMU arm_spe_0", "kpti=off"],
        ),
        (
            with(server(), |host| {
                (host.processor, host.guest) = (Processor::Arm, true);
            }),
            &["arm_spe"],
            &["virtual machine", "Arm SPE"],
        ),
        (
            with(server(), |host| {
                host.processor = Processor::Arm;
                host.pmus.push("arm_spe_0".into());
                host.unloaded.insert("soft_pt".into());
            }),
            &["module"],
            &["modprobe soft_pt"],
        ),
    ];
    for (host, names, says) in table {
        let found = finding::all(host);
        let found_names: Vec<_> = found.iter().map(|finding| finding.name).collect();
        assert_eq!(found_names, *names, "{host:?}");
        let report = Report {
            units: Vec::new(),
            findings: found,
        };
        let text = report.to_string();
        for words in *says {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(
            text.ends_with("No AUX area can be recorded here.\n"),
            "{text}"
        );
        assert_eq!(text.matches("prevents: ").count(), names.len(), "{text}");
    }
}

/// The recorder's error and the finding have the same remedy.
#[test]
fn errors_say_the_same() {
    let denied = |host: &Host, errno: Errno| {
        let error = host.limits.explain_open(&errno.into(), "unit//", "CPU 0");
        error.to_string()
    };
    let lower = &finding::all(&user())[0].remedy;
    assert!(
        denied(&user(), Errno::ACCESS).contains(lower.as_str()),
        "{lower}"
    );
    let filtered = with(server(), |host| {
        (host.limits.filtered, host.call) = (true, Errno::PERM);
    });
    let start = &finding::all(&filtered)[0].remedy;
    for errno in [Errno::PERM, Errno::NOSYS] {
        assert!(denied(&filtered, errno).contains(start.as_str()), "{start}");
    }
    // A filter of other calls only does not keep the recorder from perf.
    let module = denied(&server(), Errno::PERM);
    assert!(module.contains("/sys/kernel/security/lsm"), "{module}");
}

fn rehearsal(way: Way, error: Option<&str>) -> Rehearsal {
    let error = error.map(str::to_owned);
    Rehearsal { way, error }
}

#[test]
fn units() {
    let unknown = |name: &str| Unit {
        name: name.into(),
        area: Area::Unknown {
            why: "denied".into(),
            denied: true,
        },
        rehearsals: Way::ALL.map(|way| rehearsal(way, Some("denied"))).into(),
    };
    let [own, kernel, ..] = Way::ALL;
    let unit = Unit {
        name: "soft_pt".into(),
        area: Area::Some,
        rehearsals: vec![
            rehearsal(own, None),
            rehearsal(kernel, Some("not supported")),
        ],
    };
    let line = Line(&unit).to_string();
    assert_eq!(line, "AUX area; record it with -e soft_pt//u -- COMMAND");
    assert_eq!(
        Line(&unknown("x")).to_string(),
        "whether it has an AUX area is unknown: denied"
    );
    let none = Unit {
        area: Area::None,
        rehearsals: Vec::new(),
        ..unit.clone()
    };
    assert_eq!(Line(&none).to_string(), "no AUX area");
    let refused = Unit {
        rehearsals: vec![rehearsal(own, Some("not now"))],
        ..unit.clone()
    };
    assert_eq!(Line(&refused).to_string(), "AUX area; not now");

    let report = Report {
        units: vec![unknown("a"), unit, unknown("b")],
        findings: Vec::new(),
    };
    let want = "PMU soft_pt has an AUX area
  works:   auxrec record -e soft_pt//u -- COMMAND
  refused: auxrec record -e soft_pt// -- COMMAND
    not supported
PMUs of which it is unknown whether they have an AUX area: a, b
  denied
An AUX area can be recorded here: auxrec record -e soft_pt//u -- COMMAND
";
    assert_eq!(report.to_string(), want);
    assert!(report.can_record());
    let value = json::doctor(&report);
    assert_eq!(value["works"], true);
    assert_eq!(
        value["pmus"][1]["ways"][0]["arguments"],
        "-e soft_pt//u -- COMMAND"
    );
    assert_eq!(value["pmus"][1]["ways"][1]["works"], false);
    assert_eq!(value["pmus"][0]["aux"], serde_json::Value::Null);
    let denied = Report {
        units: vec![unknown("a")],
        findings: Vec::new(),
    };
    assert!(!denied.can_record());
}
