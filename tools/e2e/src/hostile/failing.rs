// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that cannot be had: of all that the kernel allocates in a task while something is done, the first piece fails, then
//! the second, and so on until nothing fails any more.
//!
//! The operation must report the failure or succeed, and leave nothing behind. The debug kernel reports leaks when the guest ends.

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

/// The cases of such a guest.
pub fn all() -> impl Iterator<Item = Attack> {
    CASES.into_iter().filter(|_| module::is_debug_kernel())
}

/// Longer than any of these: each kernel allocates less for one event, and for one module.
const MOST: u32 = 20_000;

/// So many allocations, the last, are a driver's own and a little more when it is loaded; the first are those of the kernel's module
/// loader. How drivers register is the framework's: one of them is as good as all, of the others each eighth allocation fails.
const OWN: u32 = 400;

/// This thread's allocations.
struct Memory(Allocations);

impl Memory {
    fn new() -> Result<Self> {
        Ok(Self(Allocations::new()?))
    }

    /// Does it once for each allocation, which fails, or of the first `coarse` for each eighth; and once with none. How often
    /// something failed, and how often that was told, by one of these numbers.
    fn run_out<T>(
        &self,
        numbers: &[Errno],
        coarse: u32,
        what: impl Fn() -> Result<T>,
        after: impl Fn() -> Result<()>,
    ) -> Result<Count> {
        let mut count = Count::default();
        for nth in (1..MOST).filter(|nth| *nth > coarse || nth % 8 == 0) {
            let (outcome, left) = self.0.without(nth, &what)?;
            let failed = left == 0;
            match outcome {
                Ok(done) => drop(done),
                Err(error) => {
                    let right = errno(&error).is_some_and(|errno| numbers.contains(&errno));
                    ensure!(failed && right, "allocation {nth}: {error:#}");
                    count.told += 1;
                }
            }
            after().with_context(|| format!("after allocation {nth} failed"))?;
            if !failed {
                return Ok(count);
            }
            count.failed += 1;
        }
        bail!("{MOST} allocations and more")
    }
}

/// What the kernel said.
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
    told: u32,
}

/// What to open, and what keeps its driver.
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

/// With the other drivers loaded, which are not loaded at its end.
fn with_all(what: impl FnOnce() -> Result<String>) -> Result<String> {
    let Some((_, second)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = module::with("soft_pt", what);
    module::unload(second)?;
    seen
}

/// What starting a program says when there is no memory: of a pipe that cannot be made, the second.
const FORK: [Errno; 3] = [Errno::NOMEM, Errno::NFILE, Errno::AGAIN];

/// Opened, mapped, on, off and closed.
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
                count.told > 0,
                "{}: no failure was told, of {}",
                it.name,
                count.failed
            );
            seen.push(format!("{}: {} of {}", it.name, count.told, count.failed));
        }
        Ok(format!("told of allocations: {}", seen.join(", ")))
    })
}

/// Copied to a thread that is made.
fn children() -> Result<String> {
    let memory = Memory::new()?;
    with_all(|| {
        let mut seen = Vec::new();
        for mut it in opened()? {
            it.attr.flags |= Flags::INHERIT;
            // perf maps no ring for all processors that events of children write to.
            let victim = Victim::open(&it.attr, 0, 0, 4).context(it.name)?;
            victim.event.enable()?;
            let fork = || -> Result<()> {
                let child = std::process::Command::new("/bin/true").spawn();
                let status = child.and_then(|mut child| child.wait());
                status.context("cannot start a program")?;
                Ok(())
            };
            let count = memory.run_out(&FORK, 0, fork, || Ok(())).context(it.name)?;
            drop(victim);
            released()?;
            seen.push(format!("{}: {} of {}", it.name, count.told, count.failed));
        }
        Ok(format!("told of allocations: {}", seen.join(", ")))
    })
}

/// Loaded and unloaded.
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
        let (loaded, left) = memory.0.without(MOST, load)?;
        loaded?;
        gone()?;
        let coarse = match name == second {
            true => (MOST - left).saturating_sub(OWN),
            false => MOST,
        };
        let count = memory.run_out(&[Errno::NOMEM], coarse, load, gone);
        let count = count.context(name)?;
        ensure!(count.told > 0, "{name}: no failure was told");
        seen.push(format!("{name}: {} of {}", count.told, count.failed));
    }
    Ok(format!("told of allocations: {}", seen.join(", ")))
}
