// SPDX-License-Identifier: GPL-2.0

//! `pattern`: a trace unit in software.
//!
//! A timer is the unit's clock. At every tick the unit writes packets through a table of regions,
//! as a unit in hardware would, and raises its interrupt where the table asks for one. The event
//! selects the memory: the AUX area, or one of two kinds of bounce memory. `pattern_codec` defines
//! the packets. A reader can verify every byte, and compute the exact number of lost bytes. An
//! event can also ask for a fault. So `pattern` is the ground truth for a recorder, and the test of
//! the framework. `Documentation/abi.md` has the terms.
//!
//! - [`config`]: configuration of an event.
//! - [`unit`]: generates packets, and follows the table.
//! - [`sink`]: the memory that the unit writes to, and the copy from there to the AUX area.
//! - [`stream`]: state that lives as long as the event.
//! - [`fault`]: faults that an event can ask for.
//! - [`broken`]: defects of the driver, which only a build for tests has.
//!
//! ```text
//! # insmod rust_perf.ko; insmod pattern.ko
//! $ auxrec record -e pattern/rate=4096,packet=2/ -m 16,64 -o trace.data -- sleep 1
//! $ auxrec check trace.data
//! ```
//!
//! The event's counter is the number of bytes generated, whether they found space or not.

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use perf::{
    aux,
    pmu::{
        Capabilities,
        Counting,
        Description, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

mod broken;
mod config;
mod fault;
mod sink;
mod stream;
mod tests;
mod unit;

use config::{
    Config,
    Plan, //
};
use fault::Fault;
use sink::Sink;
use stream::Stream;
use unit::Unit;

module! {
    type: Module,
    name: "pattern",
    authors: ["The auxpmu authors"],
    description: "A perf PMU whose trace is generated in software and can be verified",
    license: "GPL",
    params: {
        alias: u8 {
            default: 0,
            description: "Register as another PMU, for programs that go by names: 1 intel_pt, 2 intel_bts",
        },
        offset: u8 {
            default: 0,
            description: "In overwrite mode, publish the head as an offset in the AUX area, as hardware intel_pt does: 1",
        },
    },
}

/// The name to register under.
fn name() -> Result<&'static CStr> {
    match module_parameters::alias.value() {
        0 => Ok(c"pattern"),
        1 => Ok(c"intel_pt"),
        2 => Ok(c"intel_bts"),
        _ => Err(EINVAL),
    }
}

struct Module {
    _pmu: aux::Registration<Pattern>,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let description = Description::new(name()?)
            .capabilities(
                Capabilities::EXCLUSIVE
                    .and(Capabilities::ITRACE)
                    .and(Capabilities::NO_EXCLUDE),
            )
            .events(perf::attributes! {
                slow: "rate=0x40",
                fast: "rate=0x4000,packet=0x10",
                direct: "sink=0",
                sg: "sink=1",
                flat: "sink=2",
            })
            .caps(perf::attributes! {
                format_version: "1",
                packet_unit: "64",
                sinks: "direct sg flat",
            });
        let driver = Pattern {
            streams: Atomic::new(0),
            is_offset: module_parameters::offset.value() != 0,
        };

        Ok(Self {
            _pmu: aux::Registration::new(description, driver)?,
        })
    }
}

struct Pattern {
    /// Number of streams so far.
    streams: Atomic<u32>,
    /// The module parameter `offset`: in overwrite mode, the head is an offset in the AUX area.
    is_offset: bool,
}

/// State of an AUX area.
///
/// The unit's state is here and not in [`AuxPmu::Trace`], which is moved at each start and stop.
struct Ring {
    unit: Unit,
    sink: Sink,
    /// Whether the padding found space. If not, the transaction has no space for packets either.
    has_space: bool,
}

#[vtable]
impl Pmu for Pattern {
    type Config = Config;
    type Event = Stream;
    type Count = Unit;

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Stream> {
        let plan = Plan::new(attr.config())?;
        if plan.is_long() && !attr.is_perfmon_capable() {
            return Err(EACCES);
        }
        let number = self.streams.fetch_add(1, Relaxed).wrapping_add(1).max(1);

        Ok(Stream::new(number, plan))
    }

    fn count_start(&self, counting: &mut Counting<'_, Self>) -> Result<Unit> {
        let stream = counting.event();
        let mut unit = Unit::new(stream);

        unit.begin(stream, counting.cpu().id())?;
        counting.set_timer(stream.plan.tick);
        Ok(unit)
    }

    fn count_tick(&self, counting: &mut Counting<'_, Self>, unit: &mut Unit) {
        counting.count(unit.count(&counting.event().plan));
    }

    fn count_stop(&self, counting: &mut Counting<'_, Self>, mut unit: Unit) {
        unit.leave(counting.event());
    }
}

#[vtable]
impl AuxPmu for Pattern {
    type Buffer = Ring;
    type Trace = ();

    fn setup_aux(&self, stream: &Event<'_, Self>, pages: &aux::Pages) -> Result<Ring> {
        Ok(Ring {
            sink: Sink::new(&stream.plan, pages)?,
            unit: Unit::new(stream),
            has_space: false,
        })
    }

    #[inline]
    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
        let stream = transaction.event();
        let cpu = transaction.cpu().id();

        if stream.plan.fault == Fault::Start {
            return Err(EIO);
        }
        transaction.buffer().unit.begin(stream, cpu)?;

        let has_space = sink::align(transaction).is_ok();
        let aux::Parts { buffer, region, .. } = transaction.parts();

        buffer.has_space = has_space;
        buffer.sink.seek(&region, &mut buffer.unit, has_space);
        transaction.set_timer(stream.plan.tick);
        Ok(())
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) -> aux::Next {
        let stream = transaction.event();
        let mut parts = transaction.parts();
        let Ring {
            unit,
            sink,
            has_space,
        } = parts.buffer;

        if unit.paused {
            return aux::Next::Continue;
        }

        let outcome = sink.tick(&mut parts.region, &stream.plan, unit);
        let taken = unit.line.take(stream.plan.fault, outcome.raised);
        let next = match parts.region.mode() {
            _ if outcome.faulted => aux::Next::Flush,
            aux::Mode::Normal if taken => aux::Next::Flush,
            aux::Mode::Overwrite if taken => {
                sink.take(&mut parts.region, stream, unit, *has_space);
                aux::Next::Continue
            }
            _ => aux::Next::Continue,
        };

        transaction.count(outcome.generated);
        next
    }

    fn pause(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) {
        transaction.buffer().unit.paused = true;
    }

    fn resume(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) {
        transaction.buffer().unit.paused = false;
    }

    fn snapshot<'a>(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        _trace: &mut (),
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        // The unit writes only in `tick()`, which cannot run during this call.
        let stream = transaction.event();
        let mut parts = transaction.parts();
        let Ring {
            unit,
            sink,
            has_space,
        } = parts.buffer;
        let len = sink.take(&mut parts.region, stream, unit, *has_space);

        sample.copy(transaction, len)
    }

    #[inline]
    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        let aux::Parts {
            event,
            buffer,
            mut region,
        } = transaction.parts();
        let Ring {
            unit,
            sink,
            has_space,
        } = buffer;
        let mode = region.mode();
        let len = sink.take(&mut region, event, unit, *has_space);
        let len = broken::size(match mode {
            aux::Mode::Normal => len,
            aux::Mode::Overwrite => broken::wrap(len, region.size()),
        });
        let format = sink.format();
        let commit = if unit.lost.any() {
            unit.lose_and_leave(event, len, mode)
        } else {
            unit.leave(event);
            aux::Commit::new(len, aux::Loss::None)
        };

        match self.is_offset {
            true => commit.in_format(format).as_offset(),
            false => commit.in_format(format),
        }
    }
}
