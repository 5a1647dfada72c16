// SPDX-License-Identifier: GPL-2.0

//! `edu`: a driver of a device, with DMA into the AUX area and an interrupt.
//!
//! QEMU's PCI device `edu` copies up to 4096 bytes from its memory to an address, 100 ms after a
//! request, and raises an interrupt. These bytes are the trace: the driver fills the device's
//! memory at probe, so that the byte at position `p` of the AUX area is [`byte`]`(p)`. The event's
//! counter is the number of bytes that the device has written.
//!
//! The device has one unit for all CPUs, and cannot abort a transfer. So [`AuxPmu::quiesce`] waits
//! for the end of a transfer with interrupts off, which a unit of a production system must not
//! need.
//!
//! ```text
//! $ qemu-system-x86_64 -device edu,dma_mask=0xffffffff ...
//! # insmod rust_perf.ko; insmod edu_trace.ko
//! $ auxrec record -e edu// -C 0 -m 16,4 -o trace.data -- sleep 1
//! ```

use auxcore::ring::{
    Pos,
    Size, //
};
use kernel::{
    device::Core,
    dma::{
        Coherent,
        CoherentBox,
        DataDirection, //
    },
    io::Io,
    irq,
    kvec,
    pci,
    prelude::*,
    sync::aref::ARef,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use perf::{
    aux,
    interrupt::{
        Entry,
        PciLines, //
    },
    pmu::{
        Description,
        Scope, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

kernel::module_pci_driver! {
    type: Edu,
    name: "edu_trace",
    authors: ["The auxpmu authors"],
    description: "A perf PMU whose trace is DMA of QEMU's edu device",
    license: "GPL",
}

/// Registers, in the first BAR.
mod regs {
    /// Pending interrupt causes.
    pub(crate) const IRQ_STATUS: usize = 0x24;
    pub(crate) const IRQ_ACK: usize = 0x64;
    pub(crate) const DMA_SOURCE: usize = 0x80;
    pub(crate) const DMA_DESTINATION: usize = 0x88;
    pub(crate) const DMA_COUNT: usize = 0x90;
    pub(crate) const DMA_COMMAND: usize = 0x98;
    pub(crate) const END: usize = 0xa0;

    /// Starts a transfer. Reads as 1 until the transfer is complete.
    pub(crate) const RUN: u32 = 1;
    /// The transfer reads the device's memory; otherwise it writes it.
    pub(crate) const FROM_DEVICE: u32 = 2;
    /// Raises an interrupt when the transfer is complete.
    pub(crate) const INTERRUPT: u32 = 4;

    /// Address of the device's memory in a DMA request.
    pub(crate) const MEMORY: u32 = 0x40000;
    pub(crate) const MEMORY_SIZE: usize = 4096;
}

/// Maximum number of polls in `quiesce()`. They take seconds; a transfer takes 100 ms.
const LOOKS: u32 = 10_000_000;

/// The byte at a position of the AUX area.
fn byte(pos: usize) -> u8 {
    u8::try_from(pos % regs::MEMORY_SIZE % 251).unwrap_or(0)
}

kernel::pci_device_table!(
    TABLE,
    (),
    [(
        // The kernel has no constant for the vendor, so `probe()` compares the IDs.
        pci::DeviceId::from_class(0x00ff00, 0xffffff),
        ()
    )]
);

struct Edu;

/// Driver data of a bound device. The PMU is unregistered before the interrupt is freed.
struct Bound {
    _registration: aux::Registration<Unit>,
    _line: PciLines<Handler>,
}

impl pci::Driver for Edu {
    type IdInfo = ();
    type Data<'bound> = Bound;

    const ID_TABLE: pci::IdTable<()> = &TABLE;

    fn probe<'bound>(
        device: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Bound, Error> + 'bound {
        if device.vendor_id().as_raw() != 0x1234 || device.device_id() != 0x11e8 {
            return Err(ENODEV);
        }
        device.enable_device_mem()?;
        device.set_master();

        let unit = Unit {
            bar: device
                .iomap_region_sized::<{ regs::END }>(0, c"edu_trace")?
                .into_devres()?,
            device: device.into(),
        };
        unit.fill(device)?;

        let description = Description::new(c"edu")
            .parent(device.as_ref())
            .scope(Scope::System);
        let registration = aux::Registration::new(description, unit)?;
        let entry = registration.entry();
        let handlers = kvec![Handler(entry.clone())]?;

        Ok(Bound {
            _line: PciLines::following(device, c"edu_trace", handlers, 0, &entry)?,
            _registration: registration,
        })
    }
}

/// The handler of the device's interrupt.
struct Handler(Entry<Unit>);

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        self.0.driver().acknowledge();
        self.0.interrupt();
        // Message-signalled, so not shared: the interrupt is the device's.
        irq::IrqReturn::Handled
    }
}

/// The device.
struct Unit {
    bar: pci::DevresBar<{ regs::END }>,
    device: ARef<pci::Device>,
}

impl Unit {
    /// Fills the device's memory with [`byte`] of each offset.
    fn fill(&self, device: &pci::Device<Core<'_>>) -> Result {
        let mut bytes =
            CoherentBox::<[u8]>::zeroed_slice(device.as_ref(), regs::MEMORY_SIZE, GFP_KERNEL)?;

        for (pos, place) in bytes.iter_mut().enumerate() {
            *place = byte(pos);
        }
        let bytes: Coherent<[u8]> = bytes.into();
        let address = u32::try_from(bytes.dma_address())?;

        self.transfer(address, regs::MEMORY, regs::MEMORY_SIZE.try_into()?, 0);
        for _ in 0..100 {
            fsleep(Delta::from_millis(10));
            if !self.is_running() {
                return Ok(());
            }
        }
        Err(ETIMEDOUT)
    }

    /// Starts a transfer.
    fn transfer(&self, source: u32, destination: u32, len: u32, how: u32) {
        if let Some(bar) = self.bar.try_access() {
            bar.write32(source, regs::DMA_SOURCE);
            bar.write32(destination, regs::DMA_DESTINATION);
            bar.write32(len, regs::DMA_COUNT);
            bar.write32(how | regs::RUN, regs::DMA_COMMAND);
        }
    }

    /// Whether a transfer is in progress.
    fn is_running(&self) -> bool {
        self.bar
            .try_access()
            .is_some_and(|bar| bar.read32(regs::DMA_COMMAND) & regs::RUN != 0)
    }

    fn acknowledge(&self) {
        if let Some(bar) = self.bar.try_access() {
            bar.write32(bar.read32(regs::IRQ_STATUS), regs::IRQ_ACK);
        }
    }

    /// Starts the transfer of the next bytes of the region, or sets [`Trace::full`].
    fn next(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) {
        let region = transaction.region();
        let pos = region.head().advance(trace.written);
        let left = region.space().unwrap_or(u64::MAX);
        let left = usize::try_from(left.saturating_sub(trace.written)).unwrap_or(0);
        let offset = region.size().offset(pos);
        let within = offset % regs::MEMORY_SIZE;
        let max = left.min(regs::MEMORY_SIZE.saturating_sub(within));

        trace.len = 0;
        trace.full = max == 0;
        let Some((address, len)) = place(transaction.buffer(), offset) else {
            return;
        };
        let len = u32::try_from(len.min(max)).unwrap_or(0);
        let (Ok(address), Ok(within)) = (u32::try_from(address), u32::try_from(within)) else {
            return;
        };
        if len != 0 {
            trace.len = len;
            self.transfer(
                regs::MEMORY.wrapping_add(within),
                address,
                len,
                regs::FROM_DEVICE | regs::INTERRUPT,
            );
        }
    }

    /// Accounts for a complete transfer: adds its bytes to the trace and to the counter.
    fn done(transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) {
        let len = u64::from(trace.len);
        let aux::Parts {
            buffer, mut region, ..
        } = transaction.parts();

        trace.written = match buffer {
            Memory::Direct(_) => trace.written.saturating_add(len),
            Memory::Bounce(bounce) => {
                // `next()` has checked the space. If the device is gone, its bytes are lost.
                let _ = copy(&mut region, bounce, len);
                region.written()
            }
        };
        trace.len = 0;
        transaction.count(len);
    }
}

/// The memory that the device writes to.
enum Memory {
    /// The AUX area.
    Direct(aux::DmaMapping),
    /// Bounce memory for one transfer.
    Bounce(aux::CoherentBounce),
}

/// The DMA address of the byte at `offset`, and the number of contiguous bytes from there.
fn place(memory: &Memory, offset: usize) -> Option<(u64, usize)> {
    let mapping = match memory {
        Memory::Direct(mapping) => mapping,
        Memory::Bounce(bounce) => return Some((bounce.address(), bounce.size().get())),
    };
    let mut offset = u64::try_from(offset).ok()?;

    for chunk in mapping.chunks() {
        if let Some(left) = chunk.len().checked_sub(offset).filter(|&left| left != 0) {
            return Some((
                chunk.address().checked_add(offset)?,
                usize::try_from(left).ok()?,
            ));
        }
        offset = offset.checked_sub(chunk.len())?;
    }
    None
}

/// Copies the first `len` bytes of the bounce memory into the region.
fn copy(
    region: &mut aux::Region<'_>,
    bounce: &aux::CoherentBounce,
    len: u64,
) -> Result<(), aux::Full> {
    let len = usize::try_from(len).map_err(|_| aux::Full)?;
    let mut writer = region.reserve(len)?;

    writer.copy(bounce, Pos::new(0), len)?;
    writer.commit();
    Ok(())
}

/// The state of a transaction.
struct Trace {
    /// Bytes that the device has written in this transaction.
    written: u64,
    /// Length of the transfer in progress, in bytes; 0 without one.
    len: u32,
    /// Whether the region has no space left.
    full: bool,
}

perf::format! {
    /// Configuration of an event.
    struct Config {
        /// 1: the device writes to coherent bounce memory, from which the driver copies.
        bounce: config[0],
    }
}

#[vtable]
impl Pmu for Unit {
    type Config = Config;
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, Config>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Unit {
    type Buffer = Memory;
    type Trace = Trace;

    fn setup_aux(&self, event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Memory> {
        if event.config().bounce() != 0 {
            let size = Size::new(regs::MEMORY_SIZE).ok_or(EINVAL)?;
            return pages.bounce_coherent(size).map(Memory::Bounce);
        }
        pages.map_dma(DataDirection::FromDevice).map(Memory::Direct)
    }

    fn dma<'a>(&self, buffer: &'a Memory) -> Option<&'a aux::DmaMapping> {
        match buffer {
            Memory::Direct(mapping) => Some(mapping),
            Memory::Bounce(_) => None,
        }
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Trace> {
        let mut trace = Trace {
            written: 0,
            len: 0,
            full: false,
        };

        self.next(transaction, &mut trace);
        Ok(trace)
    }

    fn interrupt(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        trace: &mut Trace,
    ) -> aux::Next {
        // A stale interrupt of the previous transaction, or the transfer is still in progress.
        if trace.len == 0 || self.is_running() {
            return aux::Next::Continue;
        }

        Self::done(transaction, trace);
        let region = transaction.region();
        let end = region.head().advance(trace.written);
        if region.wakeup().is_some_and(|wakeup| end.reached(wakeup)) {
            return aux::Next::Flush;
        }
        self.next(transaction, trace);
        if trace.full {
            return aux::Next::Flush;
        }
        aux::Next::Continue
    }

    fn quiesce(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        mut trace: Trace,
    ) -> aux::Commit {
        let mut loss = match trace.full {
            true => aux::Loss::NoSpace { bytes: None },
            false => aux::Loss::None,
        };

        if trace.len != 0 {
            if (0..LOOKS).any(|_| !self.is_running()) {
                Self::done(transaction, &mut trace);
            } else {
                dev_err!(self.device, "a transfer does not end\n");
                loss = aux::Loss::Gap { bytes: None };
            }
        }
        aux::Commit::new(trace.written, loss)
    }
}
