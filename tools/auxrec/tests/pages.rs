// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Man pages and completions have every command and every option that `--help` has; `dump` has a line for every record.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;
use std::process::Command;

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, Comm, Features, Flags, SampleId, SampleType, Writer,
};

fn auxrec(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_auxrec"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The first words of the indented lines of a part of a help text.
fn commands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn every_option_has_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (status, _, errors) = auxrec(&["pages", dir.path().to_str().unwrap()]);
    assert_eq!(status, Some(0), "{errors}");
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let (_, help, _) = auxrec(&["--help"]);
    let names = commands(&help);
    assert!(names.contains(&"record".to_owned()) && !names.contains(&"pages".to_owned()));
    for entry in fs::read_dir(dir.path().join("man1")).unwrap() {
        let page = entry.unwrap().file_name().into_string().unwrap();
        assert!(!page.contains("help"), "{page}");
    }
    let completions = [
        read("completions/auxrec.bash"),
        read("completions/_auxrec"),
        read("completions/auxrec.fish"),
    ];
    let mut options = 0;
    for name in names {
        assert!(read("man1/auxrec.1").contains(&name));
        let page = read(&format!("man1/auxrec-{name}.1"));
        assert!(
            page.starts_with(".ie") && page.contains(".SH OPTIONS"),
            "{page}"
        );
        let (_, help, _) = auxrec(&[&name, "--help"]);
        for option in help.split_whitespace().filter_map(|w| w.strip_prefix("--")) {
            let option = option.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            if option.is_empty() {
                continue;
            }
            let escaped = format!("\\-\\-{}", option.replace('-', "\\-"));
            assert!(
                page.contains(&escaped),
                "{name} --{option} is in no man page"
            );
            for text in &completions {
                assert!(text.contains(option), "{name} --{option} is not completed");
            }
            options += 1;
        }
    }
    assert!(options > 20, "only {options} options");
    let bash = dir.path().join("completions/auxrec.bash");
    let status = Command::new("bash").arg("-n").arg(bash).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_line_for_every_record() {
    let attr = Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        ..Attr::default()
    };
    let who = SampleId {
        pid: Some(5),
        tid: Some(6),
        time: Some(1_000_000_002),
        id: Some(9),
        stream_id: None,
        cpu: Some(1),
    };
    let mut file = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![9])]).unwrap();
    let comm = Comm {
        pid: 5,
        tid: 6,
        exec: true,
        comm: b"two\nlines",
    };
    file.record(&comm, Some((&who, &attr))).unwrap();
    let aux = Aux {
        offset: 4096,
        size: 64,
        flags: AuxFlags::TRUNCATED | AuxFlags::PARTIAL,
    };
    file.record(&aux, Some((&who, &attr))).unwrap();
    let piece = Auxtrace {
        size: 64,
        offset: 4096,
        reference: 77,
        idx: 0,
        tid: u32::MAX,
        cpu: 1,
    };
    file.auxtrace(&piece).unwrap();
    file.payload(&[0; 64]).unwrap();
    let bytes = file.finish(&Features::new()).unwrap().into_inner();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    fs::write(&path, bytes).unwrap();

    let (status, out, errors) = auxrec(&["dump", path.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{errors}");
    // The places are the writer's business.
    let lines: Vec<&str> = out
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(
        lines,
        [
            "1.000000002 cpu 1 5/6 COMM exec 5/6 two\\nlines",
            "1.000000002 cpu 1 5/6 AUX offset 0x1000 size 0x40 flags TRUNCATED+PARTIAL",
            "- cpu - -/- AUXTRACE offset 0x1000 size 0x40 reference 77 ring 0 cpu 1 thread -",
        ]
    );
}
