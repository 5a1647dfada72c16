// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was lost, for each ring and cause.
//!
//! Fed with the records of a ring in their order, by the recorder as it reads them and by `check` and `report` from a file,
//! so that all three say the same.

use std::fmt::Write as _;

use perfdata::{Aux, AuxFlags};

/// What is known of one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss {
    /// AUX records.
    pub records: u64,
    /// Bytes that they tell of.
    pub told: u64,
    /// Bytes of trace that were read.
    pub read: u64,
    /// AUX records that were cut off, for want of room.
    pub truncated: u64,
    /// AUX records with gaps in them.
    pub partial: u64,
    /// AUX records that collided with others.
    pub collision: u64,
    /// How often the ring was found full though no record says that it was: the kernel reports a failed start nowhere.
    pub full: u64,
    /// Records that found no room in the data ring.
    pub records_lost: u64,
    /// Places where an AUX record does not begin where the one before it ended.
    pub jumps: u64,
    /// Bytes in these places: skipped by the driver, or of records that were lost.
    pub jumped: u64,
    /// For how long nothing was traced for want of room, ns: from each truncation until the ring was drained, if the file says when
    /// that was.
    pub dark: u64,
    /// For how long nothing was traced as its CPU was offline, ns: until its events were opened again; or while it was online, if it
    /// was not when the recording began.
    pub offline: u64,
    /// Events of tracefs that were recorded.
    pub events: u64,
    /// Events of tracefs that the kernel overwrote, or did not take.
    pub events_lost: u64,
    next: Option<u64>,
    /// The first record may begin anywhere.
    anywhere: bool,
    cut_at: Option<u64>,
}

impl Loss {
    /// Of a ring whose beginning is not in the file.
    #[must_use]
    pub fn begun_before() -> Self {
        Self {
            anywhere: true,
            ..Self::default()
        }
    }

    /// An AUX record, written at `time`.
    pub fn aux(&mut self, aux: &Aux, time: Option<u64>) {
        self.records += 1;
        self.told = self.told.saturating_add(aux.size);
        let count = |flag| u64::from(aux.flags.contains(flag));
        self.truncated += count(AuxFlags::TRUNCATED);
        self.partial += count(AuxFlags::PARTIAL);
        self.collision += count(AuxFlags::COLLISION);
        if aux.flags.contains(AuxFlags::TRUNCATED) && self.cut_at.is_none() {
            self.cut_at = time;
        }
        // Where an area is written over and over, positions between the records are no loss.
        if aux.flags.contains(AuxFlags::OVERWRITE) {
            return;
        }
        let first = if self.anywhere { aux.offset } else { 0 };
        let gap = aux.offset.wrapping_sub(self.next.unwrap_or(first));
        if gap != 0 {
            self.jumps += 1;
            self.jumped = self.jumped.saturating_add(gap);
        }
        self.next = Some(aux.offset.wrapping_add(aux.size));
    }

    /// The ring was drained of `size` bytes at `time`, if that is known by the clock of the records, and tracing enabled again.
    pub fn drained(&mut self, size: u64, time: Option<u64>) {
        self.read = self.read.saturating_add(size);
        if let (Some(cut), Some(time)) = (self.cut_at.take(), time) {
            self.dark = self.dark.saturating_add(time.saturating_sub(cut));
        }
    }

    /// So many of the bytes that were read are no trace.
    pub(crate) fn padded(&mut self, size: u64) {
        self.read = self.read.saturating_sub(size);
    }

    /// The ring was found full.
    pub fn found_full(&mut self) {
        // A truncation that was not drained yet has said so already.
        if self.cut_at.is_none() {
            self.full += 1;
        }
    }

    /// Records were lost.
    pub fn lost(&mut self, records: u64) {
        self.records_lost = self.records_lost.saturating_add(records);
    }

    /// How often something said that the area had no room, or may have.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        (self.truncated + self.full).saturating_add(self.records_lost)
    }

    /// Bytes of trace that no AUX record tells of, at the end of a recording that is not of the overwriting kind.
    #[must_use]
    pub fn untold(&self) -> u64 {
        self.read.saturating_sub(self.told)
    }

    /// Whether trace was lost, or may have been. What lies between records is not: it was read as all else. The driver has
    /// skipped it, as padding; or a record of it was lost, and that counts.
    #[must_use]
    pub fn any(&self) -> bool {
        let gaps = self.partial + self.collision;
        self.cuts().saturating_add(gaps) != 0 || self.offline != 0 || self.events_lost != 0
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_add(other.records),
            told: self.told.saturating_add(other.told),
            read: self.read.saturating_add(other.read),
            truncated: self.truncated.saturating_add(other.truncated),
            partial: self.partial.saturating_add(other.partial),
            collision: self.collision.saturating_add(other.collision),
            full: self.full.saturating_add(other.full),
            records_lost: self.records_lost.saturating_add(other.records_lost),
            jumps: self.jumps.saturating_add(other.jumps),
            jumped: self.jumped.saturating_add(other.jumped),
            dark: self.dark.saturating_add(other.dark),
            offline: self.offline.saturating_add(other.offline),
            events: self.events.saturating_add(other.events),
            events_lost: self.events_lost.saturating_add(other.events_lost),
            next: None,
            anywhere: false,
            cut_at: None,
        }
    }

    /// What was lost, as the end of a sentence; empty if nothing was.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut out = String::new();
        let mut add = |n: u64, text: &str| {
            if n != 0 {
                let _ = write!(out, "{}{n} {text}", if out.is_empty() { "" } else { ", " });
            }
        };
        add(self.truncated, "truncations");
        add(self.dark.div_ceil(1000), "us without trace");
        add(self.full, "times full without a record");
        add(self.partial, "records with gaps");
        add(self.collision, "collisions");
        add(self.records_lost, "records lost from the data ring");
        add(self.jumped, "bytes between AUX records");
        add(
            self.offline.div_ceil(1000),
            "us without trace, as the CPU was or had been offline",
        );
        add(self.events_lost, "events of tracefs lost");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aux(offset: u64, size: u64, flags: AuxFlags) -> Aux {
        Aux {
            offset,
            size,
            flags,
        }
    }

    #[test]
    fn counts_by_cause() {
        let mut loss = Loss::default();
        let none = AuxFlags::empty();
        loss.aux(&aux(0, 64, none), Some(10));
        loss.drained(64, Some(20));
        assert!(!loss.any());
        loss.aux(
            &aux(64, 64, AuxFlags::TRUNCATED | AuxFlags::PARTIAL),
            Some(2000),
        );
        loss.found_full();
        loss.aux(&aux(128, 0, AuxFlags::TRUNCATED), Some(2500));
        loss.drained(64, Some(9000));
        loss.aux(&aux(192, 64, none), Some(9500));
        loss.lost(2);
        loss.found_full();
        assert_eq!((loss.truncated, loss.partial, loss.full), (2, 1, 1));
        assert_eq!((loss.jumps, loss.jumped, loss.dark), (1, 64, 7000));
        assert_eq!(
            loss.describe(),
            "2 truncations, 7 us without trace, 1 times full without a record, 1 records with gaps, \
             2 records lost from the data ring, 64 bytes between AUX records"
        );
    }

    #[test]
    fn a_later_part_begins_anywhere() {
        let none = AuxFlags::empty();
        for (mut loss, jumps) in [(Loss::begun_before(), 0), (Loss::default(), 1)] {
            loss.aux(&aux(4096, 64, none), None);
            loss.aux(&aux(4160, 64, none), None);
            assert_eq!(loss.jumps, jumps);
        }
    }

    #[test]
    fn an_overwriting_area_has_no_gaps() {
        let mut loss = Loss::default();
        loss.aux(&aux(4096, 64, AuxFlags::OVERWRITE), None);
        loss.aux(&aux(64, 64, AuxFlags::OVERWRITE), None);
        assert!(!loss.any());
    }

    /// A driver pads up to where it can begin: perf moves the head on, and no record tells of it.
    #[test]
    fn padding_is_no_loss() {
        let none = AuxFlags::empty();
        let mut loss = Loss::default();
        loss.aux(&aux(0, 192, none), None);
        loss.aux(&aux(256, 192, none), None);
        assert_eq!((loss.jumps, loss.jumped), (1, 64));
        assert!(!loss.any());
        loss.lost(1);
        assert!(loss.any());
    }
}
