// SPDX-License-Identifier: GPL-2.0

//! What a test asks of the bench.

use crate::{
    aux::Mode,
    event::Exclude,
    format::WORDS, //
};

/// What user space requests: the event, and the ring that it maps.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// `config`, `config1`, `config2` and `config3` of the attr.
    pub config: [u64; WORDS],
    /// `sample_period` of the attr, or `sample_freq`.
    pub period: u64,
    /// `freq` of the attr.
    pub frequency: bool,
    /// `exclude_*` of the attr.
    pub exclude: Exclude,
    /// Whether the event was made by `fork()` from one that is inherited.
    pub inherited: bool,
    /// Pages of the AUX ring: a power of two.
    pub pages: usize,
    /// `aux_watermark` of the attr, in bytes; 0 for half the ring.
    pub watermark: u64,
    /// How the ring is mapped.
    pub mode: Mode,
    /// Address filters that the PMU is described with.
    pub filters: u32,
    /// The event's CPU, which must be online; [`None`] for the one that the test is on.
    pub cpu: Option<u32>,
}

/// An event of a CPU with default attributes, and a ring of 4 pages in non-overwrite mode.
impl Default for Setup {
    fn default() -> Self {
        Self {
            config: [0; WORDS],
            period: 0,
            frequency: false,
            exclude: Exclude::default(),
            inherited: false,
            pages: 4,
            watermark: 0,
            mode: Mode::Normal,
            filters: 16,
            cpu: None,
        }
    }
}

/// What perf does to an event in NMI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nmi {
    /// The overflow of a sibling throttles the group: the event is stopped.
    Stop,
    /// The overflow of a sibling pauses the event.
    Pause,
    /// The overflow of a sibling resumes the event.
    Resume,
    /// The unit raises its interrupt.
    Interrupt,
}
