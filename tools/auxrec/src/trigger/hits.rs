// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The trigger in the records of a pair of rings: its hits, and the threads whose trace it has paused.
//!
//! A hit pauses the trace of the thread (or of the CPU, if CPUs are recorded). In the kernel, an event in the group of the tracer, with
//! `aux_action` pause, does that. Only an event in the same group that overflows in the same thread can resume the trace. That event is a
//! clock. The recorder enables it after the snapshot, and disables it when each paused thread has had a sample of it.

use std::collections::BTreeSet;
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
    count: u64,
    /// Number of hits that have a snapshot.
    answered: u64,
    paused: BTreeSet<u32>,
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
            count: 0,
            answered: 0,
            paused: BTreeSet::new(),
            resuming: false,
        })
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
            Some(Action::Pause) => drop(self.paused.insert(thread)),
            Some(_) => drop(self.paused.remove(&thread)),
            None => self.count += 1,
        }
    }

    /// Records were lost. They may have reported a pause, and that trace must be resumed, too.
    pub fn lost(&mut self) {
        if self.actions.contains(&Some(Action::Pause)) {
            self.paused.insert(UNKNOWN);
        }
    }

    /// Whether there are hits without a snapshot.
    pub fn are_pending(&self) -> bool {
        self.count != self.answered
    }

    /// Marks all hits as having a snapshot.
    pub fn answer(&mut self) {
        self.answered = self.count;
    }

    /// Forgets threads that have ended.
    pub fn look(&mut self) {
        self.paused.retain(|thread| {
            *thread == UNKNOWN || Path::new("/proc").join(thread.to_string()).exists()
        });
    }

    /// Whether to enable or disable the clock now; [`None`]: neither. The trace stays paused while a hit waits for its snapshot.
    pub fn switch(&mut self) -> Option<bool> {
        let on = !self.are_pending() && !self.paused.is_empty();
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
            count: 0,
            answered: 0,
            paused: BTreeSet::new(),
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
