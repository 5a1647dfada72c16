// SPDX-License-Identifier: GPL-2.0

//! `trace_unit`: a driver of a trace unit that writes to the AUX area by DMA.
//!
//! The unit is a PCI function that QEMU has from a plugin, `tools/traceunit`. It is described in
//! `Documentation/trace-unit.md`. Each CPU has a unit of its own, which a table of regions leads round
//! the AUX area, as Intel PT's does.
//!
//! The driver expects a device that is broken: a transaction whose bytes are not certain has none, and
//! says so. `Documentation/trace-unit.md` lists what it notices.
//!
//! ```text
//! # insmod rust_perf.ko; insmod trace_unit.ko
//! $ auxrec record -e trace_unit/rate=100/ -a -o trace.data -- sleep 1
//! ```

use auxcore::ring::Pos;
use config::{
    Asked,
    Config, //
};
use kernel::{
    cpu,
    device::Core,
    dma::DataDirection,
    irq,
    kvec,
    pci,
    prelude::*,
    sync::aref::ARef,
    time::Delta, //
};
use perf::{
    aux::{
        self,
        table, //
    },
    filter::AddrFilter,
    interrupt::{
        Entry,
        PciLines, //
    },
    pmu::{
        Capabilities,
        Description, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};
use regs::{
    common,
    unit,
    Registers, //
};

mod config;
mod regs;

kernel::module_pci_driver! {
    type: TraceUnit,
    name: "trace_unit",
    authors: ["The auxpmu authors"],
    description: "A perf PMU for the trace unit that QEMU has from a plugin",
    license: "GPL",
    params: {
        intel_pt: bool {
            default: false,
            description: "Register as intel_pt, the name that perf knows",
        },
    },
}

kernel::pci_device_table!(
    TABLE,
    (),
    [(
        // The kernel has no name for the vendor: `probe()` looks.
        pci::DeviceId::from_class(0x130000, 0xffffff),
        ()
    )]
);

struct TraceUnit;

/// What a device has while it is bound. The PMU goes first.
struct Bound {
    _registration: aux::Registration<Unit>,
    _lines: PciLines<Handler>,
}

impl pci::Driver for TraceUnit {
    type IdInfo = ();
    type Data<'bound> = Bound;

    const ID_TABLE: pci::IdTable<()> = &TABLE;

    fn probe<'bound>(
        device: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Bound, Error> + 'bound {
        if device.vendor_id().as_raw() != 0x1234 || device.device_id() != 0x7472 {
            return Err(ENODEV);
        }
        device.enable_device_mem()?;
        device.set_master();

        let bar = device
            .iomap_region_sized::<{ regs::SIZE }>(0, c"trace_unit")?
            .into_devres()?;
        let registers = Registers::new(bar);

        if registers.read(common::ID) != Some(common::IDENTITY) {
            dev_err!(device, "it is another version of the trace unit\n");
            return Err(ENODEV);
        }
        registers.write(common::RESET, common::CTRL);
        let caps = registers.read(common::CAPS).ok_or(ENODEV)?;
        // CAST: Eight bits.
        let cpus = u32::from((caps & 0xff) as u8).min(cpu::nr_cpu_ids());
        // CAST: Eight bits.
        let ranges = u32::from((caps >> 8 & 0xff) as u8).min(4);
        let driver = Unit {
            registers,
            device: device.into(),
            cpus,
            sources: caps >> 24 & 0xff,
        };
        let name = if module_parameters::intel_pt.value() {
            c"intel_pt"
        } else {
            c"trace_unit"
        };
        let description = Description::new(name)
            .parent(device.as_ref())
            .capabilities(Capabilities::EXCLUSIVE.and(Capabilities::ITRACE))
            .filters(ranges)
            .caps(config::caps())
            .cap(c"num_address_ranges", fmt!("{ranges}"))?
            // Where Intel's driver has it.
            .file(c"tsc_art_ratio", fmt!("{}:1", caps >> 32 & 0x3ff))?;
        let registration = aux::Registration::new(description, driver)?;
        let entry = registration.entry();
        let mut handlers = kvec![Handler {
            entry: entry.clone(),
            cpu: None,
        }]?;

        for cpu in 0..cpus {
            let handler = Handler {
                entry: entry.clone(),
                cpu: Some(cpu),
            };

            handlers.push(handler, GFP_KERNEL)?;
        }

        Ok(Bound {
            _lines: PciLines::following(device, c"trace_unit", handlers, 1, &entry)?,
            _registration: registration,
        })
    }
}

/// The handler of an interrupt: of a CPU's unit, or of errors.
struct Handler {
    entry: Entry<Unit>,
    cpu: Option<u32>,
}

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        let driver = self.entry.driver();

        match self.cpu {
            Some(cpu) => {
                // Without a reason it may be another unit's.
                if !self.has_come(cpu) {
                    for other in 0..driver.cpus {
                        self.has_come(other);
                    }
                }
            }
            None => driver.tell_errors(),
        }
        // Message-signalled, so it is the device's.
        irq::IrqReturn::Handled
    }
}

impl Handler {
    /// Whether the unit of a CPU has raised its interrupt.
    fn has_come(&self, cpu: u32) -> bool {
        let reason = self.entry.driver().registers.of(cpu).acknowledge();

        if reason != 0 {
            self.entry.interrupt_of(cpu);
        }
        reason != 0
    }
}

/// The device.
struct Unit {
    registers: Registers,
    device: ARef<pci::Device>,
    /// CPUs that have a unit.
    cpus: u32,
    /// Its sources, a bit each.
    sources: u64,
}

impl Unit {
    /// Says what the device has noted, and clears it.
    fn tell_errors(&self) {
        let status = self.registers.read(common::IRQ_STATUS).unwrap_or(0);
        let errors = self.registers.read(common::ERROR).unwrap_or(0);
        let address = self.registers.read(common::ERROR_ADDRESS).unwrap_or(0);

        self.registers.write(errors, common::ERROR);
        self.registers.write(status, common::IRQ_STATUS);
        if errors != 0 {
            dev_err!(
                self.device,
                "the trace unit reports errors {errors:#x}, the first one at {address:#x}\n"
            );
        }
    }
}

/// How often it is looked whether an interrupt was lost.
const LOOK: Delta = Delta::from_millis(100);

/// What is wrong with the device.
#[derive(Clone, Copy)]
enum Defect {
    /// An interrupt was due for a while.
    NoInterrupt,
    /// A unit ran after it was stopped.
    NoStop,
    /// What its registers say does not fit together.
    Registers,
}

impl Unit {
    /// Tells of a defect. A callback formats nothing.
    fn tell(&self, defect: Defect) {
        match defect {
            Defect::NoInterrupt => dev_warn!(self.device, "an interrupt was lost\n"),
            Defect::NoStop => dev_err!(self.device, "a unit did not stop: reset\n"),
            Defect::Registers => {
                dev_err!(
                    self.device,
                    "the registers of a unit contradict each other\n"
                );
            }
        }
    }

    /// Stops the unit of a CPU. If it does not stop, all units lose their state: no unit writes any more
    /// when this returns false.
    fn stop(&self, cpu: u32, asked: Asked) -> bool {
        let registers = self.registers.of(cpu);
        let stopped = registers.stop(asked);

        if !stopped {
            self.tell(Defect::NoStop);
            self.registers.write(common::RESET, common::CTRL);
            let _ = registers.read(unit::STATUS);
        }
        stopped
    }
}

/// What an AUX area has.
struct Buffer {
    mapping: aux::DmaMapping,
    table: aux::DeviceTable,
}

/// The state of a transaction.
struct Trace {
    asked: Asked,
    /// `WRITTEN` and `DROPPED` when it was started.
    written: u64,
    dropped: u64,
    /// Bytes until an interrupt is due, if one is.
    due: Option<u64>,
    /// It was due already when it was looked last.
    overdue: bool,
    /// There is no region that the unit could fill.
    full: bool,
    paused: bool,
}

impl Trace {
    /// `CTRL` as it was written last.
    fn control(&self) -> u64 {
        match self.paused {
            true => self.asked.control & !unit::ENABLE,
            false => self.asked.control,
        }
    }

    /// Bytes in memory. [`None`] if the device is gone, or was reset.
    fn written(&self, registers: regs::UnitRegisters<'_>) -> Option<u64> {
        registers.read(unit::WRITTEN)?.checked_sub(self.written)
    }

    /// Whether the transaction is to end: a byte is due, or the unit can't go on.
    fn ends(&self, registers: regs::UnitRegisters<'_>) -> bool {
        let over = registers
            .read(unit::STATUS)
            .is_none_or(|status| status & (unit::STOPPED | unit::FAILED) != 0);
        // An interrupt may be one of the transaction before.
        let due = self
            .due
            .zip(self.written(registers))
            .is_some_and(|(due, written)| written >= due);

        !self.full && (over || due)
    }

    /// Bytes that the unit could not write. [`None`] as for [`Self::written`], or if `DROPPED` is below 0: the device
    /// subtracts `WRITTEN` from what it made, and a wrong `WRITTEN` makes that negative.
    fn dropped(&self, registers: regs::UnitRegisters<'_>) -> Option<u64> {
        let dropped = registers.read(unit::DROPPED)?.checked_sub(self.dropped)?;

        i64::try_from(dropped).is_ok().then_some(dropped)
    }
}

#[vtable]
impl Pmu for Unit {
    type Config = Config;
    type Event = Asked;
    type Count = ();

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Asked> {
        Asked::new(attr.config(), attr.exclude(), self.sources)
    }

    fn filters_validate(filters: &[AddrFilter]) -> Result {
        config::validate(filters)
    }
}

#[vtable]
impl AuxPmu for Unit {
    type Buffer = Buffer;
    type Trace = Trace;

    fn setup_aux(&self, _event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Buffer> {
        // The unit stops where a page ends, and perf leaves a byte free: one page never has room.
        if pages.size().len() <= table::PAGE {
            return Err(EINVAL);
        }
        let mapping = pages.map_dma(DataDirection::FromDevice)?;

        Ok(Buffer {
            // A page each: the unit acts on what perf says in bytes where a region ends.
            table: pages.table(&mapping, table::PAGE)?,
            mapping,
        })
    }

    fn dma<'a>(&self, buffer: &'a Buffer) -> Option<&'a aux::DmaMapping> {
        Some(&buffer.mapping)
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Trace> {
        let cpu = transaction.cpu().id();
        if cpu >= self.cpus {
            return Err(ENODEV);
        }
        let registers = self.registers.of(cpu);
        let asked = **transaction.event();
        let mut ranges = 0u64;

        registers.write(asked.control & !unit::ENABLE, unit::CTRL);

        for ((shift, at), filter) in unit::RANGE_PLACES.iter().zip(transaction.filters()) {
            let (what, low, high) = config::range(filter);

            ranges |= what.wrapping_shl(*shift);
            registers.write(low, *at);
            registers.write(high, at.wrapping_add(8));
        }
        registers.write(ranges, unit::RANGES);
        let aux::Parts { buffer, region, .. } = transaction.parts();
        let head = region.head();
        let due = match region.space().zip(region.wakeup()) {
            Some((space, wakeup)) => match buffer.table.mark(head, space, wakeup) {
                Ok(marks) => Some(marks.int),
                Err(table::NoEnd) => {
                    // Nothing was lost: the unit is not started.
                    transaction.set_timer(Delta::from_micros(1));
                    return Ok(Trace {
                        asked,
                        written: 0,
                        dropped: 0,
                        due: None,
                        overdue: false,
                        full: true,
                        paused: true,
                    });
                }
            },
            None => {
                buffer.table.clear();
                None
            }
        };
        let cursor = buffer.table.seek(head).ok_or(ENODEV)?;

        transaction.set_timer(LOOK);
        // The interrupts are masked if user space has reset the device since.
        self.registers.write(0, common::IRQ_MASK);
        registers.write(0, unit::IRQ_MASK);
        registers.write(asked.rate, unit::RATE);
        registers.write(cursor.table, unit::TABLE);
        registers.write(cursor.entry << 32 | cursor.offset, unit::POSITION);
        Ok(Trace {
            asked,
            written: registers.read(unit::WRITTEN).ok_or(ENODEV)?,
            dropped: registers.read(unit::DROPPED).ok_or(ENODEV)?,
            due: due.map(|int: Pos| int.get().wrapping_sub(head.get())),
            overdue: false,
            full: false,
            paused: true,
        })
    }

    fn resume(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) {
        if !trace.full {
            trace.paused = false;
            self.registers.of(transaction.cpu().id()).start(trace.asked);
        }
    }

    fn pause(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) {
        trace.paused = true;
        self.stop(transaction.cpu().id(), trace.asked);
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) -> aux::Next {
        let cpu = transaction.cpu().id();
        let registers = self.registers.of(cpu);

        if trace.full || !registers.has(trace.control()) {
            return aux::Next::Flush;
        }
        let before = trace.overdue;

        trace.overdue = trace.ends(registers);
        // The first time, the interrupt may be on its way.
        if !before || !trace.overdue {
            return aux::Next::Continue;
        }
        self.tell(Defect::NoInterrupt);
        aux::Next::Flush
    }

    fn interrupt(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        trace: &mut Trace,
    ) -> aux::Next {
        let registers = self.registers.of(transaction.cpu().id());

        if trace.ends(registers) {
            return aux::Next::Flush;
        }
        aux::Next::Continue
    }

    fn snapshot(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        trace: &mut Trace,
        sample: aux::Sample<'_>,
    ) -> aux::Copied {
        let cpu = transaction.cpu().id();
        let registers = self.registers.of(cpu);
        let kept = registers.has(trace.control());

        let kept = self.stop(cpu, trace.asked) && kept;
        transaction.buffer().mapping.sync_for_cpu();
        let written = trace.written(registers).filter(|_| kept).unwrap_or(0);
        let copied = sample.copy(transaction, written);
        if !trace.paused && kept {
            registers.start(trace.asked);
        }
        copied
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, trace: Trace) -> aux::Commit {
        let cpu = transaction.cpu().id();
        let registers = self.registers.of(cpu);

        if trace.full {
            return aux::Commit::new(0, aux::Loss::NoSpace { bytes: Some(0) });
        }
        let kept = registers.has(trace.control());

        let kept = self.stop(cpu, trace.asked) && kept;
        registers.acknowledge();
        let aux::Parts { buffer, region, .. } = transaction.parts();
        let (space, size, head) = (region.space(), region.size(), region.head());
        let position = registers
            .cursor()
            .and_then(|cursor| buffer.table.position(head, cursor));
        registers.forget_table();
        let written = trace.written(registers);
        let dropped = trace.dropped(registers);
        let failed = registers
            .read(unit::STATUS)
            .is_none_or(|status| status & unit::FAILED != 0);
        // The last read: a device that is there now was there before.
        let there = self.registers.read(common::ID) == Some(common::IDENTITY);
        // A device that is gone or was reset has no trace that is known.
        if !kept || !there {
            return aux::Commit::new(0, aux::Loss::Gap { bytes: None });
        }
        // Nor has one that has written beyond the table, or elsewhere.
        let known = written.zip(dropped).filter(|&(written, _)| {
            let here = size.offset(head.advance(written));

            space.is_none_or(|space| written <= space)
                && position.is_some_and(|at| size.offset(at) == here)
        });
        let Some((written, dropped)) = known else {
            self.tell(Defect::Registers);
            return aux::Commit::new(0, aux::Loss::Gap { bytes: None });
        };

        if failed {
            dev_err!(self.device, "a unit has failed\n");
            // Without the bus the device could not raise the interrupt of errors. The next one is reported.
            self.registers.write(1, common::IRQ_STATUS);
        }
        transaction.count(written.saturating_add(dropped));
        let loss = match (failed, dropped) {
            (true, dropped) => aux::Loss::Gap {
                bytes: Some(dropped),
            },
            (false, 0) => aux::Loss::None,
            (false, dropped) => aux::Loss::NoSpace {
                bytes: Some(dropped),
            },
        };
        aux::Commit::new(written, loss)
    }
}
