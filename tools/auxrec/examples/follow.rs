// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the trace of an event on all CPUs for a second, in this process, without a file: `follow pattern/rate=1024/`.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use auxrec::limits::Limits;
use auxrec::pmu::{arrange, Pmus};
use auxrec::session::{Plan, Session};
use auxrec::target::online_cpus;

fn main() -> anyhow::Result<()> {
    let event = std::env::args()
        .nth(1)
        .context("which event? As in: follow pattern/rate=1024/")?;
    let cpus = online_cpus()?;
    let limits = Limits::read(cpus.len());
    let plan = Plan {
        events: arrange(Pmus::default().events(&event)?, None)?,
        data: 64 << 10,
        aux: 1 << 20,
        watermark: 256 << 10,
        cpus: Some(cpus),
        ..Plan::default()
    };
    let mut session = Session::open(plan, &limits)?;
    let (mut records, mut trace) = (Vec::new(), Vec::new());

    session.enable(true)?;
    for round in 0..=10 {
        if round == 10 {
            session.disable()?;
        } else {
            sleep(Duration::from_millis(100));
        }
        for rings in session.rings_mut() {
            records.clear();
            trace.clear();

            // A decoder would be called here. The records show what was traced, and where the trace has gaps.
            let (reader, area) = rings.data();
            reader.drain(&area, &mut records)?;
            let (reader, area) = rings.aux();
            reader.drain(&area, &mut trace)?;
            println!(
                "{}: {} bytes of trace, {} of records",
                rings.name(),
                trace.len(),
                records.len(),
            );
        }
    }
    Ok(())
}
