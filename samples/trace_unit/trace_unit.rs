// SPDX-License-Identifier: GPL-2.0

//! `trace_unit`: a driver of a trace unit that writes to the AUX area by DMA.
//!
//! The device is a PCI function that a QEMU plugin, `tools/traceunit`, emulates.
//! `Documentation/trace-unit.md` describes it. Each CPU has its own unit. A unit follows a table of
//! regions through the AUX area, like Intel PT.
//!
//! The driver does not trust the device. If the bytes of a transaction are not certain, it commits
//! none and reports a gap. `Documentation/trace-unit.md` lists the defects that it detects.
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
        // The kernel has no constant for the vendor, so `probe()` compares the IDs.
        pci::DeviceId::from_class(0x130000, 0xffffff),
        ()
    )]
);

struct TraceUnit;

/// Driver data of a bound device. The PMU is unregistered before the interrupts are freed.
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
            // Intel's driver has this file at the same place.
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

/// The handler of one vector: that of a CPU's unit, or, without a CPU, that of errors.
struct Handler {
    entry: Entry<Unit>,
    cpu: Option<u32>,
}

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        let driver = self.entry.driver();

        match self.cpu {
            Some(cpu) => {
                // Without a pending cause, the interrupt may be another unit's.
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
    /// Acknowledges and processes the interrupt of a CPU's unit. Returns whether there was one.
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
    /// Number of CPUs that have a unit.
    cpus: u32,
    /// The sources that the device has, one bit each.
    sources: u64,
}

impl Unit {
    /// Logs the errors that the device has noted, and clears them.
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

/// Interval of the check for lost interrupts.
const LOOK: Delta = Delta::from_millis(100);

/// A defect of the device that the driver has detected.
#[derive(Clone, Copy)]
enum Defect {
    /// An interrupt was due at two checks in a row, and did not arrive.
    NoInterrupt,
    /// A unit did not stop when asked to.
    NoStop,
    /// The registers of a unit contradict each other.
    Registers,
}

impl Unit {
    /// Logs a defect. The messages are constant, as callbacks must not format text.
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

    /// Stops the unit of a CPU. Returns false if it does not stop. The device is then reset: all
    /// units lose their state, and none writes any more.
    fn stop(&self, cpu: u32, asked: Asked) -> bool {
        let registers = self.registers.of(cpu);
        let stopped = registers.stop(asked.control);

        if !stopped {
            self.tell(Defect::NoStop);
            self.registers.write(common::RESET, common::CTRL);
            let _ = registers.read(unit::STATUS);
        }
        stopped
    }
}

/// State of an AUX area.
struct Buffer {
    mapping: aux::DmaMapping,
    table: aux::DeviceTable,
}

/// The state of a transaction.
struct Trace {
    asked: Asked,
    /// `WRITTEN` at the start of the transaction.
    written: u64,
    /// `DROPPED` at the start of the transaction.
    dropped: u64,
    /// Bytes from the head to the first interrupt; [`None`] in overwrite mode.
    due: Option<u64>,
    /// Whether the transaction was due to end at the last check already.
    overdue: bool,
    /// Whether no region ends within the space. The unit is not started then.
    full: bool,
    paused: bool,
}

impl Trace {
    /// The last value written to `CTRL`.
    fn control(&self) -> u64 {
        match self.paused {
            true => self.asked.control & !unit::ENABLE,
            false => self.asked.control,
        }
    }

    /// Bytes that the unit has written to memory in this transaction. [`None`] if the device is
    /// gone, or was reset.
    fn written(&self, registers: regs::UnitRegisters<'_>) -> Option<u64> {
        registers.read(unit::WRITTEN)?.checked_sub(self.written)
    }

    /// Whether the transaction has to end: the unit has reached the position of its interrupt, has
    /// stopped, or has failed.
    fn ends(&self, registers: regs::UnitRegisters<'_>) -> bool {
        let over = registers
            .read(unit::STATUS)
            .is_none_or(|status| status & (unit::STOPPED | unit::FAILED) != 0);
        // The interrupt itself proves nothing: it may belong to the previous transaction.
        let due = self
            .due
            .zip(self.written(registers))
            .is_some_and(|(due, written)| written >= due);

        !self.full && (over || due)
    }

    /// Bytes that the unit has dropped in this transaction. [`None`] as for [`Self::written`], or
    /// if the number is negative. The device computes `DROPPED` as `GENERATED` - `WRITTEN`, so a
    /// wrong `WRITTEN` can make it negative.
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
        // The unit stops only at a page end, and perf keeps one byte free: one page has no space.
        if pages.size().len() <= table::PAGE {
            return Err(EINVAL);
        }
        let mapping = pages.map_dma(DataDirection::FromDevice)?;

        Ok(Buffer {
            // Regions of one page: the unit raises interrupts and stops only at region ends.
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
                    // The unit is not started, so it loses nothing.
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
        // A reset by user space masks the interrupts.
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
            self.registers
                .of(transaction.cpu().id())
                .start(trace.asked.control);
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
        // At the first check, the interrupt may still be on its way.
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

    fn snapshot<'a>(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        trace: &mut Trace,
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        let cpu = transaction.cpu().id();
        let registers = self.registers.of(cpu);
        let kept = registers.has(trace.control());

        let kept = self.stop(cpu, trace.asked) && kept;
        transaction.buffer().mapping.sync_for_cpu();
        let written = trace.written(registers).filter(|_| kept).unwrap_or(0);
        let copied = sample.copy(transaction, written);
        if !trace.paused && kept {
            registers.start(trace.asked.control);
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
        // The last read: if the device answers now, it has answered all reads before.
        let there = self.registers.read(common::ID) == Some(common::IDENTITY);
        // The extent of the trace is unknown if the device is gone or was reset.
        if !kept || !there {
            return aux::Commit::new(0, aux::Loss::Gap { bytes: None });
        }
        // It is unknown too if the unit has written beyond the space, or is not where `WRITTEN`
        // puts it.
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
            // Without bus mastering the device cannot raise the interrupt of errors, so its handler
            // does not clear the status. Clear it here, so that the next error raises one.
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
