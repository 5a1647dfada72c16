// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How many instructions each call of a function takes, between two markers.

use crate::record::{Marker, CPUS};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Two functions, by their addresses. The guest passes them with [`Marker::Begin`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Functions {
    /// The function whose calls are counted.
    pub outer: u64,
    /// A function that some of these calls call.
    pub inner: u64,
}

/// The state of a CPU that is about to execute a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The address of the block.
    pub at: u64,
    /// The stack pointer.
    pub stack: u64,
    /// Number of kernel instructions that the CPU has executed before.
    pub instructions: u64,
}

/// A call that has not returned.
#[derive(Debug, Clone, Copy)]
struct Call {
    /// Address of the return address. When the call has returned, the stack pointer is above it.
    stack: u64,
    /// Number of instructions before the call.
    before: u64,
    /// How often it has called the inner function.
    inner: u64,
    /// Whether an interrupt or an exception was taken during the call.
    is_interrupted: bool,
}

/// The calls of a function.
#[derive(Debug)]
pub struct Calls {
    is_open: AtomicBool,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    number: u32,
    functions: Functions,
    open: [Option<Call>; CPUS],
    /// Number of calls, by their instructions and by how often they called the inner function.
    returned: BTreeMap<(u64, u64), u64>,
    interrupted: u64,
}

impl Default for Calls {
    fn default() -> Self {
        Self::new()
    }
}

impl Calls {
    /// Creates the counts, with no window open.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            is_open: AtomicBool::new(false),
            window: Mutex::new(Window {
                number: 0,
                functions: Functions { outer: 0, inner: 0 },
                open: [None; CPUS],
                returned: BTreeMap::new(),
                interrupted: 0,
            }),
        }
    }

    /// Whether calls are counted now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a CPU is about to execute a block of the kernel.
    pub fn executes(&self, cpu: usize, place: Place) {
        let window = &mut *self.lock();
        let Some(open) = window.open.get_mut(cpu) else {
            return;
        };
        if let Some(call) = open.filter(|call| place.stack > call.stack) {
            *open = None;
            if call.is_interrupted {
                window.interrupted += 1;
            } else {
                let took = place.instructions.saturating_sub(call.before);
                *window.returned.entry((took, call.inner)).or_default() += 1;
            }
        }
        if place.at == window.functions.outer {
            *open = Some(Call {
                stack: place.stack,
                before: place.instructions,
                inner: 0,
                is_interrupted: false,
            });
        } else if place.at == window.functions.inner {
            if let Some(call) = open {
                call.inner += 1;
            }
        }
    }

    /// Records that a CPU takes an interrupt or an exception.
    pub fn is_interrupted(&self, cpu: usize) {
        if !self.is_open() {
            return;
        }
        if let Some(Some(call)) = self.lock().open.get_mut(cpu) {
            call.is_interrupted = true;
        }
    }

    /// Records that the guest executes a marker. Returns the report at the end of a window.
    pub fn mark(&self, marker: Marker, functions: Functions) -> Option<String> {
        let window = &mut *self.lock();
        let was_open = self
            .is_open
            .swap(marker == Marker::Begin, Ordering::Relaxed);
        match marker {
            Marker::Begin => {
                *window = Window {
                    number: window.number + 1,
                    functions,
                    open: [None; CPUS],
                    returned: BTreeMap::new(),
                    interrupted: 0,
                };
                None
            }
            Marker::End => was_open.then(|| window.report()),
        }
    }
}

impl Window {
    /// The report, as lines of words:
    ///
    /// ```text
    /// window NUMBER
    /// call INSTRUCTIONS INNER TIMES
    /// interrupted TIMES
    /// end NUMBER
    /// ```
    ///
    /// A `call` line stands for all calls with the same number of instructions and the same number of inner calls. Calls in which an
    /// interrupt or an exception was taken have no such line.
    fn report(&self) -> String {
        let mut text = format!("window {}\n", self.number);
        for ((instructions, inner), times) in &self.returned {
            let _ = writeln!(text, "call {instructions} {inner} {times}");
        }
        let _ = writeln!(text, "interrupted {}", self.interrupted);
        let _ = writeln!(text, "end {}", self.number);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: Functions = Functions {
        outer: 0x100,
        inner: 0x200,
    };

    /// Blocks that CPU 0 executes: address, stack pointer, and the instructions before.
    fn run(calls: &Calls, blocks: &[(u64, u64, u64)]) {
        for &(at, stack, instructions) in blocks {
            calls.executes(
                0,
                Place {
                    at,
                    stack,
                    instructions,
                },
            );
        }
    }

    /// A call of 8 instructions, which begins after `before` instructions.
    fn call(before: u64) -> [(u64, u64, u64); 4] {
        [
            (0x100, 0x88, before),
            (0x110, 0x40, before + 3),
            // Its frame is gone, but its return address is not.
            (0x120, 0x88, before + 7),
            (0x900, 0x90, before + 8),
        ]
    }

    #[test]
    fn a_call_ends_when_its_return_address_is_gone() {
        let calls = Calls::new();
        assert_eq!(calls.mark(Marker::End, FUNCTIONS), None);
        calls.mark(Marker::Begin, FUNCTIONS);
        assert!(calls.is_open());
        run(&calls, &[(0x900, 0x90, 1)]);
        run(&calls, &call(5));
        run(&calls, &call(20));
        run(&calls, &[(0x100, 0x88, 30), (0x200, 0x30, 33)]);
        run(&calls, &[(0x220, 0x20, 36), (0x900, 0x90, 50)]);
        // This call has not returned when the window ends.
        run(&calls, &[(0x100, 0x88, 60)]);
        assert_eq!(
            calls.mark(Marker::End, FUNCTIONS).unwrap(),
            "window 1\ncall 8 0 2\ncall 20 1 1\ninterrupted 0\nend 1\n"
        );
        assert!(!calls.is_open());

        calls.mark(Marker::Begin, FUNCTIONS);
        run(&calls, &[(0x900, 0x90, 70)]);
        assert_eq!(
            calls.mark(Marker::End, FUNCTIONS).unwrap(),
            "window 2\ninterrupted 0\nend 2\n"
        );
    }

    #[test]
    fn interrupted_calls_are_left_out() {
        let calls = Calls::new();
        calls.mark(Marker::Begin, FUNCTIONS);
        // An interrupt between two calls, or on another CPU, does not matter.
        calls.is_interrupted(0);
        run(&calls, &call(5)[..2]);
        calls.is_interrupted(1);
        run(&calls, &call(5)[2..]);
        run(&calls, &call(20)[..2]);
        calls.is_interrupted(0);
        run(&calls, &call(20)[2..]);
        assert_eq!(
            calls.mark(Marker::End, FUNCTIONS).unwrap(),
            "window 1\ncall 8 0 1\ninterrupted 1\nend 1\n"
        );
    }

    #[test]
    fn each_cpu_has_its_calls() {
        let calls = Calls::new();
        calls.mark(Marker::Begin, FUNCTIONS);
        run(&calls, &call(5)[..2]);
        let place = |at, stack, instructions| Place {
            at,
            stack,
            instructions,
        };
        calls.executes(1, place(0x200, 0x1000, 700));
        calls.executes(1, place(0x100, 0x1000, 702));
        run(&calls, &call(5)[2..]);
        calls.executes(1, place(0x900, 0x1008, 709));
        // There is no such CPU.
        calls.executes(CPUS, place(0x100, 0x1000, 0));
        assert_eq!(
            calls.mark(Marker::End, FUNCTIONS).unwrap(),
            "window 1\ncall 7 0 1\ncall 8 0 1\ninterrupted 0\nend 1\n"
        );
    }
}
