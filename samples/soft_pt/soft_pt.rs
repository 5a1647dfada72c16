// SPDX-License-Identifier: GPL-2.0

//! `soft_pt`: Intel Processor Trace without Intel's unit.
//!
//! It single-steps user code, and writes the packets that Intel's trace unit would have written. So
//! every decoder of Intel PT can read the trace. Tracing is slow, but exact, and works on any
//! x86-64 processor.
//!
//! ```text
//! # insmod rust_perf.ko; insmod rust_stepping.ko; insmod soft_pt.ko intel_pt=1
//! $ perf record -e intel_pt//u -- gzip -k file
//! $ perf script --itrace=i1i
//! ```
//!
//! The PMU's name is `soft_pt`. With `intel_pt=1` it is `intel_pt`, the name that perf knows, if
//! the machine has no such PMU. Its terms have the same bits as Intel's.
//!
//! The event's counter is the number of instructions traced.
//!
//! ```text
//! soft_pt.rs  the PMU, and the tracer of tasks that writes to its transactions
//! sampler.rs  a second PMU, whose events sample the traced instructions
//! tracer.rs   turns single steps and transitions into packets
//! code.rs     a task's code, stack and registers
//! ranges.rs   the addresses that are traced
//! ring.rs     the output of the encoder
//! unit.rs     the capabilities of the unit
//! ```

use intel_pt::Encoder;
use kernel::{
    interrupt::LocalInterruptDisabled,
    prelude::*,
    sync::Arc, //
};
use perf::{
    aux,
    context::Cpu,
    event::Exclude,
    interrupt::Entry,
    pmu::{
        Capabilities,
        Description, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu,
    Registration, //
};
use stepping::{
    Current,
    Following,
    Handle,
    Transition,
    Trap, //
};

mod code;
mod ranges;
mod ring;
mod sampler;
mod tracer;
mod unit;

use ranges::Ranges;
use ring::Ring;
use sampler::{
    Pebs,
    Sampler, //
};
use tracer::Tracer;
use unit::Unit;

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
        interpret: u32 {
            default: 1024,
            description: "Instructions that are interpreted in a trap at most, up to 4096; 0: none",
        },
    },
}

/// The tracer is unregistered first: it uses the PMU's transactions.
struct Module {
    _steps: stepping::Registration<Steps>,
    _pebs: Registration<Pebs>,
    _pmu: aux::Registration<SoftPt>,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let name = if module_parameters::intel_pt.value() {
            c"intel_pt"
        } else {
            c"soft_pt"
        };
        let description = Description::new(name)
            .capabilities(Capabilities::EXCLUSIVE.and(Capabilities::ITRACE))
            .filters(ranges::MAX.try_into()?)
            .caps(unit::caps());
        let steps = Handle::new()?;
        let driver = SoftPt {
            steps: steps.clone(),
        };
        let pmu = aux::Registration::new(description, driver)?;

        Ok(Self {
            _steps: stepping::Registration::new(&steps, Steps { pmu: pmu.entry() })?,
            _pebs: Pebs::register(pmu.entry())?,
            _pmu: pmu,
        })
    }
}

/// The PMU.
struct SoftPt {
    steps: Handle<Steps>,
}

/// An event.
struct State {
    config: intel_pt::Config,
    /// Tasks are followed while there is an event.
    following: Following,
    sampler: Arc<Sampler>,
}

impl State {
    /// The task to whose user code this CPU returns.
    fn current<'a>(&'a self, cpu: &'a Cpu) -> Option<Current<'a>> {
        self.following.current(cpu.interrupt_disabled())
    }
}

#[vtable]
impl Pmu for SoftPt {
    type Config = unit::Config;
    type Event = State;
    type Count = ();

    fn event_init(&self, attr: &Attr<'_, unit::Config>) -> Result<Self::Event> {
        let exclude = attr.exclude();
        let wanted = Exclude {
            // Kernel code is not single-stepped.
            kernel: true,
            user: false,
            ..exclude
        };

        if exclude != wanted {
            return Err(EOPNOTSUPP);
        }
        Ok(State {
            config: unit::encoder_config(attr.config())?,
            following: self.steps.follow()?,
            sampler: Sampler::new()?,
        })
    }

    fn filters_validate(filters: &[perf::filter::AddrFilter]) -> Result {
        ranges::validate(filters)
    }
}

#[vtable]
impl AuxPmu for SoftPt {
    type Buffer = Unit;
    type Trace = Tracer;

    fn setup_aux(&self, event: &Event<'_, Self>, _pages: &aux::Pages) -> Result<Unit> {
        Unit::new(event.config)
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Tracer> {
        // The last event that wrote to this AUX area may have had another configuration.
        transaction.buffer().encoder = Encoder::new(transaction.event().config);
        let interpreted = transaction.buffer().interpreted;

        Ok(Tracer::new(Ranges::new(transaction.filters()), interpreted))
    }

    fn resume(&self, transaction: &mut aux::Transaction<'_, Self>, tracer: &mut Tracer) {
        let cpu = transaction.cpu();

        tracer.resume(transaction.event().current(cpu), cpu);
    }

    fn pause(&self, transaction: &mut aux::Transaction<'_, Self>, tracer: &mut Tracer) {
        let cpu = transaction.cpu();
        let task = transaction.event().current(cpu);
        let parts = transaction.parts();
        let ring = &mut Ring::new(parts.region, parts.buffer.cycles, &parts.event.sampler);
        let stepped = tracer.pause(&mut parts.buffer.encoder, ring, task, cpu);

        parts.buffer.count(stepped);
        transaction.count(stepped);
    }

    fn snapshot<'a>(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        _tracer: &mut Tracer,
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        // Only callbacks write, and no other one runs during this call.
        sample.copy_written(transaction)
    }

    fn quiesce(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        mut tracer: Tracer,
    ) -> aux::Commit {
        let task = transaction.event().current(transaction.cpu());
        let parts = transaction.parts();
        let ring = &mut Ring::new(parts.region, parts.buffer.cycles, &parts.event.sampler);
        let stepped = tracer.leave(&mut parts.buffer.encoder, ring, task);

        parts.buffer.count(stepped);
        parts.buffer.interpreted = tracer.interpreted;
        transaction.count(stepped);
        aux::Commit::written(
            transaction,
            if tracer.is_full() {
                aux::Loss::NoSpace { bytes: None }
            } else {
                aux::Loss::None
            },
        )
    }
}

/// The tracer of tasks: it writes into the transaction that is open on the CPU.
struct Steps {
    pmu: Entry<SoftPt>,
}

#[vtable]
impl stepping::Tracer for Steps {
    fn single_step(&self, task: &mut Current<'_>, _irq: &LocalInterruptDisabled) -> Trap {
        let step = |transaction: &mut aux::Transaction<'_, SoftPt>, tracer: &mut Tracer| {
            if !tracer.is_stepping() {
                return (aux::Next::Continue, Trap::Unclaimed);
            }
            // A step by a debugger is traced, and the debugger gets its trap.
            let trap = if tracer.is_armed() {
                Trap::Claimed
            } else {
                Trap::Unclaimed
            };

            (stepped(transaction, tracer, task), trap)
        };

        self.pmu.with_transaction(step).unwrap_or(Trap::Unclaimed)
    }

    fn invalid_opcode(&self, task: &mut Current<'_>, _irq: &LocalInterruptDisabled) -> Trap {
        let step = |transaction: &mut aux::Transaction<'_, SoftPt>, tracer: &mut Tracer| {
            if !tracer.is_armed() || !transaction.event().config.ptw {
                return (aux::Next::Continue, Trap::Unclaimed);
            }
            // Executes the instruction, as a processor that has it would.
            if !task.skip_ptwrite() {
                return (aux::Next::Continue, Trap::Unclaimed);
            }
            (stepped(transaction, tracer, task), Trap::Claimed)
        };

        self.pmu.with_transaction(step).unwrap_or(Trap::Unclaimed)
    }

    fn transition(
        &self,
        task: Option<Current<'_>>,
        transition: Transition<'_>,
        _irq: &LocalInterruptDisabled,
    ) {
        self.pmu
            .with_transaction(|transaction, tracer: &mut Tracer| {
                let parts = transaction.parts();
                let ring = &mut Ring::new(parts.region, parts.buffer.cycles, &parts.event.sampler);
                let encoder = &mut parts.buffer.encoder;
                let stepped = tracer.transition(encoder, ring, task, transition);

                parts.buffer.count(stepped);
                transaction.count(stepped);
                // No flush here: a new transaction would set the trap flag, which must not get into
                // a signal's frame. The next step flushes.
                (aux::Next::Continue, ())
            });
    }
}

/// Traces the instruction that the task has executed, and the ones that are interpreted after it.
fn stepped(
    transaction: &mut aux::Transaction<'_, SoftPt>,
    tracer: &mut Tracer,
    task: &mut Current<'_>,
) -> aux::Next {
    let parts = transaction.parts();
    let ring = &mut Ring::new(parts.region, parts.buffer.cycles, &parts.event.sampler);
    let stepped = tracer.step(parts.buffer, ring, task);

    parts.buffer.count(stepped);
    if stepped != 0 {
        transaction.count(stepped);
    }
    if tracer.is_full() || transaction.region().wakeup_due() {
        aux::Next::Flush
    } else {
        aux::Next::Continue
    }
}
