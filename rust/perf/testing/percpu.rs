// SPDX-License-Identifier: GPL-2.0

//! A per-CPU interrupt: one handler, which runs on all CPUs at the same time.
//!
//! No interrupt controller of x86 has such interrupts, so `request_percpu_irq()` fails with
//! [`EINVAL`] there. The test calls the handler as `handle_percpu_devid_irq()` does: in hard
//! interrupt context on each CPU, with the cookie of that CPU.

use super::{
    model::Model,
    Bench,
    Setup, //
};
use crate::{
    aux::{
        self,
        cpu::CpuState, //
    },
    bindings,
    context,
    interrupt::Entry,
    pmu::Description,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};
use core::{
    ffi::c_void,
    ptr, //
};
use kernel::{
    cpu::nr_cpu_ids,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// A driver whose unit writes a word, the number of its CPU, and raises its interrupt. Counts the
/// interrupts for which a transaction was open.
struct Unit(Arc<Atomic<u32>>);

#[vtable]
impl Pmu for Unit {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Unit {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
        Ok(())
    }

    fn interrupt(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        _trace: &mut (),
    ) -> aux::Next {
        let cpu = u64::from(transaction.cpu().id());
        let written = transaction.region().reserve(8).and_then(|mut writer| {
            writer.put(&cpu.to_le_bytes())?;
            writer.commit();
            Ok(())
        });

        self.0.fetch_add(1, Relaxed);
        match written {
            Ok(()) => aux::Next::Continue,
            Err(aux::Full) => aux::Next::Flush,
        }
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// The cookie of a handler: access to the open transaction of a CPU.
trait Cookie: Sync {
    fn interrupt(&self, cpu: &context::Cpu) -> bool;
}

impl Cookie for Entry<Unit> {
    fn interrupt(&self, _cpu: &context::Cpu) -> bool {
        Entry::interrupt(self)
    }
}

/// A bench has no [`Entry`]. This does the same.
impl Cookie for CpuState<Unit, Model> {
    fn interrupt(&self, cpu: &context::Cpu) -> bool {
        // SAFETY: The bench keeps it in a pinned box, and the test keeps the bench.
        unsafe { Pin::new_unchecked(self) }.interrupt(cpu)
    }
}

/// The interrupt: a cookie for each CPU, by its number, and how often a handler has handled it.
struct Percpu<'a> {
    cookies: &'a [&'a dyn Cookie],
    handled: Atomic<u32>,
}

impl Percpu<'_> {
    /// It arrives on all CPUs at the same time.
    fn arrives(&self) {
        // SAFETY: `handle()` is called with `self` on each CPU that is online, before this returns.
        unsafe {
            bindings::on_each_cpu_cond_mask(
                None,
                Some(handle),
                ptr::from_ref(self).cast_mut().cast(),
                true,
                &raw const bindings::__cpu_online_mask,
            )
        };
    }
}

/// The handler, on each CPU.
///
/// # Safety
///
/// `percpu` must point to a [`Percpu`] that stays until this has returned on all CPUs.
unsafe extern "C" fn handle(percpu: *mut c_void) {
    // SAFETY: The caller guarantees that this points to a `Percpu`, which stays. Only shared
    // references to it exist.
    let percpu = unsafe { &*percpu.cast_const().cast::<Percpu<'_>>() };
    // SAFETY: `on_each_cpu_cond_mask()` calls with interrupts off, until this returns.
    let cpu = unsafe { context::Cpu::current() };
    let cookie = usize::try_from(cpu.id()).map(|cpu| percpu.cookies.get(cpu));

    if let Ok(Some(cookie)) = cookie {
        if cookie.interrupt(&cpu) {
            percpu.handled.fetch_add(1, Relaxed);
        }
    }
}

#[kunit_tests(rust_perf_percpu_interrupt)]
mod cases {
    use super::*;

    const TIMES: u32 = 100;

    /// Each CPU's handler reaches the transaction of its own CPU.
    #[test]
    fn each_cpu_has_its_own_transaction() -> Result {
        let calls = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let mut benches = KVec::new();

        for cpu in 0..nr_cpu_ids() {
            let setup = Setup {
                cpu: Some(cpu),
                ..Setup::default()
            };
            benches.push(Bench::new(Unit(calls.clone()), &setup)?, GFP_KERNEL)?;
        }
        for bench in &mut benches {
            bench.add()?;
        }

        let mut cookies = KVec::<&dyn Cookie>::new();
        for bench in &benches {
            cookies.push(&*bench.state, GFP_KERNEL)?;
        }
        let percpu = Percpu {
            cookies: &cookies,
            handled: Atomic::new(0),
        };
        for _ in 0..TIMES {
            percpu.arrives();
        }
        let handled = percpu.handled.load(Relaxed);
        drop(cookies);

        assert_eq!(handled, TIMES * nr_cpu_ids());
        assert_eq!(calls.load(Relaxed), TIMES * nr_cpu_ids());
        for (cpu, bench) in (0u64..).zip(&mut benches) {
            bench.del();
            let bytes = bench.read()?;
            let own = bytes
                .chunks_exact(8)
                .filter(|word| *word == cpu.to_le_bytes());

            assert_eq!(own.count(), 100);
            assert_eq!(bench.head(), 800);
            assert!(bench.violation().is_none());
        }
        Ok(())
    }

    /// One [`Entry`] is the cookie of all CPUs. Without a transaction it does nothing, and it may
    /// outlive the PMU.
    #[test]
    fn entry_is_for_all_cpus() -> Result {
        let calls = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let unit = Unit(calls.clone());
        let pmu = aux::Registration::new(Description::new(c"rust_perf_percpu"), unit)?;
        let entry = pmu.entry();
        let mut cookies = KVec::<&dyn Cookie>::new();

        for _ in 0..nr_cpu_ids() {
            cookies.push(&entry, GFP_KERNEL)?;
        }
        let percpu = Percpu {
            cookies: &cookies,
            handled: Atomic::new(0),
        };
        percpu.arrives();
        assert_eq!(percpu.handled.load(Relaxed), nr_cpu_ids());
        drop(pmu);
        percpu.arrives();
        assert_eq!(percpu.handled.load(Relaxed), 2 * nr_cpu_ids());
        assert_eq!(calls.load(Relaxed), 0);
        Ok(())
    }
}
