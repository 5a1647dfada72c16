// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The trigger in the records of a pair of rings: its hits, and the threads whose trace it has paused.
//!
//! A hit pauses the trace of the thread (or of the CPU, if CPUs are recorded). In the kernel, an event in the group of the tracer, with
//! `aux_action` pause, does that. Only an event in the same group that overflows in the same thread can resume the trace. That event is a
//! clock. The recorder enables it after the snapshot, and disables it when each paused thread has had a sample of it.
//!
//! Two samples report a hit: of the event that reports hits, and of the event that pauses. The kernel writes them in either order, and the
//! recorder may read the first one alone. So the first one of a thread, whichever it is, asks for the snapshot.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::pmu::Action;
use crate::session::Plan;

/// Stands for a paused CPU, and for threads whose records were lost. No thread has this id.
const UNKNOWN: u32 = 0;

/// The hits and the paused threads of a pair of rings.
#[derive(Debug)]
pub(crate) struct Hits {
    /// Number of the first event of the trigger.
    first: usize,
    /// The action of this event and of those after it. The event that reports the hits has none.
    actions: Vec<Option<Action>>,
    /// Whether threads are recorded.
    threads: bool,
    /// Whether there is a hit without a snapshot.
    pending: bool,
    /// Threads of which a hit was read, but not the pause that follows.
    unpaused: BTreeSet<u32>,
    /// Paused threads, and whether the hit was read that has paused them.
    paused: BTreeMap<u32, bool>,
    /// Whether the clock is enabled.
    resuming: bool,
}

impl Hits {
    /// [`None`] if there is no trigger.
    pub fn new(plan: &Plan) -> Option<Self> {
        let first = plan.trigger?;
        let events = plan.events.iter().skip(first);
        Some(Self {
            first,
            actions: events.map(|(event, _)| event.action).collect(),
            threads: plan.threads.is_some(),
            pending: false,
            unpaused: BTreeSet::new(),
            paused: BTreeMap::new(),
            resuming: false,
        })
    }

    /// Whether hits pause the trace.
    fn pauses(&self) -> bool {
        self.actions.contains(&Some(Action::Pause))
    }

    /// Processes a sample of the event with this number.
    pub fn sample(&mut self, number: usize, body: &[u8]) {
        let number = number.checked_sub(self.first);
        let Some(action) = number.and_then(|number| self.actions.get(number)) else {
            return;
        };
        // Behind the id and the address.
        let thread = body.get(20..).and_then(<[u8]>::first_chunk);
        let thread = thread.map(|bytes| u32::from_le_bytes(*bytes));
        let thread = thread.filter(|_| self.threads).unwrap_or(UNKNOWN);
        match action {
            Some(Action::Pause) => {
                if self.unpaused.remove(&thread) {
                    self.paused.insert(thread, true);
                } else if let Entry::Vacant(place) = self.paused.entry(thread) {
                    place.insert(false);
                    self.pending = true;
                }
            }
            Some(_) => drop(self.paused.remove(&thread)),
            None => match self.paused.get_mut(&thread) {
                Some(is_read @ false) => *is_read = true,
                Some(true) => self.pending = true,
                None => {
                    self.pending = true;
                    if self.pauses() {
                        self.unpaused.insert(thread);
                    }
                }
            },
        }
    }

    /// Records were lost. They may have reported a pause, and that trace must be resumed, too.
    pub fn lost(&mut self) {
        self.unpaused.clear();
        if self.pauses() {
            self.paused.insert(UNKNOWN, true);
        }
    }

    /// Whether there are hits without a snapshot.
    pub fn are_pending(&self) -> bool {
        self.pending
    }

    /// A snapshot of all hits that were read is about to be taken.
    pub fn answer(&mut self) {
        self.pending = false;
    }

    /// The snapshot is taken. For that the recorder has disabled the events, and then read the records. A pause that follows a hit and was
    /// not read does not come any more: its event was off.
    pub fn answered(&mut self) {
        if !self.pending {
            self.unpaused.clear();
        }
    }

    /// Forgets threads that have ended.
    pub fn look(&mut self) {
        let is_there =
            |thread: u32| thread == UNKNOWN || Path::new("/proc").join(thread.to_string()).exists();
        self.paused.retain(|thread, _| is_there(*thread));
        self.unpaused.retain(|thread| is_there(*thread));
    }

    /// Whether to enable or disable the clock now; [`None`]: neither. The trace stays paused while a hit waits for its snapshot.
    pub fn switch(&mut self) -> Option<bool> {
        let on = !self.pending && !self.paused.is_empty();
        (std::mem::replace(&mut self.resuming, on) != on).then_some(on)
    }

    /// Whether the event of this number is the clock.
    pub fn is_clock(&self, number: usize) -> bool {
        let number = number.checked_sub(self.first);
        let action = number.and_then(|number| self.actions.get(number));
        action == Some(&Some(Action::Resume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIT: usize = 5;
    const PAUSE: usize = 6;
    const RESUME: usize = 7;

    fn hits(threads: bool) -> Hits {
        Hits {
            first: HIT,
            actions: vec![None, Some(Action::Pause), Some(Action::Resume)],
            threads,
            pending: false,
            unpaused: BTreeSet::new(),
            paused: BTreeMap::new(),
            resuming: false,
        }
    }

    /// Samples of these events in these threads.
    fn samples(hits: &mut Hits, all: &[(usize, u32)]) {
        for (number, thread) in all {
            let mut body = vec![0; 40];
            body.splice(20..24, thread.to_le_bytes());
            hits.sample(*number, &body);
        }
    }

    /// Reads these samples one by one, as [`record`](crate::record) does. Returns after which of them a snapshot was taken, and after
    /// which the clock was enabled.
    fn one_by_one(hits: &mut Hits, all: &[(usize, u32)]) -> (Vec<usize>, Vec<usize>) {
        let (mut snapshots, mut enabled) = (Vec::new(), Vec::new());
        for (at, sample) in all.iter().enumerate() {
            samples(hits, &[*sample]);
            if hits.are_pending() {
                hits.answer();
                snapshots.push(at);
            }
            if hits.switch() == Some(true) {
                enabled.push(at);
            }
        }
        (snapshots, enabled)
    }

    /// Each hit has one snapshot, and the clock is enabled after it, whichever sample of a hit is read first.
    #[test]
    fn samples_of_a_hit_in_any_order() {
        type Row<'a> = (&'a [(usize, u32)], &'a [usize], &'a [usize]);
        let table: &[Row] = &[
            (&[(HIT, 1), (PAUSE, 1)], &[0], &[1]),
            (&[(PAUSE, 1), (HIT, 1)], &[0], &[0]),
            (
                &[(PAUSE, 1), (HIT, 1), (RESUME, 1), (PAUSE, 1), (HIT, 1)],
                &[0, 3],
                &[0, 3],
            ),
            (
                &[(HIT, 1), (PAUSE, 1), (RESUME, 1), (PAUSE, 1), (HIT, 1)],
                &[0, 3],
                &[1, 3],
            ),
            // The hit was not reported.
            (
                &[(PAUSE, 1), (RESUME, 1), (HIT, 1), (PAUSE, 1)],
                &[0, 2],
                &[0, 3],
            ),
            // Hits of two threads, interleaved.
            (&[(PAUSE, 1), (HIT, 2), (HIT, 1), (PAUSE, 2)], &[0, 1], &[0]),
            // A thread that is paused has another hit.
            (&[(PAUSE, 1), (HIT, 1), (PAUSE, 1), (HIT, 1)], &[0, 3], &[0]),
        ];
        for (all, snapshots, enabled) in table {
            let seen = one_by_one(&mut hits(true), all);
            assert_eq!(seen, (snapshots.to_vec(), enabled.to_vec()), "{all:?}");
        }
    }

    /// A hit while the events are off has no pause. The pause of the next hit may be read before that hit.
    #[test]
    fn a_pause_that_does_not_come_is_not_waited_for() {
        let mut hits = hits(true);
        samples(&mut hits, &[(HIT, 1)]);
        hits.answer();
        hits.answered();
        samples(&mut hits, &[(PAUSE, 1)]);
        assert!(hits.are_pending());
        // A hit that is read while the snapshot is taken: its pause may still come.
        hits.answer();
        samples(&mut hits, &[(HIT, 1), (RESUME, 1), (HIT, 2)]);
        hits.answered();
        samples(&mut hits, &[(PAUSE, 2)]);
        hits.answer();
        hits.answered();
        assert!(!hits.are_pending());
        assert_eq!(hits.switch(), Some(true));
    }

    #[test]
    fn each_thread_is_resumed_after_its_snapshot() {
        let mut hits = hits(true);
        samples(&mut hits, &[(HIT, 1), (PAUSE, 1), (HIT - 1, 1)]);
        assert!(hits.are_pending() && hits.switch().is_none());
        hits.answer();
        assert_eq!(hits.switch(), Some(true));
        assert!(!hits.are_pending() && hits.switch().is_none());
        // Another hit comes before the first thread has run.
        samples(&mut hits, &[(HIT, 2), (PAUSE, 2)]);
        assert_eq!(hits.switch(), Some(false));
        hits.answer();
        assert_eq!(hits.switch(), Some(true));
        samples(&mut hits, &[(RESUME, 2)]);
        assert_eq!(hits.switch(), None);
        samples(&mut hits, &[(RESUME, 1)]);
        assert_eq!(hits.switch(), Some(false));
    }

    /// A hit while the event is off does not pause it.
    #[test]
    fn what_is_not_paused_is_not_resumed() {
        let mut hits = hits(true);
        samples(&mut hits, &[(HIT, 1)]);
        hits.answer();
        assert_eq!(hits.switch(), None);
    }

    #[test]
    fn any_thread_resumes_a_cpu() {
        let mut hits = hits(false);
        samples(&mut hits, &[(HIT, 1), (PAUSE, 1)]);
        hits.answer();
        assert_eq!(hits.switch(), Some(true));
        samples(&mut hits, &[(RESUME, 9)]);
        assert_eq!(hits.switch(), Some(false));
    }

    #[test]
    fn lost_records_and_ended_threads_leave_nothing_paused() {
        let mut hits = hits(true);
        samples(&mut hits, &[(HIT, u32::MAX), (PAUSE, u32::MAX)]);
        hits.answer();
        hits.look();
        assert_eq!(hits.switch(), None);
        hits.lost();
        assert_eq!(hits.switch(), Some(true));
        hits.look();
        samples(&mut hits, &[(RESUME, 1)]);
        assert_eq!(hits.switch(), None);
        // Without pauses there is nothing to resume.
        hits.actions.truncate(1);
        hits.paused.clear();
        hits.lost();
        assert_eq!(hits.switch(), Some(false));
    }
}
