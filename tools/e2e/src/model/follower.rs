// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks whether AUX records are possible if the scheduler or the reader acts at unknown times.

use anyhow::{ensure, Context, Result};
use perfdata::{Aux, AuxFlags};

use super::{say, Setup, Sink, BARRIER};

/// Checks records, without knowing when the reader reads and when the event is scheduled.
#[derive(Debug, Clone)]
pub struct Follower {
    setup: Setup,
    /// Whether a transaction may end at any time, because the event belongs to a task.
    switches: bool,
    head: u64,
    woken: u64,
}

impl Follower {
    /// A follower of all records of a ring, beginning with the first.
    pub fn new(setup: Setup, switches: bool) -> Self {
        Self {
            setup,
            switches,
            head: 0,
            woken: 0,
        }
    }

    /// Checks all records, in their order. The last one may come from a disable.
    ///
    /// # Errors
    /// Reports the first impossible record, and the reason.
    pub fn follow(&mut self, records: &[Aux]) -> Result<()> {
        for (n, record) in records.iter().enumerate() {
            let last = n + 1 == records.len();
            self.record(record, last)
                .with_context(|| format!("record {n}: {}", say(record)))?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Aux, last: bool) -> Result<()> {
        let setup = self.setup;
        let truncated = record.flags.contains(AuxFlags::TRUNCATED);
        let cut = AuxFlags::TRUNCATED | AuxFlags::PARTIAL;
        let end = record.offset + if setup.overwrite { 0 } else { record.size };
        let begin = end.checked_sub(record.size).context("it is too long")?;

        ensure!(
            record.flags - cut == setup.flags(),
            "flags that nothing has asked for"
        );
        // If the bounce memory may be overwritten or get full, the unit may generate more than is kept.
        let laps = setup.fills();
        ensure!(
            laps || !record.flags.contains(AuxFlags::PARTIAL),
            "PARTIAL where the bounce memory cannot have been full"
        );
        ensure!(
            begin == self.head.next_multiple_of(setup.align)
                || (setup.overwrite && begin == self.head),
            "it must begin at {:#x}",
            self.head
        );
        let trace = if setup.overwrite && setup.align > 1 {
            0
        } else {
            record.size
        };
        ensure!(
            trace % setup.packet == 0
                || setup.sink == Sink::Flat && trace % setup.packet == BARRIER % setup.packet,
            "no whole packets of {}",
            setup.packet
        );
        ensure!(
            record.size > 0 || record.flags.intersects(cut),
            "it is empty"
        );
        self.head = end;
        if setup.overwrite {
            ensure!(!truncated, "TRUNCATED where the oldest is overwritten");
            return Ok(());
        }

        ensure!(record.size < setup.ring, "longer than the ring");
        let wakeup = self.woken + setup.watermark();
        // The first position at which the unit can raise an interrupt for the wakeup point.
        let point = wakeup
            .max(begin + 1)
            .next_multiple_of(if setup.sink == Sink::Direct {
                setup.region
            } else {
                1
            });
        ensure!(
            end < point + setup.tick() + BARRIER,
            "more than a tick after the wakeup point {wakeup:#x}: the reader was not woken"
        );
        let early = match setup.sink {
            // If little space is left, the interrupt is as early as the first end of a region.
            Sink::Direct => (begin + 1).next_multiple_of(setup.region).min(wakeup),
            Sink::Sg => wakeup.min(begin + setup.interrupt()),
            Sink::Flat => wakeup.saturating_sub(BARRIER),
        };
        ensure!(
            end >= early || truncated || self.switches || last,
            "before the wakeup point {wakeup:#x}, and nothing has stopped the event"
        );
        if end - self.woken >= setup.watermark() {
            self.woken = end - end % setup.watermark();
        }
        Ok(())
    }
}
