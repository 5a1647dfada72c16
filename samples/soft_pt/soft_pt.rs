// SPDX-License-Identifier: GPL-2.0

//! `soft_pt`: Intel Processor Trace without Intel's unit.
//!
//! It steps through user code, instruction by instruction, and writes the packets that Intel's
//! trace unit would have written, so that whatever decodes Intel PT shows what a program did:
//! slowly, but exactly, on any x86-64 processor.
//!
//! ```text
//! # insmod rust_perf.ko; insmod soft_pt.ko intel_pt=1
//! $ perf record -e intel_pt//u -- gzip -k file
//! $ perf script --itrace=i1i
//! ```
//!
//! With `intel_pt=1` the PMU has the name that perf knows, on a machine where no such PMU is;
//! else it is `soft_pt`. Its terms are at the places where Intel's are.
//!
//! The event's counter is the number of instructions traced.
//!
//! ```text
//! soft_pt.rs  the PMU: terms, capabilities, sessions
//! tracer.rs   from traps and crossings to what the encoder is told
//! ranges.rs   the addresses that are traced
//! ring.rs     where the encoder's packets go
//! unit.rs     what a unit of this kind says that it can
//! ```

use intel_pt::Encoder;
use kernel::prelude::*;
use perf::{
    aux,
    event::Exclude,
    pmu::Capabilities,
    user::{
        self,
        Current, //
    },
    Attr,
    Event,
    Pmu,
    Registration, //
};

mod ranges;
mod ring;
mod tracer;
mod unit;

use ranges::Ranges;
use ring::Ring;
use tracer::Tracer;

module! {
    type: Module,
    name: "soft_pt",
    authors: ["The auxpmu authors"],
    description: "A perf PMU that traces user code in Intel PT's format, by single-stepping",
    license: "GPL",
    params: {
        intel_pt: bool {
            default: false,
            description: "Register as intel_pt, the name that perf knows",
        },
    },
}

#[pin_data]
struct Module {
    #[pin]
    _pmu: Registration<SoftPt>,
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let name = if module_parameters::intel_pt.value() {
            c"intel_pt"
        } else {
            c"soft_pt"
        };

        try_pin_init!(Self {
            _pmu <- Registration::new(name, SoftPt),
        })
    }
}

struct SoftPt;

#[vtable]
impl Pmu for SoftPt {
    const CAPABILITIES: Capabilities = Capabilities::EXCLUSIVE.and(Capabilities::ITRACE);
    // CAST: A small constant.
    const NR_FILTERS: u32 = ranges::MAX as u32;

    type Config = unit::Config;
    type Event = intel_pt::Config;
    type Buffer = Encoder;
    type Run = Tracer;

    fn event_init(&self, attr: &Attr<'_, unit::Config>) -> Result<Self::Event> {
        let exclude = attr.exclude();
        let wanted = Exclude {
            // The kernel is not stepped through.
            kernel: true,
            user: false,
            ..exclude
        };

        if exclude != wanted {
            return Err(EOPNOTSUPP);
        }
        unit::encoder_config(attr.config())
    }

    fn setup_aux(&self, event: &Event<'_, Self>, _pages: &aux::Pages) -> Result<Encoder> {
        Ok(Encoder::new(**event))
    }

    fn filters_validate(filters: &[perf::filter::Wanted]) -> Result {
        ranges::validate(filters)
    }

    fn caps() -> &'static [perf::sysfs::Attribute] {
        unit::caps()
    }

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<Tracer> {
        // Whatever wrote to this ring before may have been another event, with other terms.
        *session.buffer = Encoder::new(**session.event);

        Ok(Tracer::new(Ranges::new(session.event.filters(session.cpu))))
    }

    fn resume(&self, session: &mut aux::Session<'_, Self>, tracer: &mut Tracer) {
        tracer.resume(Current::new(session.cpu), session.cpu);
    }

    fn pause(&self, session: &mut aux::Session<'_, Self>, tracer: &mut Tracer) {
        let task = Current::new(session.cpu);

        let ring = &mut Ring(session.window);
        let stepped = tracer.pause(session.buffer, ring, task, session.cpu);
        session.count(stepped);
    }

    fn snapshot(
        &self,
        session: &mut aux::Session<'_, Self>,
        _tracer: &mut Tracer,
        sample: aux::Sample<'_>,
    ) -> aux::Taken {
        // Nothing is written but by callbacks, which cannot come meanwhile.
        sample.by_writer(session)
    }

    fn step(&self, session: &mut aux::Session<'_, Self>, tracer: &mut Tracer) -> user::Step {
        let Some(mut task) = Current::new(session.cpu) else {
            return user::Step::Others;
        };
        if !tracer.is_armed() {
            return user::Step::Others;
        }

        let stepped = tracer.step(session.buffer, &mut Ring(session.window), &mut task);
        if stepped != 0 {
            session.count(stepped);
        }

        user::Step::Ours(if tracer.is_full() || session.window.wakeup_due() {
            aux::Next::Commit
        } else {
            aux::Next::Continue
        })
    }

    fn cross(
        &self,
        session: &mut aux::Session<'_, Self>,
        tracer: &mut Tracer,
        crossing: user::Crossing,
    ) -> aux::Next {
        let task = Current::new(session.cpu);

        let ring = &mut Ring(session.window);
        let stepped = tracer.cross(session.buffer, ring, task, crossing);
        session.count(stepped);

        // A commit here would begin again, and set the flag that a signal's frame must not show:
        // the next step commits.
        aux::Next::Continue
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, mut tracer: Tracer) -> aux::Written {
        let task = Current::new(session.cpu);

        let stepped = tracer.leave(session.buffer, &mut Ring(session.window), task);
        session.count(stepped);
        aux::Written::by_writer(
            session.window,
            if tracer.is_full() {
                aux::Loss::NoSpace { bytes: None }
            } else {
                aux::Loss::None
            },
        )
    }
}
