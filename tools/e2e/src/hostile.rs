// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile user: calls that no recorder makes, but that any program may make.
//!
//! Each attack takes a bounded time, and closes all that it has opened. Then the runner checks that no reference to the driver is left, and
//! that a recording is as exact as before. After the guest has ended, its console is searched for warnings.
//!
//! Larger attacks are in the submodules.

pub mod children;
pub mod control;
pub mod drivers;
pub mod failing;
pub mod limits;
pub mod redirect;

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::Attr;

use crate::attack::{
    attack, aux, base, offset, pinned, set, sleep, traced, Attack, Victim, DATA_PAGES,
};
use crate::events::probe::bytes;
use crate::events::siblings;
use crate::hotplug;
use crate::wait::PATIENCE;
use crate::workload::{pin, spin};

/// All attacks.
pub const ALL: [Attack; 15] = [
    attack("two PMUs, one ring", redirect::two_pmus),
    attack("AUX of a redirected event", redirect::redirected),
    attack("unmap while running", unmap),
    attack("rmmod with a mapping alive", rmmod),
    attack("aux_tail set to garbage", control::garbage_tail),
    attack("control page set to garbage", control::garbage_page),
    attack("group throttled", siblings::throttle),
    attack("period, refresh and reset while running", siblings::ioctls),
    attack("paused and resumed by siblings", siblings::pause),
    attack("storm of fork, exec and exit", children::storm),
    attack("open and close on both CPUs at once", open_close),
    attack("wrong mappings", wrong_mappings),
    attack("descriptor that outlives its opener", children::outlive),
    attack("CPU taken offline", hotplug::offline),
    attack("two writers at once, one ring", redirect::two_writers),
];

fn unmap() -> Result<String> {
    const TIMES: u64 = 60;
    let mut traced = 0;

    for n in 0..TIMES {
        let cpu = i32::try_from(n % 2)?;
        let mut victim = Victim::on_cpu(cpu, 4)?;
        victim.event.enable()?;
        sleep(n % 4);
        traced += victim.head();
        match n % 5 {
            0 => drop(victim.aux.take()),
            1 => drop(victim.base.take()),
            2 => {
                drop(victim.base.take());
                drop(victim.aux.take());
            }
            3 => {
                drop(victim.aux.take());
                drop(victim.base.take());
            }
            // Here the event is closed first.
            _ => {
                let Victim { aux, base, event } = victim;
                drop(event);
                sleep(1);
                drop(base);
                drop(aux);
                continue;
            }
        }
        sleep(n % 3);
        // perf has disabled the event, or it runs without a ring. It gets another ring.
        victim.event.enable()?;
        drop((victim.aux.take(), victim.base.take()));
        victim.map(8).context("after all was unmapped")?;
        victim
            .traces()
            .context("with another ring after all was unmapped")?;
    }
    Ok(format!(
        "{TIMES} rings, {traced} bytes until they were unmapped"
    ))
}

fn rmmod() -> Result<String> {
    let victim = Victim::on_cpu(0, 4)?;
    victim.event.enable()?;
    pinned("an event")?;
    let Victim { aux, base, event } = victim;
    drop(event);
    pinned("an event that only its mappings hold")?;
    drop(base);
    let references = pinned("a mapping of AUX")?;
    drop(aux);

    Ok(format!("refused with {references} references by a mapping"))
}

fn open_close() -> Result<String> {
    const TIMES: u64 = 80;
    let both = |cpu: i32| -> Result<(u64, u64)> {
        pin(usize::try_from(cpu)?)?;
        let mut seen = 0;
        let mut opened = 0;
        let end = Instant::now() + PATIENCE;
        for n in 0.. {
            if opened == TIMES || Instant::now() > end {
                break;
            }
            // Every third event is on the other CPU, so that the two threads collide.
            let at = if n % 3 == 0 { 1 - cpu } else { cpu };
            // All sinks are used. A unit that writes straight into the ring needs two pages.
            let config1 = if n % 4 == 0 { 1 } else { n % 3 };
            let attr = Attr {
                config1,
                ..traced("pattern")?
            };
            // perf allows one event of an exclusive PMU per CPU.
            let event = match Event::open(&attr, -1, at) {
                Ok(event) => event,
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    sleep(1);
                    continue;
                }
                Err(error) => return Err(error).context("cannot open an event"),
            };
            let mut victim = Victim {
                aux: None,
                base: None,
                event,
            };
            victim.map(1 << (n % 4))?;
            opened += 1;
            victim.event.enable()?;
            if n % 4 == 0 {
                spin(Duration::from_millis(3));
            }
            if n % 2 == 0 {
                victim.event.disable()?;
            }
            seen += victim.head();
        }
        ensure!(opened >= TIMES / 4, "only {opened} events could be opened");
        Ok((opened, seen))
    };
    let (first, second) = thread::scope(|scope| {
        let threads = [0, 1].map(|cpu| scope.spawn(move || both(cpu)));
        let [first, second] = threads.map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| bail!("a thread of the attack panicked"))
        });
        (first, second)
    });
    let (first, second) = (first?, second?);
    let (opened, bytes_seen) = (first.0 + second.0, first.1 + second.1);
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{opened} events, {bytes_seen} bytes"))
}

fn wrong_mappings() -> Result<String> {
    let event = Event::open(&traced("pattern")?, -1, 0)?;
    let page = page_size();
    let mut refused = 0;
    let mut wrong = |what: &str, offset: u64, len: usize| -> Result<()> {
        refused += 1;
        ensure!(
            Mapping::new(&event, offset, len, true).is_err(),
            "{what} was not refused"
        );
        Ok(())
    };

    wrong("an AUX ring without a data ring", offset(), 4 * page)?;
    wrong("a data ring of 3 pages", 0, 4 * page)?;
    wrong("nothing", 0, 0)?;
    let control = base(&event)?;
    // Each row: a name, `aux_offset` and `aux_size` in the control page, and the offset and pages of the mapping.
    let table = [
        ("an AUX ring at no place", 0, 0, offset(), 4),
        (
            "an AUX ring in the data ring",
            bytes(4),
            bytes(4),
            bytes(4),
            4,
        ),
        ("an AUX ring of 3 pages", offset(), bytes(3), offset(), 3),
        (
            "an AUX ring of another size",
            offset(),
            bytes(4),
            offset(),
            8,
        ),
        (
            "an AUX ring of another place",
            offset(),
            bytes(4),
            bytes(16),
            4,
        ),
        ("an AUX ring at the end of all", !0xfff, bytes(4), !0xfff, 4),
        ("a huge AUX ring", offset(), 1 << 40, offset(), 1 << 28),
        // Half a page.
        (
            "an AUX ring of no page",
            offset(),
            bytes(1) / 2,
            offset(),
            1,
        ),
        (
            "another data ring",
            offset(),
            bytes(4),
            0,
            1 + 2 * DATA_PAGES,
        ),
    ];
    for (what, says_offset, says_size, at, pages) in table {
        set(&control, Field::AuxOffset, says_offset);
        set(&control, Field::AuxSize, says_size);
        wrong(what, at, pages * page)?;
    }
    let aux = aux(&event, &control, 4).context("the right AUX ring after the wrong ones")?;
    for (what, size, pages) in [("larger", 8, 8), ("smaller", 2, 2)] {
        set(&control, Field::AuxSize, bytes(size));
        wrong(
            &format!("a second, {what} AUX ring"),
            offset(),
            pages * page,
        )?;
    }
    set(&control, Field::AuxSize, bytes(4));
    let twice = Mapping::new(&event, offset(), 4 * page, true).context("the same ring twice")?;
    let victim = Victim {
        aux: Some(aux),
        base: Some(control),
        event,
    };
    victim.traces()?;
    drop(victim);
    drop(twice);
    Ok(format!("{refused} refusals"))
}
