// SPDX-License-Identifier: GPL-2.0

//! The driver that all hostile drivers are based on. It behaves correctly, except for the callbacks
//! that its [`Attack`] replaces.

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        SpinLock, //
    },
    time::Delta, //
};
use perf::{
    aux,
    context,
    filter,
    interrupt::Entry,
    pmu::Description,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

/// An open transaction of a hostile driver.
pub(crate) type Transaction<'a, A> = aux::Transaction<'a, Hostile<A>>;

/// Callbacks of a driver. The default ones behave correctly.
pub(crate) trait Attack: Sized + Send + Sync + 'static {
    /// The driver's state.
    fn new() -> Result<Self>;

    fn event_init(_driver: &Hostile<Self>) -> Result {
        Ok(())
    }

    fn event_dropped(_driver: &Hostile<Self>) {}

    fn setup_aux(
        _driver: &Hostile<Self>,
        _pages: &aux::Pages,
        _buffer: &mut Buffer<Self>,
    ) -> Result {
        Ok(())
    }

    fn buffer_dropped(_driver: &Hostile<Self>, _buffer: &mut Buffer<Self>) {}

    fn start(_driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        transaction.set_timer(Delta::from_millis(1));
        Ok(Trace::default())
    }

    fn tick(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        write(transaction)
    }

    fn interrupt(
        _driver: &Hostile<Self>,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        aux::Next::Continue
    }

    fn pause(
        _driver: &Hostile<Self>,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) {
    }

    fn resume(
        _driver: &Hostile<Self>,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) {
    }

    fn deferred(_driver: &Hostile<Self>) {}

    fn snapshot<'a>(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        sample.copy_written(transaction)
    }

    fn quiesce(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// The length of a record, in bytes.
pub(crate) const RECORD: usize = 64;

/// Writes one record. Requests a flush as a driver should.
pub(crate) fn write<A: Attack>(transaction: &mut Transaction<'_, A>) -> aux::Next {
    let mut region = transaction.region();
    let written = region.reserve(RECORD).and_then(|mut writer| {
        writer.put(&[b'h'; RECORD])?;
        writer.commit();
        Ok(())
    });

    if written.is_err() || region.wakeup_due() {
        aux::Next::Flush
    } else {
        aux::Next::Continue
    }
}

/// The state of a transaction, with interior mutability.
pub(crate) struct Trace {
    pub(crate) ticks: Atomic<u64>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            ticks: Atomic::new(0),
        }
    }
}

/// A driver, and objects that a driver should not keep.
pub(crate) struct Hostile<A: Attack> {
    pub(crate) attack: A,
    /// The driver's own registration.
    registration: Slot<aux::Registration<Self>>,
    /// The entry to the driver's own transactions.
    entry: Slot<Entry<Self>>,
    /// The entry to the transactions of another PMU of the same driver.
    peer: Slot<Entry<Self>>,
    /// The number of callbacks so far.
    pub(crate) calls: Atomic<u64>,
}

/// A slot that can be emptied in any context.
pub(crate) struct Slot<V>(Pin<KBox<SpinLock<Option<V>>>>);

impl<V: Unpin> Slot<V> {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(KBox::pin_init(new_spinlock!(None), GFP_KERNEL)?))
    }

    /// Takes the value, unless another context holds the lock.
    pub(crate) fn take(&self) -> Option<V> {
        self.0.try_lock()?.take()
    }

    /// Stores `value`, and returns the old value. Returns `value` if another context holds the
    /// lock.
    pub(crate) fn put(&self, value: V) -> Option<V> {
        match self.0.try_lock() {
            Some(mut slot) => slot.replace(value),
            None => Some(value),
        }
    }

    /// A copy of the value.
    pub(crate) fn cloned(&self) -> Option<V>
    where
        V: Clone,
    {
        self.0.try_lock()?.clone()
    }
}

impl<A: Attack> Hostile<A> {
    /// Registers the driver as `name`. The driver keeps its own registration.
    // Not inlined: the function that registers all drivers would get a frame larger than the stack.
    #[inline(never)]
    pub(crate) fn register(name: &CStr) -> Result<Armed<A>> {
        let driver = Self {
            attack: A::new()?,
            registration: Slot::new()?,
            entry: Slot::new()?,
            peer: Slot::new()?,
            calls: Atomic::new(0),
        };
        let registration = aux::Registration::new(Description::new(name).filters(2), driver)?;
        let entry = registration.entry();
        let armed = Armed(entry.clone());

        drop(armed.driver().entry.put(entry));
        drop(armed.driver().registration.put(registration));
        Ok(armed)
    }

    /// Drops the driver's registration in this context.
    pub(crate) fn unregister(&self) {
        drop(self.registration.take());
    }

    /// Takes the driver's registration.
    pub(crate) fn take_registration(&self) -> Option<aux::Registration<Self>> {
        self.registration.take()
    }

    /// The entry to the driver's own transactions.
    pub(crate) fn entry(&self) -> Option<Entry<Self>> {
        self.entry.cloned()
    }

    /// The entry to the transactions of the driver's twin.
    pub(crate) fn peer(&self) -> Option<Entry<Self>> {
        self.peer.cloned()
    }

    /// Counts a callback. Returns the number of earlier ones.
    pub(crate) fn call(&self) -> u64 {
        self.calls.fetch_add(1, Relaxed)
    }
}

/// A registered hostile driver. It is unregistered when this is dropped.
pub(crate) struct Armed<A: Attack>(Entry<Hostile<A>>);

impl<A: Attack> Armed<A> {
    pub(crate) fn driver(&self) -> &Hostile<A> {
        self.0.driver()
    }

    /// Gives each of two PMUs the entry to the transactions of the other.
    pub(crate) fn introduce(&self, other: &Self) {
        drop(self.driver().peer.put(other.0.clone()));
        drop(other.driver().peer.put(self.0.clone()));
    }
}

impl<A: Attack> Drop for Armed<A> {
    fn drop(&mut self) {
        let driver = self.driver();

        // The driver refers to itself: the objects that it keeps are dropped here, or never.
        driver.unregister();
        drop(driver.entry.take());
        drop(driver.peer.take());
    }
}

/// The state of an event.
pub(crate) struct EventState<A: Attack>(Option<Entry<Hostile<A>>>);

impl<A: Attack> Drop for EventState<A> {
    fn drop(&mut self) {
        if let Some(entry) = self.0.take() {
            A::event_dropped(entry.driver());
        }
    }
}

/// The state of an AUX area.
pub(crate) struct Buffer<A: Attack> {
    entry: Option<Entry<Hostile<A>>>,
    pub(crate) registration: Option<aux::Registration<Hostile<A>>>,
    pub(crate) mapping: Option<aux::VirtualMapping>,
    pub(crate) bounce: Option<aux::Bounce>,
    pub(crate) scratch: [u64; 4],
}

impl<A: Attack> Drop for Buffer<A> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            A::buffer_dropped(entry.driver(), self);
        }
    }
}

#[vtable]
impl<A: Attack> Pmu for Hostile<A> {
    type Config = ();
    type Event = EventState<A>;
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result<EventState<A>> {
        // Created before the call that may fail, because its drop is an attack too.
        let state = EventState(self.entry());

        A::event_init(self)?;
        Ok(state)
    }

    /// Accepts any filters, also more than it has declared, if the framework passes them.
    fn filters_validate(_filters: &[filter::AddrFilter]) -> Result {
        Ok(())
    }
}

#[vtable]
impl<A: Attack> AuxPmu for Hostile<A> {
    type Buffer = Buffer<A>;
    type Trace = Trace;

    fn setup_aux(&self, _event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Buffer<A>> {
        let mut buffer = Buffer {
            entry: self.entry(),
            registration: None,
            mapping: None,
            bounce: None,
            scratch: [0; 4],
        };

        A::setup_aux(self, pages, &mut buffer)?;
        Ok(buffer)
    }

    fn start(&self, transaction: &mut Transaction<'_, A>) -> Result<Trace> {
        A::start(self, transaction)
    }

    fn quiesce(&self, transaction: &mut Transaction<'_, A>, trace: Trace) -> aux::Commit {
        A::quiesce(self, transaction, trace)
    }

    fn tick(&self, transaction: &mut Transaction<'_, A>, trace: &mut Trace) -> aux::Next {
        A::tick(self, transaction, trace)
    }

    fn interrupt(&self, transaction: &mut Transaction<'_, A>, trace: &mut Trace) -> aux::Next {
        A::interrupt(self, transaction, trace)
    }

    fn pause(&self, transaction: &mut Transaction<'_, A>, trace: &mut Trace) {
        A::pause(self, transaction, trace);
    }

    fn resume(&self, transaction: &mut Transaction<'_, A>, trace: &mut Trace) {
        A::resume(self, transaction, trace);
    }

    fn deferred(&self, _cpu: &context::Cpu) {
        A::deferred(self);
    }

    fn snapshot<'a>(
        &self,
        transaction: &mut Transaction<'_, A>,
        _trace: &mut Trace,
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        A::snapshot(self, transaction, sample)
    }
}
