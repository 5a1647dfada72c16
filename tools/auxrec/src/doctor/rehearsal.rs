// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens and maps what a recording would, and traces nothing.

use std::io;
use std::sync::atomic::Ordering;

use perfdata::{Attr, Flags};
use rustix::io::Errno;

use crate::limits::Limits;
use crate::pmu::{Pmu, Pmus};
use crate::record::{rehearse, Options};
use crate::sys::{page_size, Event, Field, Mapping};
use crate::target::{online_cpus, Target};

/// Whether a PMU has an AUX area. sysfs does not show it; only mapping one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Area {
    /// It has one.
    Some,
    /// It has none.
    None,
    /// No event of it could be opened and mapped.
    Unknown {
        /// The recorder's error message.
        why: String,
        /// Whether this process was denied access. Otherwise the event itself was refused.
        denied: bool,
    },
}

/// Finds whether the PMU has an AUX area.
pub(super) fn area(pmu: &Pmu) -> Area {
    if Pmus::is_without_aux(&pmu.name) {
        return Area::None;
    }
    let mut last = None;
    for way in Way::one_ring(pmu, &online_cpus().unwrap_or_default()) {
        let text = way.event(&pmu.name);
        match Pmus::default().event(&text) {
            Ok(event) => match map(&event.attr(), way.cpu()) {
                Ok(true) => return Area::Some,
                Ok(false) => return Area::None,
                Err(error) => {
                    let denied = is_denial(&error);
                    let known = matches!(last, Some(Area::Unknown { denied: true, .. }));
                    // If there are several errors, a denial says more than a refusal of the terms.
                    if denied || !known {
                        let why = Limits::read(1).explain_open(&error, &text, way.whom());
                        let why = why.to_string();
                        last = Some(Area::Unknown { why, denied });
                    }
                }
            },
            Err(error) => {
                let (why, denied) = (error.to_string(), false);
                last = last.or(Some(Area::Unknown { why, denied }));
            }
        }
    }
    last.unwrap_or(Area::None)
}

/// Whether the kernel, or a filter before it, denied this process the call.
fn is_denial(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let denials = [
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOSYS,
        Errno::BUSY,
        Errno::MFILE,
    ];
    errno.is_some_and(|errno| denials.contains(&errno))
}

/// Maps the smallest AUX area of a disabled event. Returns false if the PMU has none.
fn map(attr: &Attr, cpu: Option<u32>) -> io::Result<bool> {
    let attr = Attr {
        flags: attr.flags | Flags::DISABLED,
        // PMUs that only count refuse events that sample.
        sample_period: if attr.sample_period == 1 {
            0
        } else {
            attr.sample_period
        },
        ..attr.clone()
    };
    let (pid, cpu) = match cpu {
        Some(cpu) => (-1, i32::try_from(cpu).unwrap_or(-1)),
        None => (0, -1),
    };
    let event = Event::open(&attr, pid, cpu)?;
    let page = page_size();
    let at = u64::try_from(2 * page).map_err(io::Error::other)?;
    let base = Mapping::new(&event, 0, 2 * page, true)?;
    base.store(Field::AuxOffset, at, Ordering::Relaxed);
    base.store(Field::AuxSize, at, Ordering::Relaxed);
    match Mapping::new(&event, at, 2 * page, true) {
        Ok(_) => Ok(true),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP) => Ok(false),
            // The driver has an AUX area, but requires another size.
            Some(Errno::NOMEM) => Ok(true),
            _ => Err(error),
        },
    }
}

/// A way to record a PMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Whether user space only is traced.
    user: bool,
    whom: Whom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// A command, on a ring for each CPU.
    Command,
    /// A command, on one ring.
    Alone,
    /// All CPUs.
    All,
    /// This CPU.
    Cpu(u32),
}

impl Way {
    /// All ways with a ring for each CPU.
    pub const ALL: [Self; 4] = [
        Self::new(true, Whom::Command),
        Self::new(false, Whom::Command),
        Self::new(true, Whom::All),
        Self::new(false, Whom::All),
    ];

    const fn new(user: bool, whom: Whom) -> Self {
        Self { user, whom }
    }

    /// The ways with one ring: a command, and a CPU that the PMU is on.
    pub(super) fn one_ring(pmu: &Pmu, online: &[u32]) -> Vec<Self> {
        let cpu = online.iter().copied().find(|cpu| pmu.is_on(*cpu));
        let whoms = [Some(Whom::Alone), cpu.map(Whom::Cpu)];
        let ways = whoms.into_iter().flatten();
        ways.flat_map(|whom| [true, false].map(|user| Self::new(user, whom)))
            .collect()
    }

    fn event(self, pmu: &str) -> String {
        format!("{pmu}//{}", if self.user { "u" } else { "" })
    }

    fn cpu(self) -> Option<u32> {
        match self.whom {
            Whom::Cpu(cpu) => Some(cpu),
            Whom::Command | Whom::Alone | Whom::All => None,
        }
    }

    fn whom(self) -> &'static str {
        match self.whom {
            Whom::Command | Whom::Alone => "a command",
            Whom::All | Whom::Cpu(_) => "all of a CPU",
        }
    }

    /// The arguments of `auxrec record`.
    #[must_use]
    pub fn arguments(self, pmu: &str) -> String {
        let event = self.event(pmu);
        match self.whom {
            Whom::Command => format!("-e {event} -- COMMAND"),
            Whom::Alone => format!("-e {event} --per-thread -- COMMAND"),
            Whom::All => format!("-e {event} -a"),
            Whom::Cpu(cpu) => format!("-e {event} -C {cpu}"),
        }
    }

    /// Rehearses a recording with the default sizes.
    #[must_use]
    pub fn rehearse(self, pmu: &str) -> Rehearsal {
        let command = ["true".into()];
        let options = Options {
            events: vec![self.event(pmu)],
            target: match self.whom {
                Whom::Command | Whom::Alone => Target::Command,
                Whom::All => Target::All,
                Whom::Cpu(cpu) => Target::System(vec![cpu]),
            },
            per_thread: self.whom == Whom::Alone,
            // No file beside the recording.
            output: "-".into(),
            command: match self.cpu() {
                None if self.whom != Whom::All => command.into(),
                _ => Vec::new(),
            },
            ..Options::default()
        };
        Rehearsal {
            way: self,
            error: rehearse(&options).err().map(|error| error.to_string()),
        }
    }
}

/// A way to record a PMU, and whether it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsal {
    /// The way.
    pub way: Way,
    /// The error of the recorder; [`None`]: it works.
    pub error: Option<String>,
}
