// SPDX-License-Identifier: GPL-2.0

//! `trace_unit`: a driver of a trace unit that writes to the AUX area by DMA.
//!
//! The unit is a PCI function that QEMU has from a plugin, `tools/traceunit`. It is described in
//! `Documentation/trace-unit.md`. Each CPU has a unit of its own, which a table of regions leads round
//! the AUX area, as Intel PT's does. It makes the stream of `pattern`.
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
            .cap(c"num_address_ranges", fmt!("{ranges}"))?;
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
                if driver.registers.of(cpu).acknowledge() != 0 {
                    self.entry.interrupt_of(cpu);
                }
            }
            None => driver.tell_errors(),
        }
        // Message-signalled, so it is the device's.
        irq::IrqReturn::Handled
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

    /// Bytes that the unit could not write. [`None`] as for [`Self::written`].
    fn dropped(&self, registers: regs::UnitRegisters<'_>) -> Option<u64> {
        registers.read(unit::DROPPED)?.checked_sub(self.dropped)
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

        // The interrupts are masked if user space has reset the device since.
        self.registers.write(0, common::IRQ_MASK);
        registers.write(0, unit::IRQ_MASK);
        registers.write(asked.control & !unit::ENABLE, unit::CTRL);
        registers.write(asked.rate, unit::RATE);
        registers.write(cursor.table, unit::TABLE);
        registers.write(cursor.entry << 32 | cursor.offset, unit::POSITION);
        Ok(Trace {
            asked,
            written: registers.read(unit::WRITTEN).ok_or(ENODEV)?,
            dropped: registers.read(unit::DROPPED).ok_or(ENODEV)?,
            due: due.map(|int: Pos| int.get().wrapping_sub(head.get())),
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
        self.registers.of(transaction.cpu().id()).stop(trace.asked);
    }

    fn tick(&self, _transaction: &mut aux::Transaction<'_, Self>, _trace: &mut Trace) -> aux::Next {
        aux::Next::Flush
    }

    fn interrupt(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        trace: &mut Trace,
    ) -> aux::Next {
        let registers = self.registers.of(transaction.cpu().id());
        let failed = registers
            .read(unit::STATUS)
            .is_none_or(|status| status & unit::FAILED != 0);
        // It may be one of the transaction before.
        let due = trace
            .due
            .zip(trace.written(registers))
            .is_some_and(|(due, written)| written >= due);

        if !trace.full && (failed || due) {
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
        let registers = self.registers.of(transaction.cpu().id());

        let kept = registers.has(trace.control());

        registers.stop(trace.asked);
        transaction.buffer().mapping.sync_for_cpu();
        let written = trace.written(registers).filter(|_| kept).unwrap_or(0);
        let copied = sample.copy(transaction, written);
        if !trace.paused && kept {
            registers.start(trace.asked);
        }
        copied
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, trace: Trace) -> aux::Commit {
        let registers = self.registers.of(transaction.cpu().id());

        if trace.full {
            return aux::Commit::new(0, aux::Loss::NoSpace { bytes: Some(0) });
        }
        let kept = registers.has(trace.control());

        registers.stop(trace.asked);
        registers.acknowledge();
        let space = transaction.region().space();
        let written = trace.written(registers);
        let dropped = trace.dropped(registers);
        let failed = registers
            .read(unit::STATUS)
            .is_none_or(|status| status & unit::FAILED != 0);
        // The last read: a device that is there now was there before.
        let there = self.registers.read(common::ID) == Some(common::IDENTITY);
        // A device that is gone or was reset, or that has written beyond the table, has no trace that
        // is known.
        let Some((written, dropped)) = written
            .filter(|&written| space.is_none_or(|space| written <= space))
            .zip(dropped)
            .filter(|_| kept && there)
        else {
            return aux::Commit::new(0, aux::Loss::Gap { bytes: None });
        };

        if failed {
            dev_err!(self.device, "a unit has failed\n");
            // Without the bus the device could not raise the interrupt of errors. The next one is told.
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
