// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The steps of the fuzzer's programs.

use std::fmt;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// The maximum number of events of a program at a time.
pub const SLOTS: usize = 5;
/// The number of CPUs that a program uses.
pub const CPUS: usize = 2;
/// The maximum number of child processes of a program at a time.
pub const CHILDREN: usize = 2;

/// A step of a program. It does nothing if its event, mapping or child does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// `perf_event_open()` into a free slot.
    Open(Open),
    /// Closes the descriptor. A mapping keeps the event.
    Close(usize),
    /// Maps the control page and a data ring.
    Map {
        /// The event.
        slot: usize,
        /// Pages behind the control page.
        pages: usize,
    },
    /// Maps the AUX area.
    MapAux(MapAux),
    /// Unmaps the newest mapping of a data ring or of an AUX area.
    Unmap {
        /// The event.
        slot: usize,
        /// Whether to unmap an AUX area.
        aux: bool,
    },
    /// `PERF_EVENT_IOC_ENABLE`.
    Enable(usize),
    /// `PERF_EVENT_IOC_DISABLE`.
    Disable(usize),
    /// Enables and disables the event again and again. It is disabled in the end.
    Toggle {
        /// The event.
        slot: usize,
        /// How often.
        times: u32,
    },
    /// Another thread toggles the event, while this one executes another step.
    Race {
        /// The event.
        slot: usize,
        /// The step of this thread: mappings, redirection, work.
        during: Box<Op>,
    },
    /// `PERF_EVENT_IOC_RESET`.
    Reset(usize),
    /// `PERF_EVENT_IOC_REFRESH`.
    Refresh(usize),
    /// `PERF_EVENT_IOC_PERIOD`.
    Period(usize),
    /// `PERF_EVENT_IOC_SET_FILTER`, with an invalid filter.
    Filter(usize),
    /// `PERF_EVENT_IOC_SET_OUTPUT`.
    Redirect {
        /// The event.
        slot: usize,
        /// The event whose ring it writes to.
        to: usize,
    },
    /// `PERF_EVENT_IOC_PAUSE_OUTPUT`.
    Pause {
        /// The event.
        slot: usize,
        /// Whether to pause its data ring, or to resume it.
        pause: bool,
    },
    /// `read()`.
    Count(usize),
    /// `poll()`.
    Poll(usize),
    /// Reads the available records and trace.
    Follow(usize),
    /// Reads as `Follow` does, and enables the event, which must make trace.
    Trace(usize),
    /// Enables the event, and does not read: the event must fill its area, and perf must disable it.
    Fill(usize),
    /// Sets `aux_tail`, as a hostile reader may.
    Tail {
        /// The event whose ring it is.
        slot: usize,
        /// The new tail.
        value: u64,
    },
    /// Executes branches and system calls, for this number of stretches.
    Work(u32),
    /// Moves to a CPU.
    Move(usize),
    /// Starts a child process.
    Spawn(usize),
    /// Lets the child work.
    Run(usize),
    /// Lets the child execute a program.
    Exec(usize),
    /// Lets the child exit.
    Exit(usize),
    /// Kills the child.
    Kill(usize),
    /// Stops the child.
    Freeze(usize),
    /// Lets the child continue.
    Thaw(usize),
    /// `delete_module()` of a PMU's driver. If no event holds the driver, `finit_module()` loads it again.
    Unload(usize),
    /// Takes a CPU offline, or brings it online.
    Online {
        /// The CPU.
        cpu: usize,
        /// Whether to bring it online.
        online: bool,
    },
}

/// The arguments of `perf_event_open()`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Open {
    /// The slot of the event.
    pub slot: usize,
    /// The number of its PMU; [`None`]: a software event.
    pub unit: Option<usize>,
    /// What it traces.
    pub whom: Whom,
    /// `attr.disabled`.
    pub off: bool,
    /// `attr.inherit`.
    pub inherit: bool,
    /// `attr.enable_on_exec` and `attr.remove_on_exec`, for the event of a child.
    pub on_exec: OnExec,
    /// The slot of its group leader.
    pub leader: Option<usize>,
}

/// What an event traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whom {
    /// A CPU.
    Cpu(usize),
    /// The program itself, on any CPU.
    Me,
    /// The program itself, on a CPU.
    MeOn(usize),
    /// A child.
    Child(usize),
    /// A CPU that no machine has.
    NoCpu,
    /// A process that does not exist.
    NoProcess,
}

/// What happens to an event when its process executes a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExec {
    /// Nothing.
    Nothing,
    /// It is enabled.
    Enable,
    /// It is removed.
    Remove,
}

/// How an AUX area is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MapAux {
    /// The event.
    pub slot: usize,
    /// Pages.
    pub pages: usize,
    /// Whether it is mapped read-only, for overwrite mode.
    pub overwrite: bool,
    /// How `aux_offset` and `aux_size` are set.
    pub at: At,
}

/// Where an AUX area is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// Right behind the data ring.
    Behind,
    /// Some pages further.
    Far,
    /// At the second page of the ring.
    Inside,
    /// At another offset than `aux_offset` says.
    Elsewhere,
    /// With another size than `aux_size` says.
    Longer,
}

impl Op {
    /// Its name, without its arguments.
    pub fn name(&self) -> String {
        let text = self.to_string();
        let name = text.split('"').nth(1);
        name.unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// Makes programs for `units` PMUs, of up to `stretches` stretches: a stretch is a step, or several steps that belong together. If `burst`
/// is not 0, some stretches are an event and up to `burst` calls.
pub fn program(units: usize, stretches: usize, burst: usize) -> BoxedStrategy<Vec<Op>> {
    let stretch = prop_oneof![
        19 => op(units).prop_map(|op| vec![op]),
        1 => traced(units),
    ];
    let stretch = match burst {
        0 => stretch.boxed(),
        burst => prop_oneof![3 => stretch, 1 => calls(units, burst)].boxed(),
    };
    let program = proptest::collection::vec(stretch, 1..=stretches);
    program.prop_map(|stretches| stretches.concat()).boxed()
}

/// An event, followed by calls that take the kernel little time, most of them for this event.
fn calls(units: usize, max: usize) -> impl Strategy<Value = Vec<Op>> {
    traced(units).prop_flat_map(move |begin| {
        let own = begin.iter().find_map(|op| match op {
            Op::Open(open) => Some(open.slot),
            _ => None,
        });
        let calls = proptest::collection::vec(call(own.unwrap_or_default()), 1..=max);
        calls.prop_map(move |calls| [begin.clone(), calls].concat())
    })
}

fn call(own: usize) -> impl Strategy<Value = Op> {
    let slot = || prop_oneof![4 => Just(own), 1 => 0..SLOTS];
    let pages = prop_oneof![4 => Just(8_usize), 1 => Just(3_usize), 1 => Just(16_usize)];
    let area = (slot(), any::<bool>()).prop_map(|(slot, overwrite)| {
        Op::MapAux(MapAux {
            slot,
            pages: 16,
            overwrite,
            at: At::Behind,
        })
    });
    prop_oneof![
        12 => slot().prop_map(Op::Enable),
        12 => slot().prop_map(Op::Disable),
        4 => (slot(), 1..20_u32).prop_map(|(slot, times)| Op::Toggle { slot, times }),
        4 => slot().prop_map(Op::Reset),
        4 => slot().prop_map(Op::Refresh),
        4 => slot().prop_map(Op::Period),
        4 => slot().prop_map(Op::Filter),
        2 => (slot(), any::<bool>()).prop_map(|(slot, pause)| Op::Pause { slot, pause }),
        4 => (slot(), 0..SLOTS).prop_map(|(slot, to)| Op::Redirect { slot, to }),
        8 => slot().prop_map(Op::Count),
        8 => slot().prop_map(Op::Poll),
        2 => slot().prop_map(Op::Follow),
        1 => (slot(), pages).prop_map(|(slot, pages)| Op::Map { slot, pages }),
        1 => area,
        1 => (slot(), any::<bool>()).prop_map(|(slot, aux)| Op::Unmap { slot, aux }),
        1 => Just(Op::Work(1)),
    ]
}

/// An event, from its opening until it makes trace.
fn traced(units: usize) -> impl Strategy<Value = Vec<Op>> {
    let whom = prop_oneof![
        3 => (0..CPUS).prop_map(Whom::Cpu),
        2 => Just(Whom::Me),
    ];
    let last = |slot: usize| {
        prop_oneof![
            2 => Just(Op::Trace(slot)),
            1 => Just(Op::Fill(slot)),
            1 => Just(Op::Enable(slot)),
        ]
    };
    let area = prop_oneof![3 => Just(16_usize), 1 => Just(2_usize), 1 => Just(256_usize)];
    let shape = (area, prop::bool::weighted(0.3));
    let slot = (0..SLOTS).prop_flat_map(move |slot| (Just(slot), last(slot)));
    (slot, 0..units, whom, any::<bool>(), shape).prop_map(
        |((slot, last), unit, whom, off, (pages, overwrite))| {
            vec![
                Op::Open(Open {
                    slot,
                    unit: Some(unit),
                    whom,
                    off,
                    inherit: false,
                    on_exec: OnExec::Nothing,
                    leader: None,
                }),
                Op::Map { slot, pages: 8 },
                Op::MapAux(MapAux {
                    slot,
                    pages,
                    overwrite,
                    at: At::Behind,
                }),
                last,
            ]
        },
    )
}

fn op(units: usize) -> impl Strategy<Value = Op> {
    let slot = || 0..SLOTS;
    let cpu = || 0..CPUS;
    let child = || 0..CHILDREN;
    let whom = prop_oneof![
        12 => cpu().prop_map(Whom::Cpu),
        8 => Just(Whom::Me),
        3 => cpu().prop_map(Whom::MeOn),
        4 => child().prop_map(Whom::Child),
        1 => Just(Whom::NoCpu),
        1 => Just(Whom::NoProcess),
    ];
    let on_exec = prop_oneof![
        3 => Just(OnExec::Nothing),
        1 => Just(OnExec::Enable),
        1 => Just(OnExec::Remove),
    ];
    let unit = prop_oneof![5 => (0..units).prop_map(Some), 1 => Just(None)];
    let leader = prop_oneof![6 => Just(None), 1 => slot().prop_map(Some)];
    let inherit = prop::bool::weighted(0.2);
    let open = (slot(), unit, whom, any::<bool>(), inherit, on_exec, leader).prop_map(
        |(slot, unit, whom, off, inherit, on_exec, leader)| {
            Op::Open(Open {
                slot,
                unit,
                whom,
                off,
                inherit,
                on_exec,
                leader,
            })
        },
    );
    let data = prop_oneof![
        8 => Just(8_usize),
        2 => Just(1_usize),
        1 => Just(0_usize),
        1 => Just(3_usize),
        2 => Just(16_usize),
    ];
    let at = prop_oneof![
        12 => Just(At::Behind),
        2 => Just(At::Far),
        1 => Just(At::Inside),
        1 => Just(At::Elsewhere),
        1 => Just(At::Longer),
    ];
    let area = prop_oneof![
        1 => Just(1_usize),
        2 => Just(2_usize),
        1 => Just(3_usize),
        4 => Just(4_usize),
        6 => Just(16_usize),
        2 => Just(64_usize),
    ];
    let aux =
        (slot(), area, prop::bool::weighted(0.25), at).prop_map(|(slot, pages, overwrite, at)| {
            Op::MapAux(MapAux {
                slot,
                pages,
                overwrite,
                at,
            })
        });
    let unmap = (slot(), any::<bool>()).prop_map(|(slot, aux)| Op::Unmap { slot, aux });
    let redirect = (slot(), slot()).prop_map(|(slot, to)| Op::Redirect { slot, to });
    let during = prop_oneof![
        3 => unmap.clone(),
        2 => aux.clone(),
        1 => redirect.clone(),
        1 => slot().prop_map(Op::Close),
        1 => slot().prop_map(Op::Period),
        1 => slot().prop_map(Op::Follow),
        1 => (1..4_u32).prop_map(Op::Work),
    ];
    let race = (slot(), during).prop_map(|(slot, during)| Op::Race {
        slot,
        during: Box::new(during),
    });
    let tail = prop_oneof![
        Just(u64::MAX),
        Just(1_u64 << 63),
        Just(0),
        Just(4096),
        any::<u64>()
    ];
    prop_oneof![
        24 => open,
        6 => slot().prop_map(Op::Close),
        18 => (slot(), data).prop_map(|(slot, pages)| Op::Map { slot, pages }),
        18 => aux,
        8 => unmap,
        5 => race,
        14 => slot().prop_map(Op::Enable),
        8 => slot().prop_map(Op::Disable),
        3 => (slot(), 1..20_u32).prop_map(|(slot, times)| Op::Toggle { slot, times }),
        6 => prop_oneof![
            slot().prop_map(Op::Reset),
            slot().prop_map(Op::Refresh),
            slot().prop_map(Op::Period),
            slot().prop_map(Op::Filter),
            (slot(), any::<bool>()).prop_map(|(slot, pause)| Op::Pause { slot, pause }),
        ],
        6 => redirect,
        6 => slot().prop_map(Op::Count),
        6 => slot().prop_map(Op::Poll),
        10 => slot().prop_map(Op::Follow),
        3 => slot().prop_map(Op::Trace),
        1 => slot().prop_map(Op::Fill),
        1 => (slot(), tail).prop_map(|(slot, value)| Op::Tail { slot, value }),
        8 => (1..8_u32).prop_map(Op::Work),
        3 => cpu().prop_map(Op::Move),
        3 => child().prop_map(Op::Spawn),
        3 => child().prop_map(Op::Run),
        1 => child().prop_map(Op::Exec),
        1 => child().prop_map(Op::Exit),
        1 => child().prop_map(Op::Kill),
        1 => child().prop_map(Op::Freeze),
        1 => child().prop_map(Op::Thaw),
        1 => (0..units).prop_map(Op::Unload),
        1 => (1..CPUS, prop::bool::weighted(0.6)).prop_map(|(cpu, online)| Op::Online { cpu, online }),
    ]
}
