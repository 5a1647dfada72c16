// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The progress of a recording: a display for a terminal, lines of JSON for programs.
//!
//! The thread that drains a ring stores a few numbers in the ring's [`Gauge`]. A display thread reads them now and then, so a slow
//! terminal does not delay the rings. The recorder does not change the mode of the terminal: there is nothing to restore when it is
//! killed. A reader of lines that stops reading misses lines; the recorder counts them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::message::{say, Outlet, Unwritten, PATIENCE};
use crate::sys;
use auxview::size::bytes;

/// Maximum number of JSON lines that wait for their reader. Later lines have newer data, so the number is small.
const LINES: usize = 4;

/// Where the progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Live {
    /// No display.
    #[default]
    Off,
    /// The terminal, if standard error is one.
    Terminal,
    /// Standard output, as a line of JSON each second for a program.
    Json,
}

/// The state of a ring while it is recorded. All orders are relaxed: the numbers are independent of each other.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    bytes: AtomicU64,
    fill: AtomicU64,
    age: AtomicU64,
    lost: AtomicU64,
}

impl Gauge {
    /// Adds the result of a pass: `new` bytes of trace since the last one, the fill of the area, the age of the newest AUX record in ns,
    /// and how often trace was truncated so far.
    pub fn found(&self, new: u64, fill: u64, age: Option<u64>, lost: u64) {
        self.bytes.fetch_add(new, Ordering::Relaxed);
        self.fill.fetch_max(fill, Ordering::Relaxed);
        if let Some(age) = age {
            self.age.fetch_max(age, Ordering::Relaxed);
        }
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// Returns what was added since the last call, and the maxima since then.
    fn look(&self, before: &mut u64, period: Duration) -> Look {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let new = bytes - *before;
        *before = bytes;
        let ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        Look {
            bytes,
            rate: new.saturating_mul(1_000_000_000) / ns.max(1),
            fill: self.fill.swap(0, Ordering::Relaxed),
            age: self.age.swap(0, Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// What is shown of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    /// Bytes of trace until now.
    bytes: u64,
    /// Bytes per second.
    rate: u64,
    /// Maximum fill of the area.
    fill: u64,
    /// Maximum delay of the recorder: the age of the newest AUX record, ns.
    age: u64,
    /// How often trace was truncated.
    lost: u64,
}

impl Look {
    fn line(&self) -> String {
        let lost = match self.lost {
            0 => String::new(),
            n => format!(", cut off {n} times"),
        };
        format!(
            "{:>3}.{} MB/s, woken in {} us, {}{lost}",
            self.rate / 1_000_000,
            self.rate / 100_000 % 10,
            self.age / 1000,
            bytes(self.bytes),
        )
    }

    fn json(&self, name: &str) -> serde_json::Value {
        json!({
            "name": name,
            "bytes": self.bytes,
            "bytes_per_s": self.rate,
            "fill": self.fill,
            "wakeup_ns": self.age,
            "truncated": self.lost,
        })
    }
}

/// The display thread. Dropping this ends the thread, and clears its lines on the terminal.
pub(crate) struct View {
    stop: Option<mpsc::Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<()>,
}

impl View {
    /// Starts the display of rings with these names, each with an area of `size` bytes; [`None`] with [`Live::Off`].
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        live: Live,
        rings: Vec<(String, Arc<Gauge>)>,
        size: u64,
    ) -> io::Result<Option<Self>> {
        let (period, out) = match live {
            Live::Off => return Ok(None),
            Live::Terminal => (Duration::from_millis(250), None),
            Live::Json => {
                // Not `io::stdout()`: a thread that waits for the reader would hold its lock.
                let copy = io::stdout().as_fd().try_clone_to_owned()?;
                let out = Outlet::start(File::from(copy), LINES)?;
                (Duration::from_secs(1), Some(out))
            }
        };
        Self::run(period, rings, size, out).map(Some)
    }

    /// Writes JSON to `out`, or to the terminal if there is none.
    fn run(
        period: Duration,
        rings: Vec<(String, Arc<Gauge>)>,
        size: u64,
        out: Option<Outlet>,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        thread::Builder::new().spawn(move || {
            let _end: mpsc::Sender<()> = end;
            let mut show = Show::new(&rings, size, out);
            let mut before = vec![0; rings.len()];
            let mut at = sys::now();
            while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                let now = sys::now();
                let since = Duration::from_nanos(now - std::mem::replace(&mut at, now));
                let looks = rings.iter().zip(&mut before);
                let looks = looks.map(|((_, gauge), before)| gauge.look(before, since));
                if !show.show(&rings, &looks.collect::<Vec<_>>(), now) {
                    break;
                }
            }
            show.end();
        })?;
        Ok(Self {
            stop: Some(stop),
            ended,
        })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.stop = None;
        // The thread waits for each of its two readers no longer than this. A terminal that is stopped
        // keeps it for ever: it is abandoned then.
        let _ = self.ended.recv_timeout(3 * PATIENCE);
    }
}

enum Show {
    Bars(MultiProgress, Vec<ProgressBar>),
    Lines(Outlet),
}

impl Show {
    fn new(rings: &[(String, Arc<Gauge>)], size: u64, out: Option<Outlet>) -> Self {
        if let Some(out) = out {
            return Self::Lines(out);
        }
        // Draws nothing where standard error is no terminal.
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix:12} [{bar:20}] {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |(name, _): &(String, Arc<Gauge>)| {
            let bar = all.add(ProgressBar::new(size).with_style(style.clone()));
            bar.set_prefix(name.clone());
            bar
        };
        let bars = rings.iter().map(bar).collect();
        Self::Bars(all, bars)
    }

    /// Shows the state of the rings. Returns false when the reader has ended.
    fn show(&mut self, rings: &[(String, Arc<Gauge>)], looks: &[Look], now: u64) -> bool {
        match self {
            Self::Bars(_, bars) => {
                for (bar, look) in bars.iter().zip(looks) {
                    bar.set_position(look.fill);
                    bar.set_message(look.line());
                }
                true
            }
            Self::Lines(out) => {
                let rings = rings.iter().zip(looks);
                let rings: Vec<_> = rings.map(|((name, _), look)| look.json(name)).collect();
                let missed = out.refused();
                let line = json!({ "time_ns": now, "missed_lines": missed, "rings": rings });
                out.put(format!("{line}\n")) || !out.failed()
            }
        }
    }

    fn end(self) {
        match self {
            Self::Bars(all, _) => {
                let _ = all.clear();
            }
            Self::Lines(out) => {
                if let Some(text) = complaint(&out.close(PATIENCE)) {
                    say(text);
                }
            }
        }
    }
}

/// The message about lines of JSON that were not written. If the reader has ended, there is none.
fn complaint(unwritten: &Unwritten) -> Option<String> {
    let why = match &unwritten.error {
        Some(e) if e.kind() == io::ErrorKind::BrokenPipe => return None,
        Some(e) => e.to_string(),
        None => "their reader is too slow, or has stopped reading".to_owned(),
    };
    let texts = unwritten.texts;
    (texts != 0).then(|| format!("warning: lines of --live json were not written ({texts}): {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::message::tests::Pipe;

    #[test]
    fn what_came_since_the_last_look() {
        let gauge = Gauge::default();
        let mut before = 0;
        gauge.found(3_000_000, 3_000_000, Some(5_000), 0);
        gauge.found(1_000_000, 1_000_000, None, 2);
        let look = gauge.look(&mut before, Duration::from_millis(250));
        let seen = Look {
            bytes: 4_000_000,
            rate: 16_000_000,
            fill: 3_000_000,
            age: 5_000,
            lost: 2,
        };
        assert_eq!(look, seen);
        assert!(look.line().starts_with(" 16.0 MB/s, woken in 5 us, "));
        assert!(look.line().ends_with(", cut off 2 times"));
        // No trace came since then, and no time has passed.
        let look = gauge.look(&mut before, Duration::ZERO);
        assert_eq!(
            (look.bytes, look.rate, look.fill, look.age),
            (4_000_000, 0, 0, 0)
        );
        assert_eq!(look.json("CPU 1")["truncated"], 2);
    }

    /// A recording ends even if the reader of its lines reads nothing.
    #[test]
    fn a_reader_that_stops_does_not_hold_the_recorder() {
        let (pipe, reader) = Pipe::new();
        let rings = vec![("CPU 1".to_owned(), Arc::default())];
        let out = Outlet::start(pipe, 2).unwrap();
        let view = View::run(Duration::from_millis(1), rings, 0, Some(out)).unwrap();
        reader.begun.recv().unwrap();
        let (end, ended) = mpsc::channel();
        let recorder = thread::spawn(move || {
            drop(view);
            end.send(()).unwrap();
        });
        let long = Duration::from_secs(60);
        assert_eq!(ended.recv_timeout(long), Ok(()), "the recorder hangs");
        recorder.join().unwrap();
        drop(reader.go);
    }

    /// The next line that is written has the number of missing lines.
    #[test]
    fn lines_that_are_missing() {
        let (pipe, reader) = Pipe::new();
        let mut show = Show::Lines(Outlet::start(pipe, 1).unwrap());
        let line = |show: &mut Show| assert!(show.show(&[], &[], 7));
        let missed = |text: String| {
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            line["missed_lines"].as_u64().unwrap()
        };
        line(&mut show);
        assert_eq!(missed(reader.begun.recv().unwrap()), 0);
        // One waits, and three are refused.
        (0..4).for_each(|_| line(&mut show));
        reader.go.send(Ok(())).unwrap();
        assert_eq!(missed(reader.begun.recv().unwrap()), 0);
        line(&mut show);
        (0..2).for_each(|_| reader.go.send(Ok(())).unwrap());
        assert_eq!(missed(reader.begun.recv().unwrap()), 3);
        show.end();
    }

    #[test]
    fn what_is_said_of_missing_lines() {
        let pipe = io::ErrorKind::BrokenPipe;
        let full = io::ErrorKind::StorageFull;
        for (texts, error, says) in [
            (0, None, None),
            (3, Some(pipe), None),
            (
                2,
                None,
                Some("lines of --live json were not written (2): their reader is too slow"),
            ),
            (
                1,
                Some(full),
                Some("lines of --live json were not written (1): no storage space"),
            ),
        ] {
            let error = error.map(io::Error::from);
            let found = complaint(&Unwritten { texts, error });
            assert_eq!(found.is_some(), says.is_some(), "{found:?}");
            let found = found.unwrap_or_default();
            assert!(found.contains(says.unwrap_or_default()), "{found}");
        }
    }
}
