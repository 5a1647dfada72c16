// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Garbage in all fields of the control page that a program can write.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use auxrec::sys::{Event, Field};
use perfdata::Attr;

use crate::attack::{base, beside, get, random, set, sleep, traced, Victim};
use crate::events::probe::{area, bytes};
use crate::module;

/// A reader writes all kinds of wrong values to `aux_tail`.
pub fn garbage_tail() -> Result<String> {
    let mut bytes_seen = 0;
    // Pages, overwrite mode, and sink.
    let rings = [
        (2, false, 0),
        (16, false, 0),
        (1, false, 1),
        (2, false, 2),
        (4, true, 0),
    ];
    for (pages, overwrite, config1) in rings {
        let attr = Attr {
            config1,
            ..traced("pattern")?
        };
        let mut victim = Victim {
            aux: None,
            base: None,
            event: Event::open(&attr, -1, 0)?,
        };
        let control = base(&victim.event)?;
        victim.aux = Some(area(&victim.event, &control, pages, overwrite)?);
        let size = bytes(pages);
        let head = |add: u64| get(&control, Field::AuxHead).wrapping_add(add);
        let lie = |n: u64| {
            let tail = match n % 12 {
                0 => 0,
                1 => head(1),
                2 => head(u64::MAX),
                3 => head(size),
                4 => head(size.wrapping_neg()),
                5 => head(size.wrapping_neg().wrapping_sub(1)),
                6 => head(size.wrapping_neg().wrapping_add(1)),
                7 => u64::MAX,
                8 => 1 << 63,
                9 => head(0) % size,
                10 => random(n),
                _ => head(0),
            };
            set(&control, Field::AuxTail, tail);
        };
        let end = Instant::now() + Duration::from_millis(300);
        let mut last = 0;
        beside(lie, || {
            while Instant::now() < end {
                victim.event.enable()?;
                sleep(1);
                let now = get(&control, Field::AuxHead);
                ensure!(now >= last, "the head went back from {last} to {now}");
                ensure!(
                    overwrite || now - last <= size * 64,
                    "the head made a leap from {last} to {now}"
                );
                last = now;
                victim.event.disable()?;
            }
            Ok(())
        })?;
        // Now the tail is correct again.
        set(&control, Field::AuxTail, last);
        victim.base = Some(control);
        victim.traces().context("after the lies")?;
        bytes_seen += last;
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{bytes_seen} bytes meanwhile"))
}

/// Writes garbage to all other writable fields of the control page.
pub fn garbage_page() -> Result<String> {
    let victim = Victim::on_cpu(0, 4)?;
    let control = victim.base.as_ref().context("no control page")?;
    let fields = [
        Field::AuxOffset,
        Field::AuxSize,
        Field::DataHead,
        Field::DataTail,
    ];
    let before = module::counter("pattern", "commits")?;
    let scribble = |n: u64| {
        for (field, k) in fields.iter().zip(1..) {
            set(control, *field, random(n.wrapping_mul(k)));
        }
    };
    beside(scribble, || -> Result<()> {
        for _ in 0..200 {
            victim.event.enable()?;
            sleep(1);
            victim.event.disable()?;
            victim.release();
        }
        Ok(())
    })?;
    let commits = module::counter("pattern", "commits")? - before;
    ensure!(
        commits > 100,
        "only {commits} transactions were committed meanwhile"
    );

    // The kernel has its own copy of the head. It only writes this field.
    let head = victim.head();
    set(control, Field::AuxHead, random(head));
    victim.event.enable()?;
    sleep(5);
    victim.event.disable()?;
    let now = victim.head();
    ensure!(
        now >= head && now - head <= bytes(4),
        "the kernel's head went from {head} to {now}"
    );
    Ok(format!("{commits} commits meanwhile"))
}
