// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Values of virtual CPUs, behind biased locks that are cheap for the virtual CPU.
//!
//! A virtual CPU takes its lock at each block that it executes; other threads take it seldom. So the other threads pay: they make the
//! kernel execute a full barrier in each thread of the process (`membarrier()`). The virtual CPU then needs no barrier instruction. The
//! lock has two flags, as in Peterson's algorithm:
//!
//! | virtual CPU | another thread |
//! |---|---|
//! | `inside` = 1 | `wanted` = 1 |
//! | light barrier | heavy barrier |
//! | has the lock if `wanted` is 0 | has the lock when `inside` is 0 |

use crate::VirtualCpu;
use rustix::thread::{membarrier, MembarrierCommand};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{compiler_fence, fence, AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Registers this process for `membarrier()`.
///
/// # Errors
///
/// The kernel does not support it.
pub fn prepare() -> Result<(), String> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited)
        .map_err(|error| format!("this kernel has no membarrier(): {error}"))
}

/// A full barrier when paired with [`heavy()`] of another thread.
#[inline]
fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// A full barrier in all threads.
fn heavy() {
    compiler_fence(Ordering::SeqCst);
    // This cannot fail after `prepare()`.
    let _ = membarrier(MembarrierCommand::PrivateExpedited);
    compiler_fence(Ordering::SeqCst);
}

/// A value for each virtual CPU. [`prepare()`] must be called before the first one is accessed.
#[derive(Debug)]
pub struct PerCpu<T>(Box<[Biased<T>]>);

impl<T> PerCpu<T> {
    /// Creates the values, one for each CPU.
    pub fn new(values: impl IntoIterator<Item = T>) -> Self {
        Self(values.into_iter().map(Biased::new).collect())
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Locks the value of the calling virtual CPU.
    #[inline]
    pub fn here<'a>(&'a self, cpu: &'a mut VirtualCpu) -> Option<Inside<'a, T>> {
        let biased = self.0.get(cpu.index())?;
        // SAFETY: This is the thread of the CPU, and a CPU has one thread at a time, by the type. The thread does not hold the lock
        // already, as that would borrow `cpu`.
        Some(unsafe { biased.enter() })
    }

    /// Locks the value of a virtual CPU, on another thread.
    pub fn of(&self, cpu: usize) -> Option<Outside<'_, T>> {
        self.0.get(cpu).map(Biased::lock)
    }
}

/// A value that a virtual CPU shares with other threads.
#[derive(Debug, Default)]
struct Biased<T> {
    /// Whether the virtual CPU holds the lock, or tries to take it.
    inside: AtomicBool,
    /// Whether another thread holds the lock, or waits for it.
    wanted: AtomicBool,
    /// Serialises the other threads.
    others: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: The lock gives the value to one thread at a time, and the value is `Send`.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    /// A lock with this value.
    const fn new(value: T) -> Self {
        Self {
            inside: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            others: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock for the virtual CPU.
    ///
    /// # Safety
    ///
    /// Two threads must not call this at the same time. A thread that holds the lock must not call it.
    #[inline]
    unsafe fn enter(&self) -> Inside<'_, T> {
        self.inside.store(true, Ordering::Relaxed);
        light();
        if self.wanted.load(Ordering::Relaxed) {
            self.enter_late();
        }
        // Pairs with the release of `wanted` by `Outside`.
        fence(Ordering::Acquire);
        Inside { of: self }
    }

    #[cold]
    fn enter_late(&self) {
        loop {
            self.inside.store(false, Ordering::Release);
            while self.wanted.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            self.inside.store(true, Ordering::Relaxed);
            light();
            if !self.wanted.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Takes the lock on a thread other than the virtual CPU's.
    fn lock(&self) -> Outside<'_, T> {
        let turn = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(true, Ordering::Relaxed);
        heavy();
        // Pairs with the release of `inside`.
        while self.inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Outside {
            of: self,
            _turn: turn,
        }
    }
}

/// The lock, held by the virtual CPU.
#[derive(Debug)]
pub struct Inside<'a, T> {
    of: &'a Biased<T>,
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `inside` is set, and `wanted` was not when that was visible to all: no `Outside` is
        // there until this is dropped. There is no other `Inside`, by the requirement of `enter()`.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `inside` is set, and `wanted` was not when that was visible to all: no `Outside` is
        // there until this is dropped. There is no other `Inside`, by the requirement of `enter()`.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.of.inside.store(false, Ordering::Release);
    }
}

/// The lock, held by another thread.
#[derive(Debug)]
pub struct Outside<'a, T> {
    of: &'a Biased<T>,
    _turn: MutexGuard<'a, ()>,
}

impl<T> Deref for Outside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `wanted` is set, and `inside` was clear after that was visible to all: no `Inside` is
        // there until this is dropped. There is no other `Outside`, by the mutex.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Outside<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `wanted` is set, and `inside` was clear after that was visible to all: no `Inside` is
        // there until this is dropped. There is no other `Outside`, by the mutex.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for Outside<'_, T> {
    fn drop(&mut self) {
        self.of.wanted.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        prepare().unwrap();
        let value = Biased::new((0u64, 0u64));
        let add = |pair: &mut (u64, u64)| {
            assert_eq!(pair.0, pair.1);
            pair.0 += 1;
            std::hint::black_box(&mut *pair);
            pair.1 += 1;
        };
        let done = AtomicBool::new(false);
        let total = std::thread::scope(|scope| {
            let others = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut count = 0;
                    while !done.load(Ordering::Relaxed) || count < 1000 {
                        add(&mut value.lock());
                        count += 1;
                    }
                    count
                })
            });
            let count = 1_000_000;
            for _ in 0..count {
                // SAFETY: Only this thread calls `enter()`, and it drops the lock before the next call.
                let mut inside = unsafe { value.enter() };
                add(&mut inside);
            }
            done.store(true, Ordering::Relaxed);
            let others = others.map(|other| other.join().unwrap());
            count + others.iter().sum::<u64>()
        });
        assert_eq!(*value.lock(), (total, total));
    }
}
