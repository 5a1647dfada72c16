// SPDX-License-Identifier: GPL-2.0

//! Measures how many instructions of compiled functions the interpreter executes in a second,
//! without a kernel, on the processor that runs this.
//!
//! The functions are part of this program, and run on its memory. Each must return the same result
//! as on the processor. As in soft_pt's traps, the interpreter is called again after each [`LIMIT`]
//! instructions.

use interpreter::{run, Block, Ended, Float, Machine, Native, Registers, Values, Width};
use std::hint::black_box;
use std::time::{Duration, Instant};

#[path = "processor.rs"]
mod stepping_processor;

/// soft_pt's default limit, and the number of blocks that it keeps.
const LIMIT: u32 = 1024;
const BLOCKS: usize = 8192;

/// The minimum number of instructions in a round, and the number of rounds. The fastest round
/// counts, since other work on the machine can only slow a round down.
const LEAST: u64 = 100_000_000;
const ROUNDS: u32 = 5;

const TEXT: usize = 16 * 1024;
const STACK: usize = 16 * 1024;

/// The numbers of the registers for the result, the stack pointer, and the second and the first
/// parameter.
const RAX: usize = 0;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

type Function = extern "C" fn(*const u8, usize) -> u64;

/// The checksums of single bytes.
static CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        // CAST: Less than 256.
        #[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let low = crc & 1;
            crc = crc >> 1 ^ low * 0xedb8_8320;
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The CRC-32 of the text.
#[inline(never)]
extern "C" fn checksum(text: *const u8, len: usize) -> u64 {
    // SAFETY: `main()` passes a text that lives until this returns.
    let text = unsafe { std::slice::from_raw_parts(text, len) };
    let step = |crc: u32, byte: &u8| crc >> 8 ^ CRC[usize::from(crc.to_le_bytes()[0] ^ byte)];
    u64::from(!text.iter().fold(u32::MAX, step))
}

/// How often a word is in the text.
#[inline(never)]
extern "C" fn search(text: *const u8, len: usize) -> u64 {
    const WORD: [u8; 6] = *b"dbacab";
    // SAFETY: `main()` passes a text that lives until this returns.
    let text = unsafe { std::slice::from_raw_parts(text, len) };
    let mut found = 0;
    let mut at = 0;
    while at + WORD.len() <= text.len() {
        let mut equal = 0;
        while equal < WORD.len() && black_box(text[at + equal]) == WORD[equal] {
            equal += 1;
        }
        found += u64::from(equal == WORD.len());
        at += 1;
    }
    found
}

/// The memory of this process. Nothing is mapped in the first page.
struct Here;

/// Reads the number at this address.
macro_rules! load {
    ($type:ty, $address:ident) => {{
        let place = std::ptr::with_exposed_provenance::<$type>(usize::try_from($address).ok()?);
        // SAFETY: The functions here are compiled: what they read is their text, their stack or a
        // constant.
        u64::from(unsafe { place.read_unaligned() })
    }};
}

/// Writes a number to this address.
macro_rules! store {
    ($type:ty, $address:ident, $value:ident) => {{
        let place = usize::try_from($address).ok()?;
        let place = std::ptr::with_exposed_provenance_mut::<$type>(place);
        let bytes = *$value.to_le_bytes().first_chunk()?;
        // SAFETY: The functions here are compiled: they write to their stack, which nothing else
        // uses.
        unsafe { place.write_unaligned(<$type>::from_le_bytes(bytes)) }
    }};
}

impl Machine for Here {
    fn load(&mut self, address: u64, width: Width) -> Option<u64> {
        Some(match width {
            Width::B1 => load!(u8, address),
            Width::B2 => load!(u16, address),
            Width::B4 => load!(u32, address),
            Width::B8 => load!(u64, address),
        })
    }

    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        match width {
            Width::B1 => store!(u8, address, value),
            Width::B2 => store!(u16, address, value),
            Width::B4 => store!(u32, address, value),
            Width::B8 => store!(u64, address, value),
        }
        Some(())
    }

    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool> {
        // No other thread uses this memory.
        let is_there = self.load(address, width)? == old;
        if is_there {
            self.store(address, width, new)?;
        }
        Some(is_there)
    }

    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        let Some(text) = text(address, words.len()) else {
            return false;
        };
        words.copy_from_slice(text);
        true
    }

    fn has_text(&mut self, address: u64, words: &[u64], [first, last]: [u64; 2]) -> bool {
        let Some(text) = text(address, words.len()) else {
            return false;
        };
        let mut masks = first;
        let mut differs = 0;
        let end = words.len() - 1;
        for (at, (now, word)) in text.iter().zip(words).enumerate() {
            if at == end {
                masks &= last;
            }
            differs |= (now ^ word) & masks;
            masks = u64::MAX;
        }
        differs == 0
    }

    fn compute(
        &mut self,
        native: Native,
        width: Width,
        a: u64,
        b: u64,
        c: u64,
        flags: u64,
    ) -> Option<Values> {
        // SAFETY: The interpreter asks for no quotient that does not fit. The functions here are
        // compiled for this processor, so it knows the instruction.
        unsafe { stepping_processor::compute(native, width, a, b, c, flags) }
    }

    fn float(
        &mut self,
        float: Float,
        double: bool,
        width: Width,
        a: u64,
        b: u64,
    ) -> Option<Values> {
        // SAFETY: The registers are this thread's, and are as before afterwards.
        unsafe { stepping_processor::float(float, double, width, a, b) }
    }
}

/// The text at an address that is a multiple of 8, if any can be there.
fn text(address: u64, words: usize) -> Option<&'static [u64]> {
    if address == 0 {
        return None;
    }
    let place = std::ptr::with_exposed_provenance(usize::try_from(address).ok()?);
    // SAFETY: The words are in the text of this program, which stays and does not change. It goes
    // on behind the functions here, with those of the standard library.
    Some(unsafe { std::slice::from_raw_parts(place, words) })
}

fn word(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Interprets a function until it returns, to address 0. Returns its result, and the number of
/// executed instructions.
fn interpret(
    blocks: &mut [Block],
    stack: &mut [u64],
    function: Function,
    text: &[u8],
) -> (u64, u64) {
    let last = stack.len() - 1;
    stack[last] = 0;
    let mut registers = Registers::default();
    registers.general[RSP] = word(stack.as_mut_ptr().expose_provenance() + 8 * last);
    registers.general[RDI] = word(text.as_ptr().expose_provenance());
    registers.general[RSI] = word(text.len());
    // CAST: Only a cast gives the address of a function.
    #[allow(clippy::as_conversions)]
    let start = function as *const ();
    registers.ip = word(start.expose_provenance());

    let mut executed = 0;
    loop {
        let ran = run(blocks, &mut registers, &mut Here, &mut (), LIMIT);
        executed += ran.executed;
        match ran.ended {
            Ended::Limit => {}
            Ended::Left if registers.ip == 0 => return (registers.general[RAX], executed),
            ended => panic!("{ended:?} at {:#x}", registers.ip),
        }
    }
}

fn main() {
    // A linear congruential generator chooses the letters.
    let mut seed = 1_u32;
    let letter = |_| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"abcd"[usize::from(seed.to_le_bytes()[3] & 3)]
    };
    let text: Vec<u8> = (0..TEXT).map(letter).collect();
    let functions: [Function; 2] = [checksum, search];
    let expected = functions.map(|function| function(text.as_ptr(), text.len()));
    let mut stack = vec![0; STACK / 8];
    let mut blocks = vec![Block::EMPTY; BLOCKS];

    let mut best = (0, Duration::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut executed = 0;
        while executed < LEAST {
            for (function, expected) in functions.into_iter().zip(expected) {
                let (result, more) = interpret(&mut blocks, &mut stack, function, &text);
                assert_eq!(result, expected, "the processor returns something else");
                executed += more;
            }
        }
        let time = start.elapsed();
        if best.1 == Duration::MAX || rate(executed, time) > rate(best.0, best.1) {
            best = (executed, time);
        }
    }
    let (executed, time) = best;
    println!("interpreted {executed} {}", time.as_nanos());
}

/// The number of instructions a second.
fn rate(executed: u64, time: Duration) -> u128 {
    u128::from(executed) * 1_000_000_000 / time.as_nanos().max(1)
}
