// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a recording goes, while it goes: for people on a terminal, for programs as lines of JSON.
//!
//! Who drains a ring leaves a few numbers in its [`Gauge`]; a thread of its own looks at them now and then. So whoever looks, and however
//! slow the terminal is, nothing is kept from the rings. The terminal stays in the mode in which it is: there is nothing to restore,
//! whatever ends the recorder.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::size::bytes;
use crate::sys;

/// Who is told how it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Live {
    /// Nobody.
    #[default]
    Off,
    /// Who sits at the terminal that standard error is, if it is one.
    Terminal,
    /// A program, by a line of JSON for each second, on standard output.
    Json,
}

/// What is known of a ring while it is recorded. All orders are relaxed: each number stands for itself.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    bytes: AtomicU64,
    fill: AtomicU64,
    age: AtomicU64,
    lost: AtomicU64,
}

impl Gauge {
    /// So much is new in the area, which has so much in it, the newest AUX record being so old (ns), and so often was trace cut off
    /// until now.
    pub fn found(&self, new: u64, fill: u64, age: Option<u64>, lost: u64) {
        self.bytes.fetch_add(new, Ordering::Relaxed);
        self.fill.fetch_max(fill, Ordering::Relaxed);
        if let Some(age) = age {
            self.age.fetch_max(age, Ordering::Relaxed);
        }
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// What came since the last look, or was the most since then.
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
    /// Bytes a second.
    rate: u64,
    /// The most that was found in the area.
    fill: u64,
    /// How long the recorder took to come, at most: the age of the newest AUX record, ns.
    age: u64,
    /// How often trace was cut off.
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

/// The thread that looks. Dropped, it ends, and takes its lines off the terminal.
pub(crate) struct View {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl View {
    /// For rings of these names, each with an area of `size` bytes.
    pub fn start(live: Live, rings: Vec<(String, Arc<Gauge>)>, size: u64) -> Self {
        let (stop, stopped) = mpsc::channel();
        let period = match live {
            Live::Off => None,
            Live::Terminal => Some(Duration::from_millis(250)),
            Live::Json => Some(Duration::from_secs(1)),
        };
        let thread = period.map(|period| {
            thread::spawn(move || {
                let mut show = Show::new(live, &rings, size);
                let mut before = vec![0; rings.len()];
                let mut at = sys::now();
                while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let now = sys::now();
                    let since = Duration::from_nanos(now - std::mem::replace(&mut at, now));
                    let looks = rings.iter().zip(&mut before);
                    let looks = looks.map(|((_, gauge), before)| gauge.look(before, since));
                    if !show.show(&rings, &looks.collect::<Vec<_>>(), now) {
                        return;
                    }
                }
                show.clear();
            })
        });
        Self {
            stop: Some(stop),
            thread,
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Show {
    Bars(MultiProgress, Vec<ProgressBar>),
    Lines,
}

impl Show {
    fn new(live: Live, rings: &[(String, Arc<Gauge>)], size: u64) -> Self {
        if live == Live::Json {
            return Self::Lines;
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

    /// Whether anybody is left to look.
    fn show(&mut self, rings: &[(String, Arc<Gauge>)], looks: &[Look], now: u64) -> bool {
        match self {
            Self::Bars(_, bars) => {
                for (bar, look) in bars.iter().zip(looks) {
                    bar.set_position(look.fill);
                    bar.set_message(look.line());
                }
                true
            }
            Self::Lines => {
                let rings = rings.iter().zip(looks);
                let rings: Vec<_> = rings.map(|((name, _), look)| look.json(name)).collect();
                let line = json!({ "time_ns": now, "rings": rings });
                writeln!(std::io::stdout().lock(), "{line}").is_ok()
            }
        }
    }

    fn clear(&mut self) {
        if let Self::Bars(all, _) = self {
            let _ = all.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Nothing came since, and no time went by.
        let look = gauge.look(&mut before, Duration::ZERO);
        assert_eq!(
            (look.bytes, look.rate, look.fill, look.age),
            (4_000_000, 0, 0, 0)
        );
        assert_eq!(look.json("CPU 1")["truncated"], 2);
    }
}
