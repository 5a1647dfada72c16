// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The code that a guest has executed, for a decoder.

use std::collections::BTreeMap;
use std::io::{self, Write};

impl Change {
    /// Writes a line with the time, the address, the old bytes and the new bytes, as hexadecimal numbers.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn write(&self, when: u64, to: &mut impl Write) -> io::Result<()> {
        write!(to, "{when:x} {:x} ", self.address)?;
        hex(&self.old, to)?;
        write!(to, " ")?;
        hex(&self.new, to)?;
        writeln!(to)
    }
}

fn hex(bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
}

/// Length of a page, in bytes.
const PAGE: u64 = 4096;
const PAGE_LEN: usize = 4096;

/// The code, by page.
#[derive(Debug, Default)]
pub struct Image {
    pages: BTreeMap<u64, Box<Page>>,
    /// Number of changes of instructions.
    pub changes: u64,
}

/// A change of code: the old and the new bytes at an address. Both have the same length.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// Address of the first byte that has changed.
    pub address: u64,
    /// The old bytes.
    pub old: Vec<u8>,
    /// The new bytes.
    pub new: Vec<u8>,
}

#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE_LEN],
    /// Which bytes are known.
    known: [bool; PAGE_LEN],
}

impl Default for Page {
    fn default() -> Self {
        Self {
            bytes: [0; PAGE_LEN],
            known: [false; PAGE_LEN],
        }
    }
}

impl Image {
    /// Adds the instruction at an address. Returns the change if other bytes were known there.
    pub fn add(&mut self, address: u64, bytes: &[u8]) -> Option<Change> {
        let mut old = Vec::new();
        let mut changed = None;
        for (address, byte) in (0u64..).map(|n| address.wrapping_add(n)).zip(bytes) {
            let page = self.pages.entry(address / PAGE).or_default();
            let at = usize::try_from(address % PAGE).unwrap_or(0);
            if let (Some(place), Some(known)) = (page.bytes.get_mut(at), page.known.get_mut(at)) {
                if *known && place != byte {
                    let (first, _) = changed.unwrap_or((old.len(), 0));
                    changed = Some((first, old.len() + 1));
                }
                old.push(*place);
                *place = *byte;
                *known = true;
            }
        }
        let (first, end) = changed?;
        self.changes += 1;
        Some(Change {
            address: address.wrapping_add(u64::try_from(first).unwrap_or(0)),
            old: old.get(first..end)?.to_vec(),
            new: bytes.get(first..end)?.to_vec(),
        })
    }

    /// Writes the pages one after the other to `pages`, and a line for each run of contiguous pages to `list`: offset in `pages`, length
    /// and address, as hexadecimal numbers.
    ///
    /// # Errors
    ///
    /// The errors of the writers.
    pub fn write(&self, mut pages: impl Write, mut list: impl Write) -> io::Result<()> {
        let mut offset = 0;
        let mut run: Option<(u64, u64)> = None;
        for (number, page) in &self.pages {
            pages.write_all(&page.bytes)?;
            run = match run {
                Some((first, count)) if first + count == *number => Some((first, count + 1)),
                other => {
                    offset = end_of_run(other, offset, &mut list)?;
                    Some((*number, 1))
                }
            };
        }
        end_of_run(run, offset, &mut list)?;
        pages.flush()?;
        list.flush()
    }
}

/// Writes the line of a run that begins at `offset`. Returns the offset of the next run.
fn end_of_run(run: Option<(u64, u64)>, offset: u64, list: &mut impl Write) -> io::Result<u64> {
    let Some((first, count)) = run else {
        return Ok(offset);
    };
    let (len, address) = (count * PAGE, first.wrapping_mul(PAGE));
    writeln!(list, "{offset:x} {len:x} {address:x}")?;
    Ok(offset + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pages_have_their_places() {
        let mut image = Image::default();
        image.add(0xffff_ffff_8100_0ffe, &[1, 2, 3]);
        image.add(0xffff_ffff_a000_0000, &[4]);
        image.add(0x40_0000, &[5]);
        let (mut pages, mut list) = (Vec::new(), Vec::new());
        image.write(&mut pages, &mut list).unwrap();
        assert_eq!(
            String::from_utf8(list).unwrap(),
            "0 1000 400000\n1000 2000 ffffffff81000000\n3000 1000 ffffffffa0000000\n"
        );
        assert_eq!(pages.len(), 4 * 4096);
        assert_eq!(pages[0x1ffe..0x2001], [1, 2, 3]);
        assert_eq!((pages[0], pages[0x3000]), (5, 4));
    }

    #[test]
    fn code_that_changes_is_counted() {
        let mut image = Image::default();
        assert_eq!(image.add(0x1000, &[0x90, 0x90]), None);
        assert_eq!(image.add(0x1000, &[0x90]), None);
        assert_eq!(image.changes, 0);
        let change = Change {
            address: 0x1001,
            old: vec![0x90],
            new: vec![0xcc],
        };
        // A byte that was not known has not changed.
        assert_eq!(image.add(0x1000, &[0x90, 0xcc, 0x55]), Some(change));
        assert_eq!(image.changes, 1);
    }
}
