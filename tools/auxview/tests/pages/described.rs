// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares man pages and completions of a program with its `--help`.

use std::fs;
use std::path::Path;
use std::process::Command;

fn run(program: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The names of the commands in a help text.
fn commands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .filter(|name| name != "help")
        .collect()
}

/// Checks that man pages and completions have every command and option, that there are more than `least` options, and that `command` is one
/// of the commands.
///
/// # Panics
/// If one of these is not true.
pub fn every_option_has_its_place(name_of: &str, program: &Path, command: &str, least: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (status, _, errors) = run(program, &["pages", dir.path().to_str().unwrap()]);
    assert_eq!(status, Some(0), "{errors}");
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let (_, help, _) = run(program, &["--help"]);
    let names = commands(&help);
    assert!(names.contains(&command.to_owned()) && !names.contains(&"pages".to_owned()));
    for entry in fs::read_dir(dir.path().join("man1")).unwrap() {
        let page = entry.unwrap().file_name().into_string().unwrap();
        assert!(!page.contains("help"), "{page}");
    }
    let completions = [
        read(&format!("completions/{name_of}.bash")),
        read(&format!("completions/_{name_of}")),
        read(&format!("completions/{name_of}.fish")),
    ];
    let mut options = 0;
    for name in names {
        assert!(read(&format!("man1/{name_of}.1")).contains(&name));
        let page = read(&format!("man1/{name_of}-{name}.1"));
        assert!(
            page.starts_with(".ie") && page.contains(".SH OPTIONS"),
            "{page}"
        );
        let (_, help, _) = run(program, &[&name, "--help"]);
        for option in help.split_whitespace().filter_map(|w| w.strip_prefix("--")) {
            // In an example, a value may follow the option.
            let option = option.split('=').next().unwrap_or(option);
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
    assert!(options > least, "only {options} options");
    let bash = dir.path().join(format!("completions/{name_of}.bash"));
    let status = Command::new("bash").arg("-n").arg(bash).status().unwrap();
    assert!(status.success());
}
