// SPDX-License-Identifier: GPL-2.0

//! One object for each CPU that can ever come online.

use crate::{
    bindings,
    context, //
};
use core::{
    alloc::Layout,
    mem::MaybeUninit, //
};
use kernel::{
    alloc::{
        allocator::Kmalloc,
        Allocator,
        NumaNode, //
    },
    prelude::*, //
};

/// A pinned `S` for each possible CPU, in memory of the CPU's node.
///
/// The alignment of `S` decides whether two CPUs share a cache line.
pub(crate) struct PerCpu<S> {
    objects: KVec<Pin<KBox<S>>>,
}

impl<S> PerCpu<S> {
    /// Makes the objects. `init` gets the number of the CPU.
    pub(crate) fn new<I: PinInit<S, Error>>(init: impl Fn(u32) -> I) -> Result<Self> {
        // SAFETY: `nr_cpu_ids` is written at boot only, before modules are loaded.
        let count = unsafe { bindings::nr_cpu_ids };
        let mut objects = KVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;

        for cpu in 0..count {
            let object = on_node::<S>(cpu)?.write_pin_init(init(cpu))?;

            objects.push(object, GFP_KERNEL)?;
        }
        Ok(Self { objects })
    }

    /// The object of this CPU.
    ///
    /// [`None`] does not occur: CPU numbers are below `nr_cpu_ids`.
    #[inline]
    pub(crate) fn this(&self, cpu: &context::Cpu) -> Option<Pin<&S>> {
        self.get(cpu.id())
    }

    /// The object of the CPU with this number.
    #[inline]
    pub(crate) fn get(&self, cpu: u32) -> Option<Pin<&S>> {
        let id = usize::try_from(cpu).ok()?;

        self.objects.get(id).map(|object| object.as_ref())
    }

    /// All objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Pin<&S>> {
        self.objects.iter().map(|object| object.as_ref())
    }
}

/// Memory for an `S` on the node of `cpu`.
fn on_node<S>(cpu: u32) -> Result<KBox<MaybeUninit<S>>> {
    // kmalloc() aligns to the largest power of two that divides the size.
    let layout = Layout::new::<S>().pad_to_align();
    // SAFETY: `cpu` is below `nr_cpu_ids`. A CPU that is not possible has no node.
    let node = unsafe { bindings::rust_perf_cpu_to_node(cpu) };
    let node = NumaNode::new(node).unwrap_or(NumaNode::NO_NODE);
    let memory = Kmalloc::alloc(layout, GFP_KERNEL, node)?;

    // SAFETY:
    // - The memory is from `Kmalloc`, with the layout of `S`, and nothing else refers to it.
    // - Uninitialised memory is a valid `MaybeUninit<S>`.
    Ok(unsafe { KBox::from_raw(memory.as_ptr().cast()) })
}
