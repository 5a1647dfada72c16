// SPDX-License-Identifier: GPL-2.0

//! `pattern`: a trace unit in software.
//!
//! A timer is its clock; at every tick it writes packets through a table of regions, as a unit in
//! hardware would, and raises its interrupt where the table says. Where it writes, the event says:
//! straight into the AUX ring, or into bounce memory of two shapes. What it writes is described in
//! `pattern_codec`: every byte can be verified, and what is lost shows as an exact number of
//! bytes. What shall go wrong can be asked for. So it is the ground truth for a recorder, and the
//! test of the framework. `Documentation/abi.md` has the terms.
//!
//! - [`config`]: what an event asks for.
//! - [`unit`]: makes packets, and follows the table.
//! - [`sink`]: the memory that it writes to, and the way from there into the ring.
//! - [`stream`]: what lives as long as the event.
//! - [`fault`]: what goes wrong when the event asks for it; [`broken`]: what never does.
//!
//! ```text
//! # insmod rust_perf.ko; insmod pattern.ko
//! $ auxrec record -e pattern/rate=4096,packet=2/ -m 16,64 -o trace.data -- sleep 1
//! $ auxrec check trace.data
//! ```
//!
//! The event's counter is the number of bytes generated, whether they found room or not.

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use perf::{
    aux,
    pmu::Capabilities,
    Attr,
    Event,
    Pmu,
    Registration, //
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

#[pin_data]
struct Module {
    #[pin]
    _pmu: Registration<Pattern>,
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _pmu <- Registration::new(name()?, Pattern {
                streams: Atomic::new(0),
            }),
        })
    }
}

struct Pattern {
    /// Streams so far.
    streams: Atomic<u32>,
}

/// A session.
struct Run {
    unit: Unit,
    /// Whether there is room: if not even the padding fits, there is none.
    room: bool,
}

#[vtable]
impl Pmu for Pattern {
    const CAPABILITIES: Capabilities = Capabilities::EXCLUSIVE
        .and(Capabilities::ITRACE)
        .and(Capabilities::NO_EXCLUDE);

    type Config = Config;
    type Event = Stream;
    type Buffer = Sink;
    type Run = Run;

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Stream> {
        let plan = Plan::new(attr.config())?;
        let number = self.streams.fetch_add(1, Relaxed).wrapping_add(1).max(1);

        Ok(Stream::new(number, plan))
    }

    fn setup_aux(&self, stream: &Event<'_, Self>, pages: &aux::Pages) -> Result<Sink> {
        Sink::new(&stream.plan, pages)
    }

    fn events() -> &'static [perf::sysfs::Attribute] {
        perf::attributes! {
            slow: "rate=0x40",
            fast: "rate=0x4000,packet=0x10",
            direct: "sink=0",
            sg: "sink=1",
            flat: "sink=2",
        }
    }

    fn caps() -> &'static [perf::sysfs::Attribute] {
        perf::attributes! {
            format_version: "1",
            packet_unit: "64",
            sinks: "direct sg flat",
        }
    }

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<Run> {
        if session.event.plan.fault == Fault::Start {
            return Err(EIO);
        }

        let mut unit = Unit::new(session.event, session.cpu.id())?;
        let room = sink::align(session, &unit).is_ok();

        session.buffer.seek(session.window, &mut unit, room);
        session.set_timer(session.event.plan.tick);
        Ok(Run { unit, room })
    }

    fn tick(&self, session: &mut aux::Session<'_, Self>, run: &mut Run) -> aux::Next {
        let stream = session.event;
        let unit = &mut run.unit;

        if unit.paused {
            return aux::Next::Continue;
        }

        let outcome = session.buffer.tick(session.window, &stream.plan, unit);
        session.count(outcome.generated);

        let taken = unit.line.take(stream.plan.fault, outcome.raised);
        match session.window.mode() {
            _ if outcome.faulted => aux::Next::Commit,
            aux::Mode::Linear if taken => aux::Next::Commit,
            aux::Mode::Overwrite if taken => {
                session.buffer.take(session.window, stream, unit, run.room);
                aux::Next::Continue
            }
            _ => aux::Next::Continue,
        }
    }

    fn pause(&self, _session: &mut aux::Session<'_, Self>, run: &mut Run) {
        run.unit.paused = true;
    }

    fn resume(&self, _session: &mut aux::Session<'_, Self>, run: &mut Run) {
        run.unit.paused = false;
    }

    fn snapshot(
        &self,
        session: &mut aux::Session<'_, Self>,
        run: &mut Run,
        sample: aux::Sample<'_>,
    ) -> aux::Taken {
        // The unit writes in `tick()` only, which cannot come meanwhile.
        let stream = session.event;
        let len = session
            .buffer
            .take(session.window, stream, &mut run.unit, run.room);

        sample.take(session, len, aux::Published::cpu_stores())
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, run: Run) -> aux::Written {
        let Run { mut unit, room } = run;
        let mode = session.window.mode();
        let len = session
            .buffer
            .take(session.window, session.event, &mut unit, room);
        let len = broken::size(match mode {
            aux::Mode::Linear => len,
            aux::Mode::Overwrite => broken::wrap(len, session.window.size()),
        });
        let (no_space, gap, collision) = unit.lost.causes();

        session.event.advance(&unit);
        aux::Written::new(len, broken::published(), broken::truncated(no_space, mode))
            .and_lost(gap)
            .and_lost(collision)
            .in_format(session.buffer.format())
    }

    fn count_start(&self, counting: &mut aux::Counting<'_, Self>) -> Result<Run> {
        counting.set_timer(counting.event.plan.tick);
        Ok(Run {
            unit: Unit::new(counting.event, counting.cpu.id())?,
            room: false,
        })
    }

    fn count_tick(&self, counting: &mut aux::Counting<'_, Self>, run: &mut Run) {
        counting.count(run.unit.count(&counting.event.plan));
    }

    fn count_stop(&self, counting: &mut aux::Counting<'_, Self>, run: Run) {
        counting.event.advance(&run.unit);
    }
}
