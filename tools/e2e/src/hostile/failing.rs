// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocation failures. An operation is repeated: the first time, the first allocation of the task fails, then the second one, and so on
//! until none fails.
//!
//! The operation must report the failure or succeed, and must leave nothing behind. The debug kernel reports leaks when the guest ends.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use conform::allocations::Allocations;
use perfdata::{Attr, Flags};
use rustix::io::Errno;

use crate::attack::{attack, traced, Attack, Victim};
use crate::ktap::Skip;
use crate::module;
use crate::recording::released;
use crate::soft_pt;

const CASES: [Attack; 3] = [
    attack("no memory for an event", events),
    attack("no memory for a child's event", children),
    attack("no memory for a driver", drivers),
];

/// The cases. They need the debug kernel.
pub fn all() -> impl Iterator<Item = Attack> {
    CASES.into_iter().filter(|_| module::is_debug_kernel())
}

/// More than the allocations for one event or for one module.
const MAX: u32 = 20_000;

/// The last allocations during the loading of a driver. They include all of the driver's own; the earlier ones are the kernel's module
/// loader's. Registration is code of the framework, so it is enough that all of these fail for one driver. Otherwise, every eighth
/// allocation fails.
const OWN: u32 = 400;

/// Makes allocations of this thread fail.
struct Memory(Allocations);

impl Memory {
    fn new() -> Result<Self> {
        Ok(Self(Allocations::new()?))
    }

    /// Calls `what` repeatedly, each time with one failing allocation, until none fails. Of the first `coarse` allocations, only every
    /// eighth fails. Returns how often an allocation failed, and how often `what` reported that, by one of these errors.
    fn run_out<T>(
        &self,
        numbers: &[Errno],
        coarse: u32,
        what: impl Fn() -> Result<T>,
        after: impl Fn() -> Result<()>,
    ) -> Result<Count> {
        let mut count = Count::default();
        for nth in (1..MAX).filter(|nth| *nth > coarse || nth % 8 == 0) {
            let (outcome, left) = self.0.without(nth, &what)?;
            let failed = left == 0;
            match outcome {
                Ok(done) => drop(done),
                Err(error) => {
                    let right = errno(&error).is_some_and(|errno| numbers.contains(&errno));
                    ensure!(failed && right, "allocation {nth}: {error:#}");
                    count.reported += 1;
                }
            }
            after().with_context(|| format!("after allocation {nth} failed"))?;
            if !failed {
                return Ok(count);
            }
            count.failed += 1;
        }
        bail!("{MAX} allocations and more")
    }
}

/// The errno at the root of an error.
fn errno(error: &anyhow::Error) -> Option<Errno> {
    let cause = error.root_cause();
    cause.downcast_ref::<Errno>().copied().or_else(|| {
        let error = cause.downcast_ref::<io::Error>()?;
        Errno::from_io_error(error)
    })
}

#[derive(Default)]
struct Count {
    failed: u32,
    reported: u32,
}

/// An event to open, and the name of its driver or sink.
struct Opened {
    name: &'static str,
    attr: Attr,
    pid: i32,
    cpu: i32,
}

/// An event of each driver, and of each sink of `pattern`.
fn opened() -> Result<Vec<Opened>> {
    let mut all = Vec::new();
    for (name, sink) in [("direct", 0), ("sg", 1), ("flat", 2)] {
        let mut attr = traced("pattern")?;
        attr.config1 = sink;
        all.push(Opened {
            name,
            attr,
            pid: -1,
            cpu: 0,
        });
    }
    all.push(Opened {
        name: "minimal",
        attr: traced("minimal")?,
        pid: -1,
        cpu: 0,
    });
    all.push(Opened {
        name: "soft_pt",
        attr: soft_pt::traced()?,
        pid: 0,
        cpu: -1,
    });
    Ok(all)
}

/// Calls `what` with the other drivers loaded, and unloads them afterwards.
fn with_all(what: impl FnOnce() -> Result<String>) -> Result<String> {
    let Some((_, second)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = module::with("soft_pt", what);
    module::unload(second)?;
    seen
}

/// Errors of starting a program without memory. ENFILE comes from a pipe that cannot be made.
const FORK: [Errno; 3] = [Errno::NOMEM, Errno::NFILE, Errno::AGAIN];

/// Opens, maps, enables, disables and closes an event.
fn events() -> Result<String> {
    let memory = Memory::new()?;
    with_all(|| {
        let mut seen = Vec::new();
        for it in opened()? {
            let life = || -> Result<()> {
                let victim = Victim::open(&it.attr, it.pid, it.cpu, 4)?;
                victim.event.enable()?;
                victim.event.disable()?;
                Ok(())
            };
            let count = memory
                .run_out(&[Errno::NOMEM], 0, life, released)
                .context(it.name)?;
            ensure!(
                count.reported > 0,
                "{}: no failure was reported, of {}",
                it.name,
                count.failed
            );
            seen.push(format!(
                "{}: {} of {}",
                it.name, count.reported, count.failed
            ));
        }
        Ok(format!(
            "failed allocations, as the kernel reports them: {}",
            seen.join(", ")
        ))
    })
}

/// Starts a program that inherits an event.
fn children() -> Result<String> {
    let memory = Memory::new()?;
    with_all(|| {
        let mut seen = Vec::new();
        for mut it in opened()? {
            it.attr.flags |= Flags::INHERIT;
            // perf does not map an inherited event that is for all CPUs.
            let victim = Victim::open(&it.attr, 0, 0, 4).context(it.name)?;
            victim.event.enable()?;
            let fork = || -> Result<()> {
                let child = std::process::Command::new("/bin/true").spawn();
                let status = child.and_then(|mut child| child.wait());
                status.context("cannot start a program")?;
                Ok(())
            };
            let count = memory.run_out(&FORK, 0, fork, || Ok(())).context(it.name)?;
            ensure!(
                count.reported > 0,
                "{}: no failure was reported, of {}",
                it.name,
                count.failed
            );
            drop(victim);
            released()?;
            seen.push(format!(
                "{}: {} of {}",
                it.name, count.reported, count.failed
            ));
        }
        Ok(format!(
            "failed allocations, as the kernel reports them: {}",
            seen.join(", ")
        ))
    })
}

/// Loads and unloads a driver.
fn drivers() -> Result<String> {
    let memory = Memory::new()?;
    let seen = unloaded(&memory);
    module::load("pattern")?;
    seen
}

fn unloaded(memory: &Memory) -> Result<String> {
    let Some((_, second)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    module::unload(second)?;
    module::unload("pattern")?;
    module::load("rust_stepping")?;
    let mut seen = Vec::new();
    for name in [second, "soft_pt", "pattern"] {
        let path = format!("/modules/{name}.ko");
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        let load = || -> Result<()> {
            rustix::system::finit_module(&file, c"", 0).context("cannot load")?;
            Ok(())
        };
        let gone = || -> Result<()> {
            if module::is_loaded(name) {
                module::unload(name)?;
            }
            let left = format!("/sys/bus/event_source/devices/{name}");
            ensure!(!Path::new(&left).exists(), "{left} is there");
            Ok(())
        };
        let (loaded, left) = memory.0.without(MAX, load)?;
        loaded?;
        gone()?;
        let coarse = match name == second {
            true => (MAX - left).saturating_sub(OWN),
            false => MAX,
        };
        let count = memory.run_out(&[Errno::NOMEM], coarse, load, gone);
        let count = count.context(name)?;
        ensure!(count.reported > 0, "{name}: no failure was reported");
        seen.push(format!("{name}: {} of {}", count.reported, count.failed));
    }
    Ok(format!(
        "failed allocations, as the kernel reports them: {}",
        seen.join(", ")
    ))
}
