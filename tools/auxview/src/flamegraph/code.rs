// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The code that programs ran, a block at a time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use intel_pt::insn::{Insn, Kind, Mode};

use super::calls::{Function, Site, Tree};
use super::image::{shown, Image};
use super::sideband::Program;
use crate::error::Result;

/// Instructions up to a branch, or to the end of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// How many.
    pub(super) count: u64,
    /// Where the last one is.
    pub(super) last_at: u64,
    pub(super) last: Insn,
    pub(super) function: Function,
    /// Where the beginning of its file is.
    base: u64,
}

impl Block {
    /// Where it goes on if nothing branches.
    pub(super) fn next(&self) -> u64 {
        self.last.next(self.last_at)
    }

    /// The place of its last instruction.
    pub(super) fn site(&self) -> Site {
        (self.function.image, self.last_at.wrapping_sub(self.base))
    }
}

/// Why there is no block.
#[derive(Debug)]
pub(super) enum Missing {
    /// The report cannot be made.
    Error(crate::Error),
    /// This part of the trace cannot be followed.
    Code(String),
}

/// The path of a mapped file, and its build-id if the kernel has reported one.
type Mapped = (Vec<u8>, Option<Vec<u8>>);

/// All code that was looked at.
#[derive(Debug)]
pub(crate) struct Code {
    root: PathBuf,
    /// Whether this is the kernel that was traced.
    same_kernel: bool,
    images: Vec<Image>,
    /// Their paths.
    paths: Vec<Vec<u8>>,
    /// By path; those that cannot be had are none.
    numbers: HashMap<Mapped, Option<usize>>,
    /// By image, offset and mode; addresses count from the beginning of the file.
    blocks: HashMap<(usize, u64, Mode), Block>,
}

impl Code {
    /// More instructions are several blocks.
    const BLOCK_MAX: u64 = 1024;
    /// More are decoded again.
    const BLOCKS_MAX: usize = 1 << 20;

    /// That of programs whose files are below `root`.
    pub(super) fn new(root: &Path, same_kernel: bool) -> Self {
        Self {
            root: root.to_owned(),
            same_kernel,
            images: Vec::new(),
            paths: Vec::new(),
            numbers: HashMap::new(),
            blocks: HashMap::new(),
        }
    }

    /// The name of a file, for people.
    pub(crate) fn shown(&self, number: usize) -> &str {
        self.images.get(number).map_or("", |image| &image.name)
    }

    /// The path of a file, as it was mapped.
    pub(crate) fn path(&self, number: usize) -> Option<&[u8]> {
        self.paths.get(number).map(Vec::as_slice)
    }

    /// The address that an offset has in a file.
    pub(crate) fn address(&self, number: usize, offset: u64) -> Option<u64> {
        self.images.get(number)?.address(offset)
    }

    /// The block at `ip`.
    pub(super) fn block(
        &mut self,
        program: Option<&Program>,
        time: u64,
        ip: u64,
        mode: Mode,
        tree: &mut Tree,
    ) -> std::result::Result<Block, Missing> {
        let map = program
            .and_then(|program| program.mapping(ip, time))
            .ok_or_else(|| Missing::Code("code that no record tells of".to_owned()))?;
        let image = self
            .image(&map.path, map.build_id.as_deref())
            .map_err(Missing::Error)?
            .ok_or_else(|| Missing::Code(format!("code that no file has: {}", shown(&map.path))))?;
        // From offsets to addresses.
        let base = map.start.wrapping_sub(map.offset);
        let key = (image, ip.wrapping_sub(base), mode);
        let found = match self.blocks.get(&key) {
            Some(block) => *block,
            None => {
                let block = self.decode(key, tree).ok_or_else(|| {
                    Missing::Code(format!("what is no instruction, in {}", shown(&map.path)))
                })?;
                if self.blocks.len() >= Self::BLOCKS_MAX {
                    self.blocks.clear();
                }
                self.blocks.insert(key, block);
                block
            }
        };
        Ok(Block {
            last_at: found.last_at.wrapping_add(base),
            base,
            ..found
        })
    }

    fn image(&mut self, path: &[u8], build_id: Option<&[u8]>) -> Result<Option<usize>> {
        let key = (path.to_vec(), build_id.map(<[u8]>::to_vec));
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let image = if path == b"[vdso]" {
            self.same_kernel.then(Image::vdso).flatten()
        } else if path.starts_with(b"/") && !path.starts_with(b"//") && !is_memory(path) {
            Some(Image::read(path, &self.root, build_id)?)
        } else {
            None
        };
        let number = image.map(|image| {
            self.images.push(image);
            self.paths.push(path.to_vec());
            self.images.len() - 1
        });
        self.numbers.insert(key, number);
        Ok(number)
    }

    fn decode(&self, (number, start, mode): (usize, u64, Mode), tree: &mut Tree) -> Option<Block> {
        let image = self.images.get(number)?;
        let text = image.text(start)?;
        let end = image.next_function(start).unwrap_or(u64::MAX);
        let mut count = 0;
        let mut at = start;
        let mut last = None;
        while at < end && count < Self::BLOCK_MAX {
            let from = usize::try_from(at - start).ok()?;
            let Some(insn) = text.get(from..).and_then(|text| Insn::decode(text, mode)) else {
                break;
            };
            last = Some((at, insn));
            count += 1;
            if insn.kind.is_branch() {
                break;
            }
            at += u64::from(insn.len);
        }
        let (last_at, last) = last?;
        let function = match image.function(start) {
            Some((range, name)) => Function {
                name: tree.name(name),
                named: true,
                image: number,
                begins: range.start == start,
                offset: range.start,
            },
            None => Function {
                name: tree.name(&format!("{}+{start:#x}", image.name)),
                named: false,
                image: number,
                begins: false,
                offset: start,
            },
        };
        Some(Block {
            count,
            last_at,
            last,
            function,
            base: 0,
        })
    }

    /// How many instructions of the block at `ip` are executed before the one at `to`, if it has that.
    pub(super) fn part(
        &self,
        program: Option<&Program>,
        time: u64,
        (ip, to): (u64, u64),
        mode: Mode,
    ) -> Option<u64> {
        let map = program?.mapping(ip, time)?;
        let key = (map.path.clone(), map.build_id.clone());
        let image = self.images.get((*self.numbers.get(&key)?)?)?;
        let text = image.text(ip.wrapping_sub(map.start).wrapping_add(map.offset))?;
        let (mut at, mut count) = (ip, 0);
        while at < to {
            let insn = Insn::decode(text.get(usize::try_from(at - ip).ok()?..)?, mode)?;
            at += u64::from(insn.len);
            count += 1;
        }
        (at == to).then_some(count)
    }
}

/// Whether it is memory with a name, and no file.
fn is_memory(path: &[u8]) -> bool {
    path.starts_with(b"/memfd:")
        || path.starts_with(b"/dev/zero")
        || path.starts_with(b"/SYSV")
        || path.starts_with(b"/anon_hugepage")
        || path.ends_with(b" (deleted)")
}

/// Whether the instruction goes on where its code does not say.
pub(super) fn is_indirect(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::IndirectJump | Kind::IndirectCall | Kind::Return | Kind::Far(_)
    )
}
