// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The programs in [`Feature::BPF_PROG_INFO`](crate::Feature::BPF_PROG_INFO): `struct perf_bpil` of perf's `util/bpf-utils.h`, whose
//! `info` is `struct bpf_prog_info` of `uapi/linux/bpf.h`.

use crate::bytes::Cursor;
use crate::Result;

/// A function of a BPF program, as the kernel has compiled it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfFunction<'a> {
    /// Address in the kernel's memory.
    pub address: u64,
    /// Its tag, which is in its symbol's name.
    pub tag: [u8; 8],
    /// The processor's instructions.
    pub code: &'a [u8],
}

/// An array in `data`: its bit in `arrays`; and the offsets in `info` of the number of its elements and of its place.
struct Array {
    bit: u32,
    count: usize,
    place: usize,
}

const fn array(bit: u32, count: usize, place: usize) -> Array {
    Array { bit, count, place }
}

/// `PERF_BPIL_JITED_INSNS`
const CODE: Array = array(0, 16, 24);
/// `PERF_BPIL_JITED_KSYMS`
const ADDRESSES: Array = array(3, 104, 112);
/// `PERF_BPIL_JITED_FUNC_LENS`
const LENGTHS: Array = array(4, 108, 120);
/// `PERF_BPIL_PROG_TAGS`
const TAGS: Array = array(8, 180, 184);

/// A BPF program.
struct Program<'a> {
    arrays: u64,
    info: &'a [u8],
    data: &'a [u8],
}

impl<'a> Program<'a> {
    /// The elements of an array, each of `len` bytes. [`None`] if the array is missing or incomplete.
    fn array(&self, array: &Array, len: usize) -> Option<&'a [u8]> {
        if self.arrays >> array.bit & 1 == 0 {
            return None;
        }
        let count = self.info.get(array.count..array.count + 4)?;
        let place = self.info.get(array.place..array.place + 8)?;
        let count = u32::from_le_bytes(count.try_into().ok()?);
        let place = u64::from_le_bytes(place.try_into().ok()?);
        let len = usize::try_from(count).ok()?.checked_mul(len)?;
        self.data.get(usize::try_from(place).ok()?..)?.get(..len)
    }

    /// The functions of the program. The kernel shows code and addresses only to a process that may read the addresses of kernel symbols.
    fn functions(&self) -> Option<impl Iterator<Item = BpfFunction<'a>>> {
        let mut code = self.array(&CODE, 1)?;
        let addresses = self.array(&ADDRESSES, 8)?.chunks_exact(8);
        let lengths = self.array(&LENGTHS, 4)?.chunks_exact(4);
        let tags = self.array(&TAGS, 8)?.chunks_exact(8);
        // The code of each function begins where that of the one before it ends.
        let one = move |((address, len), tag): ((&[u8], &[u8]), &[u8])| {
            let len = u32::from_le_bytes(len.try_into().ok()?);
            let (own, rest) = code.split_at_checked(usize::try_from(len).ok()?)?;
            code = rest;
            Some(BpfFunction {
                address: u64::from_le_bytes(address.try_into().ok()?),
                tag: tag.try_into().ok()?,
                code: own,
            })
        };
        Some(addresses.zip(lengths).zip(tags).map_while(one))
    }
}

/// The functions of all programs of a section.
pub(crate) fn functions<'a>(c: &mut Cursor<'a>) -> Result<Vec<BpfFunction<'a>>> {
    let mut found = Vec::new();
    for _ in 0..c.u32("BPF_PROG_INFO.count")? {
        let info = c.u32("BPF_PROG_INFO.info_len")?;
        let data = c.u32("BPF_PROG_INFO.data_len")?;
        let size = |len: u32| usize::try_from(len).unwrap_or(usize::MAX);
        let program = Program {
            arrays: c.u64("BPF_PROG_INFO.arrays")?,
            info: c.take(size(info), "BPF_PROG_INFO.info")?,
            data: c.take(size(data), "BPF_PROG_INFO.data")?,
        };
        found.extend(program.functions().into_iter().flatten());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A program of two functions: `code` has three bytes of the first and two of the second.
    fn program(code: &[u8; 8], arrays: u64) -> Vec<u8> {
        let mut info = vec![0; 232];
        let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
        for (array, count, place) in [
            (CODE, 5_u32, 0_u64),
            (ADDRESSES, 2, 8),
            (LENGTHS, 2, 24),
            (TAGS, 2, 32),
        ] {
            put(array.count, &count.to_le_bytes());
            put(array.place, &place.to_le_bytes());
        }
        let mut data = code.to_vec();
        data.extend([0x1000_u64, 0x2000].map(u64::to_le_bytes).concat());
        data.extend([3_u32, 2].map(u32::to_le_bytes).concat());
        data.extend([[7; 8], [8; 8]].concat());
        let mut all = 232_u32.to_le_bytes().to_vec();
        all.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        all.extend(arrays.to_le_bytes());
        all.extend(info);
        all.extend(data);
        all
    }

    fn section(programs: &[Vec<u8>]) -> Vec<u8> {
        let count = u32::try_from(programs.len()).unwrap();
        [&count.to_le_bytes()[..], &programs.concat()].concat()
    }

    const ALL: u64 = 1 | 1 << 3 | 1 << 4 | 1 << 8;

    #[test]
    fn all_functions() {
        let code = [1, 2, 3, 4, 5, 0, 0, 0];
        // A program without code, as perf records it without the permission to read the code.
        let bytes = section(&[
            program(&code, ALL),
            program(&code, ALL & !1),
            program(&[9; 8], ALL),
        ]);
        let found = functions(&mut Cursor::new(&bytes, 0)).unwrap();
        let one = |address, tag: u8, code| BpfFunction {
            address,
            tag: [tag; 8],
            code,
        };
        assert_eq!(
            found,
            [
                one(0x1000, 7, &[1, 2, 3][..]),
                one(0x2000, 8, &[4, 5]),
                one(0x1000, 7, &[9; 3]),
                one(0x2000, 8, &[9; 2]),
            ]
        );
    }

    /// A section with any byte changed, or cut after any byte.
    #[test]
    fn hostile_sections() {
        let good = section(&[program(&[1; 8], ALL)]);
        for len in 0..good.len() {
            assert!(functions(&mut Cursor::new(&good[..len], 0)).is_err());
        }
        for at in 4..good.len() {
            let mut bad = good.clone();
            bad[at] = 0xff;
            let found = functions(&mut Cursor::new(&bad, 0)).unwrap_or_default();
            let code: usize = found.iter().map(|function| function.code.len()).sum();
            assert!(code <= good.len(), "byte {at}");
        }
    }
}
