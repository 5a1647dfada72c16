// SPDX-License-Identifier: GPL-2.0

//! A transaction of a CPU, from `perf_aux_output_begin()` to `perf_aux_output_end()`.

use super::{
    is_paused,
    CpuState,
    Failure,
    Inner, //
};
use crate::{
    aux::{
        buffer::{
            Buffer,
            OpenBuffer, //
        },
        core::{
            Core,
            Refusal, //
        },
        cpu::report::itrace_started,
        pages::Mode,
        region::Extent,
        ring::{
            Claim,
            Refused, //
        },
        transaction::{
            Commit,
            Open,
            Transaction, //
        },
        AuxPmu,
        Loss, //
    },
    bindings,
    context,
    event::Event, //
};
use auxcore::ring::Pos;
use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::barrier, //
};

impl<T: AuxPmu, C: Core> Inner<T, C> {
    /// Opens a transaction and starts the unit. To be called while none is open.
    #[inline(never)]
    pub(super) fn try_begin(
        &mut self,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
    ) -> Result<(), Failure> {
        let event = self.event.ok_or(Failure::Busy)?;

        // A driver that flushes from NMI keeps the filters that it had: perf's list has a lock.
        if state.info.filters && !cpu.is_nmi() {
            // SAFETY: The event is live, by the type invariant; this is its CPU with interrupts off
            // and not in NMI, and no transaction is open, so the driver does not read the filters.
            unsafe { bindings::perf_event_addr_filters_sync(event.as_ptr()) };
        }

        // SAFETY: The event is live, by the type invariant.
        let key = unsafe { C::ring(event) };
        if key.is_null() {
            return Err(Failure::NoRing);
        }
        // SAFETY: Interrupts are off, by the invariant of `Cpu`, until the callback has returned.
        // Until then the claim is dropped, or a transaction is open on the ring buffer. `commit()`
        // drops it in the callback that ends the transaction.
        let claim = unsafe { Claim::new(key, state.info.id, &mut self.cache) };
        let claim = claim.map_err(|refused| match refused {
            Refused::NotMapped => Failure::NotMapped,
            Refused::Foreign => Failure::Foreign,
            Refused::InUse => Failure::InUse,
        })?;

        // SAFETY:
        // - No transaction is open: this is called in no other phase than `Idle` and `Counting`.
        // - The event is live, by the type invariant, and this is its CPU, since `add()` was called
        //   here; interrupts are off, by the invariant of `Cpu`.
        let private = unsafe { C::begin(&mut self.handle, event) }.map_err(|e| match e {
            Refusal::NotMapped => Failure::NotMapped,
            Refusal::NoSpace => Failure::NoSpace,
        })?;
        if private.as_ptr() != claim.private() || self.handle.ring() != key {
            // User space has redirected the event to another ring buffer since `C::ring()` above.
            //
            // SAFETY: `C::begin()` has opened a transaction on the handle, on this CPU. No byte of
            // it is published, so none must be stored.
            unsafe { C::end(&mut self.handle, 0) };
            return Err(Failure::NotMapped);
        }

        // SAFETY: A transaction is open on the area of `claim`, whose `aux_priv` is one of this
        // PMU: a `Buffer<T>`. `commit()` or the error path below ends it, and then drops this.
        let buffer = unsafe { OpenBuffer::<T>::new(claim, private.cast::<Buffer<T>>()) };
        self.stop_counting(state, cpu);
        // INVARIANT: The transaction is open.
        let open = self.open.insert(Open {
            extent: Extent::new(&self.handle, buffer.pages()),
            buffer,
            timer: None,
        });
        if T::HAS_DMA {
            if let Some(mapping) = state.driver().dma(open.buffer.data()) {
                mapping.sync_for_device();
            }
        }

        // SAFETY: The event is live, by the type invariant, and its `destroy()` does not run before
        // `del()`.
        let traced = unsafe { Event::<T>::from_raw(event) };
        // SAFETY: `C::begin()` has opened a transaction on `handle`, on this CPU, and nothing has
        // ended it.
        let mut transaction = unsafe {
            Transaction::new(
                &traced,
                cpu,
                open,
                &mut self.handle,
                &mut self.deferred,
                C::skip,
            )
        };
        match state.driver().start(&mut transaction) {
            Ok(mut trace) => {
                // A driver that can pause starts paused.
                self.paused = T::HAS_PAUSE && is_paused(event);
                if T::HAS_PAUSE && !self.paused {
                    state.driver().resume(&mut transaction, &mut trace);
                }
                // INVARIANT: The transaction is open. Counting was stopped.
                self.trace = Some(trace);
                if state.info.itrace {
                    itrace_started(event);
                }
                Ok(())
            }
            Err(error) => {
                // INVARIANT: The transaction ends here.
                let open = self.open.take();

                // SAFETY: `C::begin()` has opened a transaction on the handle, on this CPU. No byte
                // of it is published, so none must be stored.
                unsafe { C::end(&mut self.handle, 0) };
                // Drops the claim after the transaction has ended: the next writer must not find it
                // open.
                drop(open);
                Err(Failure::Refused(error))
            }
        }
    }

    /// Quiesces the unit and commits what it wrote. True if perf has queued the disable of the
    /// event.
    #[inline]
    pub(super) fn commit(
        &mut self,
        state: &CpuState<T, C>,
        trace: T::Trace,
        cpu: &context::Cpu,
    ) -> bool {
        let (Some(event), Some(open)) = (self.event, self.open.as_mut()) else {
            return false;
        };
        // SAFETY: The event is live, by the type invariant, and its `destroy()` does not run before
        // `del()`.
        let traced = unsafe { Event::<T>::from_raw(event) };
        // SAFETY: `open` is there: a transaction is open on `handle`, begun on this CPU with `C`,
        // by the type invariant. It is ended below.
        let mut transaction = unsafe {
            Transaction::new(
                &traced,
                cpu,
                open,
                &mut self.handle,
                &mut self.deferred,
                C::skip,
            )
        };
        let mut commit = state.driver().quiesce(&mut transaction, trace);

        // perf does not check the length. A driver that claims more than its space has written
        // where it must not. Only bytes within the space are published.
        let mode = open.buffer.pages().mode();
        let limit = open.extent.limit(commit.len);
        if limit < commit.len {
            state.stats.overclaimed.add(1);
            commit.losses = commit.losses.and(Loss::Gap { bytes: None });
        }
        commit.len = limit;
        // In overwrite mode perf takes the head from the driver.
        let end = open.extent.head().advance(limit);
        let end = match mode {
            Mode::Normal => None,
            Mode::Overwrite if commit.is_offset => {
                let size = open.buffer.pages().size();

                if limit != 0 {
                    commit.len = size.len();
                }
                Some(size.first(end))
            }
            // Monotonic, so that a reader knows by arithmetic how often the area wrapped.
            Mode::Overwrite => Some(end),
        };

        if T::HAS_DMA {
            if let Some(mapping) = state.driver().dma(open.buffer.data()) {
                mapping.sync_for_cpu();
            }
        }
        // (B): orders the stores of trace before the store of `aux_head` in
        // `perf_aux_output_end()`. Pairs with (C), user space's load barrier between its load of
        // `aux_head` and its loads of trace. What a device stores is in memory when `quiesce()`
        // returns.
        barrier::smp_mb(barrier::Write);
        // INVARIANT: The transaction ends here.
        let open = self.open.take();
        let truncated = if commit.losses.any() {
            self.publish_losses(state, event, mode, end, commit)
        } else {
            self.publish(state, event, end, commit.len, commit.format.flags());
            false
        };
        // Drops the claim last: the next writer of this AUX area must not find the transaction
        // open.
        drop(open);
        truncated
    }

    /// Ends the transaction, with losses. True if perf has queued the disable of the event.
    #[cold]
    fn publish_losses(
        &mut self,
        state: &CpuState<T, C>,
        event: NonNull<bindings::perf_event>,
        mode: Mode,
        end: Option<Pos>,
        commit: Commit,
    ) -> bool {
        let flags = commit.losses.flags(mode);

        self.publish(state, event, end, commit.len, flags | commit.format.flags());
        state.report_losses(event, &commit.losses, flags);
        flags & u64::from(bindings::PERF_AUX_FLAG_TRUNCATED) != 0
    }

    /// Ends the transaction. `end`: in overwrite mode, the head that perf publishes.
    #[inline]
    fn publish(
        &mut self,
        state: &CpuState<T, C>,
        event: NonNull<bindings::perf_event>,
        end: Option<Pos>,
        len: u64,
        flags: u64,
    ) {
        let head = self.handle.head();

        if flags != 0 {
            // SAFETY: A transaction is open on the handle: the caller has it.
            unsafe { C::flag(&mut self.handle, flags) };
        }
        if let Some(end) = end {
            self.handle.set_head(end);
        }
        // SAFETY:
        // - A transaction is open on the handle, begun on this CPU: the caller has it.
        // - `len` is within its space: the caller has limited it, or it is the area in overwrite
        //   mode; (B) stands in the caller.
        unsafe { C::end(&mut self.handle, len) };

        state.report_commit(event, head.get(), len, flags);
    }
}
