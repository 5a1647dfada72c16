// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cases of devices that write to the AUX area by DMA and raise interrupts.

mod edu;
mod kernel;
pub mod sink;
mod trace_unit;

use crate::attack::{attack, Attack, Named};
use edu::gone::{removed, unbound, unplugged};
use edu::{bounce, bounced, dma, forwarded, moved, stops, translated};

/// The cases for each guest.
pub const ALL: [Attack; 7] = [
    attack("device: DMA into the AUX area", dma),
    attack("device: DMA into coherent bounce memory", bounce),
    attack("device: stop against the interrupt", stops),
    attack("device: an interrupt on another CPU", forwarded),
    attack("device: unbound while it is traced", unbound),
    attack("device: removed while it is traced", removed),
    attack("CPU offline moves the events of a unit for all CPUs", moved),
];

/// The cases for a guest whose device is behind an IOMMU and can be unplugged.
const IOMMU: [Attack; 5] = [
    attack("device, IOMMU: DMA into the AUX area", || translated(dma)),
    attack("device, IOMMU: DMA into coherent bounce memory", || {
        translated(bounce)
    }),
    attack("device, IOMMU: stop against the interrupt", || {
        translated(stops)
    }),
    attack("device, IOMMU: unbound while it is traced", || {
        translated(unbound)
    }),
    attack("device, IOMMU: unplugged while it is traced", || {
        translated(unplugged)
    }),
];

/// The cases for a guest where swiotlb bounces all DMA.
const SWIOTLB: [Attack; 1] = [attack(
    "device, swiotlb: an AUX area that would be bounced is refused",
    bounced,
)];

/// Where the device is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Machine {
    /// Behind an IOMMU.
    Iommu,
    /// Where all DMA is bounced.
    Swiotlb,
    /// With the trace unit.
    TraceUnit,
    /// With the trace unit behind an IOMMU, in a slot.
    TraceUnitIommu,
}

impl Machine {
    /// The cases for a guest with this device.
    pub fn cases(self) -> Vec<Named> {
        match self {
            Self::Iommu => Attack::named(&IOMMU).collect(),
            Self::Swiotlb => Attack::named(&SWIOTLB).collect(),
            Self::TraceUnit => trace_unit::cases::all(),
            Self::TraceUnitIommu => trace_unit::cases::translated(),
        }
    }
}
