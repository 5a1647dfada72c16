// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of compressed trace in the file.

use anyhow::{ensure, Context, Result};

use crate::pattern;
use crate::recorder::{accounted, end, size, with, Commander, Steps};
use crate::recording::{
    auxrec, outcome, recover, released, wait_for_trace, Recorder, Seen, TraceFile, PAGE,
};

/// The cases, with their names.
pub const ALL: [(&str, Steps); 3] = [
    ("compressed trace", whole),
    ("compressed snapshots", snapshots),
    ("compressed trace, killed", killed),
];

/// Converts a compressed file to a plain one, which must have the same content and be larger.
pub fn plain(file: &TraceFile, name: &str) -> Result<TraceFile> {
    let plain = TraceFile::new(&format!("{name} plain"));
    let convert = || outcome(auxrec(["convert"]).args([file.path(), plain.path()]));
    let (status, text) = convert()?;
    ensure!(status == Some(0), "auxrec convert: {text}");
    let (small, large) = (size(file.path()), size(plain.path()));
    ensure!(small < large, "{small} bytes became {large}");
    let content = |file: &TraceFile| -> Result<String> {
        Ok(pattern::check(&auxview::source::open(file.path())?)?.to_string())
    };
    ensure!(
        content(file)? == content(&plain)?,
        "the compressed file holds something else"
    );
    for what in ["check", "dump", "report"] {
        ensure!(
            outcome(auxrec([what]).arg(file.path()))? == outcome(auxrec([what]).arg(plain.path()))?,
            "{what} says another thing of the compressed file"
        );
    }
    let again = convert()?;
    ensure!(again.0 == Some(1), "it wrote over a file");
    Ok(plain)
}

fn whole(name: &str) -> Result<String> {
    let mut out = String::new();
    // Without compression, the recorder would write an area of 2 MiB straight from the ring.
    for (rate, ring, more) in [
        ("rate=1024", 16, &["-a", "-z"][..]),
        ("rate=4096", 512, &["-C", "1", "-z9", "--threads", "1"]),
    ] {
        let file = TraceFile::new(name);
        let recorder = Recorder::start(file.path(), &with(rate, ring, more))?;
        wait_for_trace(file.path(), 10 * 16 * PAGE)?;
        let ended = end(recorder)?;
        let compressed = size(file.path());
        let plain = plain(&file, name)?;
        let seen = Seen::of(&plain)?;
        accounted(&ended, &seen)?;
        released()?;
        out = format!("{seen}; {compressed} bytes for {}", size(plain.path()));
    }
    Ok(out)
}

fn snapshots(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=4096", 64, &["-a", "-z", "-S", "e"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    for _ in 0..3 {
        commander.ask("snapshot")?;
    }
    let ended = end(recorder)?;
    let seen = Seen::of(&plain(&file, name)?)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(seen.to_string())
}

fn killed(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let recorder = Recorder::start(file.path(), &with("rate=1024", 16, &["-a", "-z"]))?;
    wait_for_trace(file.path(), 10 * 16 * PAGE)?;
    recorder.kill()?;
    let text = recover(file.path())?;
    let seen = Seen::of(&plain(&file, name)?).context(text)?;
    seen.is_right()?;
    released()?;
    Ok(seen.to_string())
}
