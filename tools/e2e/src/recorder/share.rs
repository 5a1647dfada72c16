// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings to a file system that cannot write straight from an AUX area.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure, Result};

use crate::events::probe;
use crate::ktap::Skip;
use crate::recorder::{accounted, with, Steps};
use crate::recording::{released, Seen};
use crate::recording::{Reader, Recorder, TraceFile};

/// The cases, with their names.
pub const ALL: [(&str, Steps); 1] = [("a file system that wants memory of its own", by_9p)];

const FOLDER: &str = "/tmp/shared";

/// 9p passes pages of memory to the host, and cannot get the pages of a driver's mapping.
fn by_9p(name: &str) -> Result<String> {
    std::fs::create_dir_all(FOLDER)?;
    let options = "trans=virtio,version=9p2000.L,msize=262144";
    let mounted = Command::new("mount")
        .args(["-t", "9p", "-o", options, "shared", FOLDER])
        .output()?;
    if !mounted.status.success() {
        bail!(Skip("this kernel has no 9p, or the guest no shared folder"));
    }
    let result = refused().and_then(|()| recorded(name));
    let unmounted = Command::new("umount").arg(FOLDER).status()?;
    ensure!(unmounted.success(), "cannot unmount {FOLDER}");
    result
}

/// Checks that 9p really refuses to write from an AUX area.
fn refused() -> Result<()> {
    let attr = crate::attack::traced("pattern")?;
    let event = auxrec::sys::Event::open(&attr, -1, 1)?;
    let (_base, area) = probe::map(&event, 16, false)?;
    let file = File::create(Path::new(FOLDER).join("probe"))?;
    let error = area.write_out(&[], 0, 8 * 4096, &file).err();
    let Some(error) = error else {
        bail!(Skip("9p writes straight from an AUX area here"));
    };
    ensure!(error.raw_os_error() == Some(14), "not EFAULT: {error}");
    Ok(())
}

/// The recorder tries to write an area of 2 MiB straight from the ring.
fn recorded(_name: &str) -> Result<String> {
    let file = TraceFile::within(Path::new(FOLDER));
    let path = file.path().display().to_string();
    let workload = [
        "-C",
        "1",
        "--threads",
        "1",
        "--",
        "auxe2e",
        "workload",
        "sleep",
        "--trace",
        &path,
    ];
    let mut arguments = with("rate=4096", 512, &workload);
    arguments.push("3000000".to_owned());
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    ensure!(seen.content.recorded > 2 << 20, "{seen}");
    released()?;
    Ok(seen.to_string())
}
