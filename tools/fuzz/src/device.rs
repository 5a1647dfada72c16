// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile guest of the trace unit: any registers, tables, mappings and faults.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use traceunit::serve::{Engine, Shared};
use traceunit::source::{Packets, Sink, Source};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};

/// Length of an action in bytes: its kind, a small number, a larger one, and a value.
const ACTION: usize = 12;
const PAGE: u64 = 4096;
/// Number of pages that the guest has.
const PAGES: u16 = 32;
/// Maximum number of actions of an input. Further ones are ignored.
const MAX_ACTIONS: usize = 256;

/// Stands for QEMU: no CPU executes anything.
#[derive(Default)]
struct Idle(Mutex<Vec<Work>>);

type Work = Box<dyn FnOnce() + Send>;

impl Idle {
    /// Runs the queued work.
    fn work(&self) {
        let work = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for work in work {
            work();
        }
    }
}

impl Engine for Idle {
    fn is_whole(&self, _cpu: usize) -> bool {
        true
    }

    fn exclusively(&self, work: Work) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(work);
    }
}

/// The guest's memory. Pages that were never mapped for the device must stay as they are.
struct Guest {
    memory: File,
    mapped: Vec<bool>,
    written: Vec<u8>,
}

impl Guest {
    fn new() -> Option<Self> {
        let memory = tempfile::tempfile().ok()?;
        memory.set_len(u64::from(PAGES) * PAGE).ok()?;
        Some(Self {
            memory,
            mapped: vec![false; PAGES.into()],
            written: vec![0; usize::try_from(u64::from(PAGES) * PAGE).ok()?],
        })
    }

    fn write(&mut self, at: u64, value: u64) {
        let bytes = value.to_le_bytes();
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(place) = self.written.get_mut(from..from.saturating_add(8)) {
            place.copy_from_slice(&bytes);
            let _ = self.memory.write_all_at(&bytes, at);
        }
    }

    /// # Panics
    /// If the device has written to a page that was never mapped for it.
    fn check(&self) {
        let mut page = [0; 4096];
        for ((at, mapped), written) in (0..)
            .step_by(page.len())
            .zip(&self.mapped)
            .zip(self.written.chunks(page.len()))
        {
            if !mapped && self.memory.read_exact_at(&mut page, at).is_ok() {
                assert_eq!(page, written, "the page at {at:#x}");
            }
        }
    }
}

/// Runs the actions of a guest on the device.
///
/// # Panics
/// If the device reaches memory that is not mapped for it, or a register has an impossible value.
pub fn device(input: &[u8]) {
    let source = Arc::new(Source::new(Box::new(|| 7), [None, None]));
    let qemu = Arc::new(Idle::default());
    let mut device = Shared::new(source, qemu.clone());
    let Some(mut guest) = Guest::new() else {
        return;
    };
    for action in input.chunks_exact(ACTION).take(MAX_ACTIONS) {
        act(&mut device, &mut guest, action);
        qemu.work();
    }
    guest.check();
}

fn act(device: &mut Shared, guest: &mut Guest, action: &[u8]) {
    let &[what, small, low, high, ref value @ ..] = action else {
        return;
    };
    let large = u16::from_le_bytes([low, high]);
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(value) {
        *to = *from;
    }
    let value = u64::from_le_bytes(bytes);
    let some = bytes.get(..usize::from(small % 9)).unwrap_or_default();
    let mut to = [0; 16];
    let to = to.get_mut(..usize::from(small % 17)).unwrap_or_default();
    let region = match small >> 6 {
        0 | 1 => VFIO_PCI_BAR0_REGION_INDEX,
        2 => VFIO_PCI_BAR2_REGION_INDEX,
        _ => u32::from(small),
    };
    // QEMU reports an error. The guest does not see it.
    let _ = match what % 12 {
        // Registers, most of which exist.
        0 => device.region_write(
            VFIO_PCI_BAR0_REGION_INDEX,
            u64::from(large % 0x3100),
            &bytes,
        ),
        1 => device.region_write(region, u64::from(large) * 8 + value % 8, some),
        2 => device.region_read(region, u64::from(large) * 4, to),
        3 => device.region_write(VFIO_PCI_CONFIG_REGION_INDEX, u64::from(large % 300), some),
        4 => device.region_read(VFIO_PCI_CONFIG_REGION_INDEX, u64::from(large % 300), to),
        5 => {
            let pages = u16::from(small % 4) + 1;
            let first = large % (PAGES - 4);
            for page in first..first + pages {
                if let Some(mapped) = guest.mapped.get_mut(usize::from(page)) {
                    *mapped = true;
                }
            }
            let flags = DmaMapFlags::from_bits_truncate(u32::from(small >> 4));
            let fd = guest.memory.try_clone().ok().filter(|_| small != 0xff);
            let offset = u64::from(first) * PAGE;
            device.dma_map(
                flags,
                offset,
                value & !(PAGE - 1),
                u64::from(pages) * PAGE,
                fd,
            )
        }
        6 => {
            let flags = DmaUnmapFlags::from_bits_truncate(u32::from(small));
            device.dma_unmap(flags, value, u64::from(large))
        }
        7 | 8 => {
            let mut packets = Packets::default();
            let group = vec![small; usize::from(large % 700) + 1];
            for _ in 0..small % 16 {
                packets.add(&group);
            }
            device.put(usize::from(what % 3), &packets);
            Ok(())
        }
        9 => {
            guest.write(u64::from(large) * 8 % (u64::from(PAGES) * PAGE), value);
            Ok(())
        }
        10 => {
            let [start, count, ..] = bytes;
            let flags = u32::from(large);
            let (start, count) = (start.into(), count.into());
            device.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, start, count, Vec::new())
        }
        _ => device.reset(),
    };
    counts(device);
}

/// Checks that `DROPPED` is `GENERATED` less `WRITTEN`, unless all registers read as ones.
fn counts(device: &mut Shared) {
    let [generated, written, dropped] = [0x30, 0x38, 0x40].map(|register| {
        let mut bytes = [0; 8];
        let at = 0x1000 + register;
        let _ = device.region_read(VFIO_PCI_BAR0_REGION_INDEX, at, &mut bytes);
        u64::from_le_bytes(bytes)
    });
    let mute = [generated, written, dropped] == [u64::MAX; 3];
    assert!(mute || dropped == generated.wrapping_sub(written));
}

/// A guest that traces: memory, a table, a unit that fills it.
#[must_use]
pub fn seed() -> Vec<u8> {
    let mut out = Vec::new();
    let mut act = |what: u8, small: u8, large: u16, value: u64| {
        out.extend([what, small]);
        out.extend(large.to_le_bytes());
        out.extend(value.to_le_bytes());
    };
    // Enables memory and bus master.
    act(3, 2, 4, 6);
    // Four pages, which can be read and written, at 0x10000.
    act(5, 0x33, 0, 0x1_0000);
    // The table, in the first of them.
    act(9, 0, 0, 0x1_1000 | 1 << 2);
    act(9, 0, 1, 0x1_2000 | 1 << 2 | 1 << 4);
    // Masks, the table, an event of instructions.
    act(0, 0, 0x20, 0);
    act(0, 0, 0x1028, 0);
    act(0, 0, 0x1010, 0x1_0000);
    act(0, 0, 0x1000, 0x301);
    act(7, 9, 500, 0);
    act(2, 8, 0x1008 / 4, 0);
    act(7, 15, 600, 0);
    // The fault, and its argument.
    act(3, 4, 0x68, 3);
    act(3, 4, 0x64, 7);
    act(0, 0, 0x1000, 0x300);
    act(0, 0, 0x1018, 0);
    act(0, 0, 0x1020, 3);
    act(0, 0, 0x1000, 0x301);
    act(7, 3, 100, 0);
    act(6, 0, 0x4000, 0x1_0000);
    act(7, 15, 600, 0);
    act(11, 0, 0, 0);
    out
}
