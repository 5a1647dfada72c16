// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cost of tracing a guest with the trace unit in QEMU.
//!
//! Three times of the same work in a guest are compared: without the device, with an idle device, and while the unit traces the CPU that
//! works. Each is the shortest of several times.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::figures::Figure;
use crate::tools;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// The work on CPU 1: a loop in the shell, one in a program, and work of the kernel.
const WORK: &str = "#!/bin/sh
i=0; while [ $i -lt $1 ]; do i=$((i+1)); done
head -c ${1}000 /dev/zero | md5sum
n=0; while [ $n -lt $1 ]; do ls -l /sys/class >/dev/null; n=$((n+1500)); done
";

/// How often the work is timed in each case.
const TIMES: u32 = 4;

/// The results.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures {
    /// The shortest time without the device, in hundredths of a second. `idle` is that with an idle device, `traced` that while it traces.
    plain: u64,
    idle: u64,
    traced: u64,
    interrupts: u64,
    bytes: u64,
    /// Bytes of trace and number of instructions of programs. `kernel` has those of the kernel.
    user: (u64, u64),
    kernel: (u64, u64),
}

/// Measures the times and the amounts of trace.
///
/// # Errors
///
/// When a guest cannot be started, or does not print its results.
pub fn run(cache: &Cache) -> Result<Figures> {
    let kernel = Kernel::prepare(cache, Kind::Stock)?;
    let dir = cache.build().join("bench/tracing");
    let timed = |name: &str| {
        format!(
            "for n in $(seq {TIMES}); do from=$(awk '{{ print $1 * 100 }}' /proc/uptime)
            taskset 2 work 30000 >/dev/null
            echo work {name} $(awk -v from=$from '{{ print $1 * 100 - from }}' /proc/uptime); done\n"
        )
    };
    let plain = guest(cache, &kernel)?.run(cache, &dir.join("plain"), &timed("plain"), |_| {})?;

    let record = "taskset 1 auxrec record -C 1 -m 1M,16M -o /dev/null";
    let raised = "awk '/trace_unit/ { sum += $2 + $3 } END { print \"interrupts\", sum }' /proc/interrupts\n";
    let command = format!(
        "auxload\n{}{record} -e trace_unit// -- sh -c '{}'\n{raised}",
        timed("idle"),
        timed("traced").replace('\'', "'\\''")
    );
    let guest_with = guest(cache, &kernel)?.devices(Devices::TraceUnit);
    let device = guest_with.run(cache, &dir.join("device"), &command, |_| {})?;

    let bits = |name: &str, event: &str| {
        let dir = dir.join(name);
        // The log is next to the guest's folder, as a guest removes the old content of its folder.
        let prefix = dir.clone();
        let command = format!("auxload\n{record} -e {event} -- taskset 2 work 3000 >/dev/null\n");
        let logged = guest(cache, &kernel)?
            .devices(Devices::TraceUnit)
            .logged(&prefix);
        let outcome = logged.run(cache, &dir, &command, |_| {})?;
        let log = prefix.with_extension("cpu1.log");
        let count = lines(&log)?;
        let _ = std::fs::remove_file(&log);
        Ok::<_, Error>((recorded(&outcome.said), count))
    };
    let (user, user_count) = bits("user", "trace_unit//u")?;
    let (kernel, kernel_count) = bits("kernel", "trace_unit//k")?;
    let said = || {
        Some(Figures {
            plain: least(&plain.said, "work plain ")?,
            idle: least(&device.said, "work idle ")?,
            traced: least(&device.said, "work traced ")?,
            interrupts: crate::bench::number(&device.said, "interrupts ")?,
            bytes: recorded(&device.said)?,
            user: (user?, user_count),
            kernel: (kernel?, kernel_count),
        })
    };
    said().ok_or_else(|| {
        Error::Other(format!(
            "a guest did not say what it measured; see said.log in the folders of {}",
            dir.display()
        ))
    })
}

fn guest<'a>(cache: &Cache, kernel: &'a Kernel) -> Result<Guest<'a>> {
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let mut guest = Guest::new(kernel, &built.files)?
        .script("work", WORK)
        .timeout(Duration::from_secs(900));
    for (name, path) in &tools::build(cache)? {
        guest = guest.program(name, path)?;
    }
    Ok(guest)
}

fn lines(path: &Path) -> Result<u64> {
    let file = File::open(path).on("open", path)?;
    let count = BufReader::new(file).split(b'\n').count();
    Ok(u64::try_from(count).unwrap_or(u64::MAX))
}

/// The smallest number in the lines that begin with `name`.
fn least(said: &str, name: &str) -> Option<u64> {
    let numbers = said.lines().filter_map(|line| line.strip_prefix(name));
    numbers
        .filter_map(|number| number.trim().parse().ok())
        .min()
}

/// The bytes of trace that auxrec reports.
fn recorded(said: &str) -> Option<u64> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("auxrec: "))?;
    line.split_once(" bytes of trace")?.0.parse().ok()
}

impl Figures {
    /// The figures, with their targets.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let bits = |name: &str, (bytes, count): (u64, u64)| {
            let name = format!("tracing.bits.{name}");
            let hundredths = bytes.saturating_mul(800).div_ceil(count.max(1));
            Figure::hundredths(name, hundredths, "bits per instruction")
        };
        let per_mib = self.interrupts.saturating_mul(100 << 20) / self.bytes.max(1);
        vec![
            Figure::ratio("tracing.idle", self.idle, self.plain).at_most_hundredths(105),
            Figure::ratio("tracing.traced", self.traced, self.idle).at_most_hundredths(300),
            bits("user", self.user),
            bits("kernel", self.kernel),
            Figure::hundredths("tracing.interrupts", per_mib, "per MiB"),
        ]
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let seconds = |time: u64| format!("{}.{:02} s", time / 100, time % 100);
        vec![
            format!(
                "trace unit: {} without it, {} with it idle, {} traced",
                seconds(self.plain),
                seconds(self.idle),
                seconds(self.traced)
            ),
            format!(
                "trace unit: {} bytes, {} interrupts",
                self.bytes, self.interrupts
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_guests_say_is_understood() {
        let said = "work idle 220\nwork traced 600\nwork idle 210\n\
                    auxrec: 506143 bytes of trace in 2 AUX records\n";
        assert_eq!(least(said, "work idle "), Some(210));
        assert_eq!(least(said, "work plain "), None);
        assert_eq!(recorded(said), Some(506_143));
        assert_eq!(recorded("auxrec: no trace\n"), None);
    }

    #[test]
    fn figures_have_their_targets() {
        let figures = Figures {
            plain: 200,
            idle: 210,
            traced: 631,
            interrupts: 3,
            bytes: 2 << 20,
            user: (100, 1000),
            kernel: (150, 1000),
        };
        let missed: Vec<_> = figures.figures().iter().map(Figure::is_missed).collect();
        assert_eq!(missed, [false, true, false, false, false]);
    }
}
