// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The log: blocks, each of one thread. An address takes one or two bytes.
//!
//! A file begins with [`MAGIC`]. A block has the thread's number, the length of its data (both as little-endian `u32`), and its data. These
//! are differences between successive addresses, in zigzag encoding, in groups of 7 bits, the lowest first (LEB128). A thread's first
//! difference is from 0.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use anyhow::{bail, ensure, Context, Result};

/// The first bytes of a log.
pub const MAGIC: &[u8; 8] = b"STEPLOG1";

/// Length at which a block is written, in bytes.
const BLOCK: usize = 1 << 16;

/// Writes a log.
pub struct Writer<W: Write> {
    out: W,
    threads: BTreeMap<u32, Thread>,
    written: u64,
}

#[derive(Default)]
struct Thread {
    last: u64,
    bytes: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a log.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        Ok(Self {
            out,
            threads: BTreeMap::new(),
            written: 0,
        })
    }

    /// Adds an instruction of a thread.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn add(&mut self, tid: u32, ip: u64) -> io::Result<()> {
        let thread = self.threads.entry(tid).or_default();
        let difference = ip.wrapping_sub(thread.last);
        let mut word = difference << 1 ^ 0u64.wrapping_sub(difference >> 63);

        thread.last = ip;
        loop {
            let [low, ..] = word.to_le_bytes();
            word >>= 7;
            if word == 0 {
                thread.bytes.push(low & 0x7f);
                break;
            }
            thread.bytes.push(low | 0x80);
        }
        self.written += 1;
        if thread.bytes.len() >= BLOCK {
            flush(&mut self.out, tid, thread)?;
        }
        Ok(())
    }

    /// Ends the log. Returns the number of its instructions.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        for (&tid, thread) in &mut self.threads {
            flush(&mut self.out, tid, thread)?;
        }
        self.out.flush()?;
        Ok(self.written)
    }
}

fn flush(out: &mut impl Write, tid: u32, thread: &mut Thread) -> io::Result<()> {
    let len = u32::try_from(thread.bytes.len()).map_err(io::Error::other)?;
    out.write_all(&tid.to_le_bytes())?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(&thread.bytes)?;
    thread.bytes.clear();
    Ok(())
}

/// The addresses of each thread, in order.
pub type Threads = BTreeMap<u32, Vec<u64>>;

/// Reads a log.
///
/// # Errors
///
/// If the log cannot be read, or the file is not a log.
pub fn read(mut from: impl Read) -> Result<Threads> {
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic).context("cannot read the log")?;
    ensure!(&magic == MAGIC, "not a log of steptrace");
    let mut threads = Threads::new();

    loop {
        let mut head = [0; 4];
        match from.read(&mut head[..1])? {
            0 => return Ok(threads),
            _ => from.read_exact(&mut head[1..])?,
        }
        let tid = u32::from_le_bytes(head);
        from.read_exact(&mut head)?;
        let mut bytes = vec![0; usize::try_from(u32::from_le_bytes(head))?];
        from.read_exact(&mut bytes).context("the log was cut off")?;

        let thread = threads.entry(tid).or_default();
        let (mut word, mut shift) = (0u64, 0);
        for byte in bytes {
            ensure!(shift < 64, "the log is damaged");
            word |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                let difference = word >> 1 ^ 0u64.wrapping_sub(word & 1);
                let last = thread.last().copied().unwrap_or(0);
                thread.push(last.wrapping_add(difference));
                (word, shift) = (0, 0);
            }
        }
        if shift != 0 {
            bail!("the log is damaged");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        let mut want = Threads::new();
        let mut word = 1u64;

        for i in 0..200_000u32 {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let ip = if i % 100 == 0 {
                word
            } else {
                0x40_1000 + (word >> 52)
            };
            writer.add(i % 3, ip).unwrap();
            want.entry(i % 3).or_default().push(ip);
        }
        assert_eq!(writer.finish().unwrap(), 200_000);
        assert_eq!(read(&bytes[..]).unwrap(), want);
        assert!(read(&bytes[..bytes.len() - 1]).is_err());
        assert!(read(&b"something else"[..]).is_err());
    }

    /// A log that is cut after any byte is an error, unless only the magic is left.
    #[test]
    fn short_logs() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.add(7, 0xffff_ffff_ff60_0000).unwrap();
        writer.add(7, 1).unwrap();
        writer.finish().unwrap();

        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]).is_ok(), len == MAGIC.len(), "{len}");
        }
    }
}
