// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts losses, for each ring and cause.
//!
//! The recorder passes the records of a ring as it reads them, and `check` and `report` pass those of a file. So all three report the same
//! losses.

use std::fmt::Write as _;

use perfdata::{Aux, AuxFlags};

/// The counters of one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss {
    /// Number of AUX records.
    pub records: u64,
    /// Bytes that AUX records report.
    pub reported: u64,
    /// Bytes of trace that were read.
    pub read: u64,
    /// AUX records that were truncated because the AUX area was full.
    pub truncated: u64,
    /// AUX records with gaps in them.
    pub partial: u64,
    /// AUX records that collided with others.
    pub collision: u64,
    /// How often the recorder found the ring full without a record that reports it. If `perf_aux_output_begin()` finds no space, the kernel
    /// disables the event and writes no record.
    pub full: u64,
    /// Records that the kernel dropped because the data ring was full.
    pub records_lost: u64,
    /// Places where an AUX record does not begin where the one before it ended.
    pub jumps: u64,
    /// Bytes in these gaps: the driver skipped them, or their record was lost.
    pub jumped: u64,
    /// Untraced time in ns because the AUX area was full: from each truncation until the ring was drained, if the time of that is in the
    /// file.
    pub untraced: u64,
    /// Untraced time in ns because of CPU hotplug. For a CPU that went offline, it lasts until its events are opened again. For a CPU that
    /// was offline when the recording began, it is the time that the CPU was online.
    pub offline: u64,
    /// Events of tracefs that were recorded.
    pub events: u64,
    /// Events of tracefs that the kernel overwrote or dropped.
    pub events_lost: u64,
    next: Option<u64>,
    /// Whether the first AUX record may begin at any offset.
    anywhere: bool,
    cut_at: Option<u64>,
}

impl Loss {
    /// Counters of a ring whose first records are not in the file.
    #[must_use]
    pub fn begun_before() -> Self {
        Self {
            anywhere: true,
            ..Self::default()
        }
    }

    /// Counts an AUX record that was written at `time`.
    pub fn aux(&mut self, aux: &Aux, time: Option<u64>) {
        self.records += 1;
        self.reported = self.reported.saturating_add(aux.size);
        let count = |flag| u64::from(aux.flags.contains(flag));
        self.truncated += count(AuxFlags::TRUNCATED);
        self.partial += count(AuxFlags::PARTIAL);
        self.collision += count(AuxFlags::COLLISION);
        if aux.flags.contains(AuxFlags::TRUNCATED) && self.cut_at.is_none() {
            self.cut_at = time;
        }
        // In overwrite mode, bytes between the records are no loss.
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

    /// Counts `size` bytes that were drained from the ring. `time` is when the ring was drained, by the clock of the records, if known. A
    /// full area has space again then.
    pub fn drained(&mut self, size: u64, time: Option<u64>) {
        self.read = self.read.saturating_add(size);
        if let (Some(cut), Some(time)) = (self.cut_at.take(), time) {
            self.untraced = self.untraced.saturating_add(time.saturating_sub(cut));
        }
    }

    /// Subtracts `size` bytes of padding from the bytes that were read.
    pub(crate) fn padded(&mut self, size: u64) {
        self.read = self.read.saturating_sub(size);
    }

    /// Counts that the recorder found the ring full.
    pub fn found_full(&mut self) {
        // A truncation since the last drain has already reported it.
        if self.cut_at.is_none() {
            self.full += 1;
        }
    }

    /// Counts records that were lost.
    pub fn lost(&mut self, records: u64) {
        self.records_lost = self.records_lost.saturating_add(records);
    }

    /// How often the AUX area was full, or may have been.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        (self.truncated + self.full).saturating_add(self.records_lost)
    }

    /// Bytes of trace that no AUX record reports, at the end of a recording that is not in overwrite mode.
    #[must_use]
    pub fn unreported(&self) -> u64 {
        self.read.saturating_sub(self.reported)
    }

    /// Whether trace was lost, or may have been. Bytes between AUX records are not lost, because they were read, too. Either the driver has
    /// skipped them as padding, or their record was lost, which [`records_lost`](Self::records_lost) counts.
    #[must_use]
    pub fn any(&self) -> bool {
        let gaps = self.partial + self.collision;
        self.cuts().saturating_add(gaps) != 0 || self.offline != 0 || self.events_lost != 0
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_add(other.records),
            reported: self.reported.saturating_add(other.reported),
            read: self.read.saturating_add(other.read),
            truncated: self.truncated.saturating_add(other.truncated),
            partial: self.partial.saturating_add(other.partial),
            collision: self.collision.saturating_add(other.collision),
            full: self.full.saturating_add(other.full),
            records_lost: self.records_lost.saturating_add(other.records_lost),
            jumps: self.jumps.saturating_add(other.jumps),
            jumped: self.jumped.saturating_add(other.jumped),
            untraced: self.untraced.saturating_add(other.untraced),
            offline: self.offline.saturating_add(other.offline),
            events: self.events.saturating_add(other.events),
            events_lost: self.events_lost.saturating_add(other.events_lost),
            next: None,
            anywhere: false,
            cut_at: None,
        }
    }

    /// Describes the losses as the end of a sentence; empty without losses.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut out = String::new();
        let mut add = |n: u64, text: &str| {
            if n != 0 {
                let _ = write!(out, "{}{n} {text}", if out.is_empty() { "" } else { ", " });
            }
        };
        add(self.truncated, "truncations");
        add(self.untraced.div_ceil(1000), "us without trace");
        add(self.full, "times found full without an AUX record");
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
        assert_eq!((loss.jumps, loss.jumped, loss.untraced), (1, 64, 7000));
        assert_eq!(
            loss.describe(),
            "2 truncations, 7 us without trace, 1 times found full without an AUX record, 1 records with gaps, \
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

    /// A driver skips bytes up to an aligned offset: perf advances the head, and no record reports them.
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
