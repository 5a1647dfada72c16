// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `soft_pebs`: an event that samples while its group's leader traces. Other cases, which decode with perf, check the content of its
//! records.

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::{Attr, Flags, Read};

use super::{grows, traced, Victim};
use crate::attack::{software, CPU_CLOCK};
use crate::events::probe::Probe;
use crate::module;

/// `soft_pebs/instructions,aux-output/u`.
fn sampling() -> Result<Attr> {
    Ok(Attr {
        kind: module::pmu_type("soft_pebs")?,
        config: 0xc0,
        sample_period: 1000,
        read_format: Read::FORMAT,
        flags: Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV | Flags::AUX_OUTPUT,
        ..Attr::default()
    })
}

/// Attributes that the driver must refuse, with their errors.
pub(super) fn refused() -> Result<String> {
    const EBUSY: i32 = 16;
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;

    let leader = Event::open(&traced()?, 0, -1).context("cannot open the leader")?;
    let other = Event::open(&software(CPU_CLOCK, 1_000_000), 0, -1)?;
    let attr = sampling()?;
    let with = |flags| Attr {
        flags,
        ..attr.clone()
    };
    let of = |config, sample_period| Attr {
        config,
        sample_period,
        ..attr.clone()
    };
    let (flags, config, period) = (attr.flags, attr.config, attr.sample_period);
    let leads = Some(&leader);
    let cases = [
        ("no period", of(config, 0), leads, EINVAL),
        ("a frequency", with(flags | Flags::FREQ), leads, EINVAL),
        ("no event's number", of(0, period), leads, EINVAL),
        (
            "a term that is none",
            of(config | 1 << 8, period),
            leads,
            EINVAL,
        ),
        (
            "the kernel too",
            with(flags - Flags::EXCLUDE_KERNEL),
            leads,
            EOPNOTSUPP,
        ),
        (
            "the kernel only",
            with(flags | Flags::EXCLUDE_USER),
            leads,
            EOPNOTSUPP,
        ),
        (
            "records in its own ring",
            with(flags - Flags::AUX_OUTPUT),
            leads,
            EINVAL,
        ),
        ("no leader", attr.clone(), None, EINVAL),
        (
            "a leader that does not trace",
            attr.clone(),
            Some(&other),
            EINVAL,
        ),
    ];
    for (what, attr, leader, errno) in &cases {
        fails(what, attr, *leader, *errno)?;
    }

    // A leader has one counter for such an event. It is free again when the event is closed.
    let first = Event::open_in(&attr, 0, -1, leads).context("cannot open the event")?;
    fails("a second one", &attr, leads, EBUSY)?;
    drop(first);
    let again = Event::open_in(&attr, 0, -1, leads).context("cannot open it again")?;
    drop(again);
    Ok(format!("{} cases", cases.len() + 1))
}

fn fails(what: &str, attr: &Attr, leader: Option<&Event>, errno: i32) -> Result<()> {
    match Event::open_in(attr, 0, -1, leader) {
        Ok(_) => bail!("{what}: not refused"),
        Err(error) => {
            ensure!(
                error.raw_os_error() == Some(errno),
                "{what}: refused with {error}"
            );
            Ok(())
        }
    }
}

/// The event must count the same instructions as its leader, with any period. It must end with its leader.
pub(super) fn counts() -> Result<String> {
    let child = Victim::new()?;
    let mut probe = Probe::open(&traced()?, child.id()?, -1, 64, false)?;
    let sampling = Event::open_in(&sampling()?, child.id()?, -1, Some(&probe.event))
        .context("cannot open the event")?;
    let counted =
        || -> Result<u64> { Ok(sampling.count()?.context("the event does not count")?.value) };
    let mut from = 0;

    for period in [1000, 1, 7, u64::from(u32::MAX), 3] {
        sampling.set_period(period)?;
        probe.event.enable()?;
        grows(&mut probe, from)?;
        sampling.set_period(period * 2)?;
        from = probe.head();
        grows(&mut probe, from)?;
        probe.event.disable()?;
        from = probe.head();
        ensure!(
            counted()? == probe.generated()?,
            "with a period of {period}: {} instructions, and the leader counts {}",
            counted()?,
            probe.generated()?
        );
    }
    let all = counted()?;
    ensure!(all > 0, "nothing was counted");

    // When the leader is closed, perf removes the link to it and stops the event, and a read returns no count any more.
    probe.event.enable()?;
    grows(&mut probe, from)?;
    drop(probe);
    ensure!(sampling.count()?.is_none(), "it counts without a leader");
    drop(sampling);
    child.ends()?;
    Ok(format!("{all} instructions"))
}
