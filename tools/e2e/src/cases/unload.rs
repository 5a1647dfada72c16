// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Modules are unloaded and loaded again.

use std::fmt::Write;

use anyhow::{ensure, Result};
use rustix::process::Signal;

use super::endings::until;
use super::{event, released, Seen, PAGE, TRACE};
use crate::module;
use crate::recording::{Reader, TraceFile};

pub(super) fn reload(name: &str) -> Result<String> {
    const TIMES: u32 = 3;
    let mut out = String::new();

    for _ in 0..TIMES {
        for module in module::ORDER.iter().rev() {
            module::unload(module)?;
            ensure!(
                !module::is_loaded(module),
                "{module} is still there after rmmod"
            );
        }
        module::load_all()?;

        let seen = TRACE.run(name)?;
        out.clear();
        write!(out, "{TIMES} times; last {seen}")?;
    }
    Ok(out)
}

pub(super) fn busy(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut arguments = event("rate=512", 16);
    arguments.extend(["-C".into(), "0".into()]);

    let recorder = until(&file, &arguments, 16 * PAGE)?;
    let references = module::references("pattern")?;
    let refusals: Vec<_> = module::ORDER
        .iter()
        .rev()
        .map(|module| module::unload(module))
        .collect();
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;

    ensure!(references > 0, "an open event holds no reference");
    for refusal in refusals {
        ensure!(refusal.is_err(), "a module in use was unloaded");
    }
    ensure!(
        ended.status == 0,
        "auxrec record: exit status {}: {}",
        ended.status,
        ended.errors
    );
    Seen::of(&file)?.is_right()?;
    released()?;
    for module in module::ORDER.iter().rev() {
        module::unload(module)?;
    }
    Ok(format!(
        "refused with {references} references, and unloaded after"
    ))
}
