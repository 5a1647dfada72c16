// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings on a system that refuses a call.

#![allow(clippy::unwrap_used)]

use std::fs;

use rustix::io::Errno;

use super::*;
use crate::sys::fake::Fake;

/// Records a command that creates a file. Also returns whether that file exists, and the length of the recording, if it exists.
fn run(fake: &'static Fake, target: &Target) -> (Result<Outcome>, bool, Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let options = Options {
        sideband: true,
        output: dir.path().join("perf.data"),
        command: vec!["touch".into(), made.clone().into()],
        target: target.clone(),
        threads: Some(1),
        ..Options::default()
    };
    let outcome = record_on(fake, &options);
    assert_eq!(fake.left(), (0, 0));
    let size = fs::metadata(&options.output).ok().map(|file| file.len());
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(
        left.len(),
        usize::from(made.exists()) + usize::from(size.is_some())
    );
    (outcome, made.exists(), size)
}

/// A refusal before the command runs ends the recording.
#[test]
fn a_recording_that_is_refused() {
    for (target, last) in [
        (Target::Command, "map data"),
        (Target::System(vec![0, 1]), "enable tracking"),
    ] {
        let fake = Fake::new();
        let (outcome, made, size) = run(fake, &target);
        let outcome = outcome.unwrap();
        assert_eq!((outcome.status, made), (Some(0), true));
        assert_eq!(Some(outcome.file), size);
        assert!(!outcome.total().any());
        let calls = fake.calls();
        let is = |begins: &'static str| move |call: &String| call.starts_with(begins);
        let first = calls.iter().position(is("open tracking")).unwrap();
        let last = calls.iter().rposition(is(last)).unwrap();
        // A counter that cannot be read counts as that of an event whose PMU is gone.
        assert!(calls[last + 1..].iter().all(is("count")), "{calls:?}");
        for (n, what) in calls.iter().enumerate().take(last + 2).skip(first) {
            let fake = Fake::new();
            fake.refuse(move |at, _| (at == n).then_some(Errno::NODEV));
            let (outcome, made, size) = run(fake, &target);
            if n > last {
                assert_eq!((outcome.unwrap().status, made), (Some(0), true), "{what}");
                assert!(size.is_some(), "{what}");
                continue;
            }
            let text = outcome.unwrap_err().to_string();
            assert!(text.starts_with("cannot "), "{what}: {text}");
            // The command did not run, and there is no file.
            assert_eq!((made, size), (false, None), "{what}: {text}");
        }
    }
}

/// The recorder does not request sideband records that the kernel does not know.
#[test]
fn sideband_of_an_older_kernel() {
    let fake = Fake::new();
    fake.refuse(|_, call| call.starts_with("open sideband").then_some(Errno::INVAL));
    let (outcome, made, _) = run(fake, &Target::Command);
    assert_eq!((outcome.unwrap().status, made), (Some(0), true));
}
