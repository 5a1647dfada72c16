// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the code that programs ran, in blocks.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use intel_pt::insn::{Insn, Kind, Mode};

use super::calls::{Function, Site, Tree};
use super::generated::Generated;
use super::image::{shown, Image};
use super::kernel::{self, Kernel};
use super::pokes::Pokes;
use super::sideband::{Program, Sideband};
use crate::error::Result;

/// Instructions up to a branch, or to the end of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Number of instructions.
    pub(super) count: u64,
    /// Address of the last instruction.
    pub(super) last_at: u64,
    pub(super) last: Insn,
    pub(super) function: Function,
    /// Address of the beginning of its file.
    base: u64,
}

impl Block {
    /// The address after the block, where execution continues without a branch.
    pub(super) fn next(&self) -> u64 {
        self.last.next(self.last_at)
    }

    /// The place of its last instruction.
    pub(super) fn site(&self) -> Site {
        self.site_of(self.last_at)
    }

    /// The place of one of its instructions.
    pub(super) fn site_of(&self, ip: u64) -> Site {
        (self.function.image, ip.wrapping_sub(self.base))
    }
}

/// Where the code of an address is.
#[derive(Debug, Clone, Copy)]
struct Place {
    image: usize,
    /// Address of the beginning of its file.
    base: u64,
    /// Offset in the file from which on it has other code.
    end: u64,
}

/// Why there is no block.
#[derive(Debug)]
pub(super) enum Missing {
    /// An error that ends the report.
    Error(crate::Error),
    /// This part of the trace cannot be followed.
    Code(String),
}

/// The path of a mapped file, and its build-id if the kernel has reported one.
type Mapped = (Vec<u8>, Option<Vec<u8>>);

/// All code that is followed.
#[derive(Debug)]
pub(crate) struct Code {
    root: PathBuf,
    /// Whether the running kernel is the one that was traced.
    same_kernel: bool,
    /// Address ranges of the kernel's code, and their images. [`None`] if the kernel is not followed.
    kernel: Option<Vec<(Range<u64>, usize)>>,
    /// Address at which the kernel switches threads.
    switch: Option<u64>,
    /// Changes of the kernel's code.
    pokes: Pokes,
    /// Code that the kernel has generated.
    generated: Generated,
    images: Vec<Image>,
    /// Paths of the images.
    paths: Vec<Vec<u8>>,
    /// Images by path. [`None`] if a path has no file.
    numbers: HashMap<Mapped, Option<usize>>,
    /// The places of blocks by the number of the program and the address, and the times at which they are there.
    places: HashMap<(usize, u64), (RangeInclusive<u64>, Place)>,
    /// Blocks by image, offset, mode, and a version: 0 for code that never changes, else 1 plus the number of code changes before. Their
    /// addresses count from the beginning of the file.
    blocks: HashMap<(usize, u64, Mode, usize), Block>,
}

impl Code {
    /// Maximum number of instructions in a block.
    const BLOCK_MAX: u64 = 1024;
    /// Maximum number of blocks, and of places, in memory. Others are decoded and looked for again.
    const BLOCKS_MAX: usize = 1 << 20;

    /// The code of programs whose files are below `root`, and of a kernel. Takes the changes and the functions of the kernel out of
    /// `sideband`.
    pub(super) fn new(
        root: &Path,
        same_kernel: bool,
        kernel: Option<Kernel>,
        sideband: &mut Sideband,
    ) -> Self {
        let switch = kernel.as_ref().and_then(|kernel| kernel.switch);
        let images = kernel.map(|kernel| kernel.images);
        let place = |(number, image): (usize, &Image)| {
            let places: Vec<_> = image.places().map(|at| (at.clone(), number)).collect();
            places
        };
        let kernel = images.as_ref().map(|images| {
            let mut places: Vec<_> = images.iter().enumerate().flat_map(place).collect();
            places.sort_by_key(|(at, _)| at.start);
            places
        });
        let mut images = images.unwrap_or_default();
        let pokes = Pokes::new(std::mem::take(&mut sideband.pokes));
        let symbols = std::mem::take(&mut sideband.symbols);
        let programs = std::mem::take(&mut sideband.programs_of_bpf);
        let generated = match kernel {
            Some(_) => Generated::new(&symbols, &programs, &mut images),
            None => Generated::default(),
        };
        let paths = images.iter().map(|image| image.name.clone().into_bytes());
        Self {
            root: root.to_owned(),
            same_kernel,
            kernel,
            switch,
            pokes,
            generated,
            paths: paths.collect(),
            images,
            numbers: HashMap::new(),
            places: HashMap::new(),
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

    /// Whether this is an address of the kernel, and the kernel is followed.
    pub(super) fn is_kernel(&self, ip: u64) -> bool {
        self.kernel.is_some() && kernel::has(ip)
    }

    /// Whether the kernel switches threads at this address.
    pub(super) fn is_switch(&self, ip: u64) -> bool {
        self.switch == Some(ip)
    }

    /// The image that has an address of the kernel at a certain time.
    fn of_kernel(&self, ip: u64, time: u64) -> Option<usize> {
        self.generated.find(ip, time).or_else(|| self.copied(ip))
    }

    /// The image that has an address in the copy of the kernel's memory.
    fn copied(&self, ip: u64) -> Option<usize> {
        let places = self.kernel.as_ref()?;
        let after = places.partition_point(|(at, _)| at.start <= ip);
        let (at, number) = places.get(after.checked_sub(1)?)?;
        at.contains(&ip).then_some(*number)
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
        let Place { image, base, end } = self.place(program, time, ip)?;
        let offset = ip.wrapping_sub(base);
        let whole = |block: &&Block| block.next() <= end;
        let found = match self.blocks.get(&(image, offset, mode, 0)).filter(whole) {
            Some(block) => *block,
            None => {
                // 0 is for code that never changes.
                let changes = self.pokes.count(time).saturating_add(1);
                let changed = (image, offset, mode, changes);
                match self.blocks.get(&changed).filter(whole) {
                    Some(block) => *block,
                    None => self.add(changed, end, time, tree)?,
                }
            }
        };
        Ok(Block {
            last_at: found.last_at.wrapping_add(base),
            base,
            ..found
        })
    }

    /// Decodes a block that is not known yet.
    fn add(
        &mut self,
        (image, offset, mode, changes): (usize, u64, Mode, usize),
        end: u64,
        time: u64,
        tree: &mut Tree,
    ) -> std::result::Result<Block, Missing> {
        let block = self.decode((image, offset, mode), end, time, tree);
        let block = block.ok_or_else(|| {
            let path = self.path(image).unwrap_or_default();
            Missing::Code(format!("what is no instruction, in {}", shown(path)))
        })?;
        if self.blocks.len() >= Self::BLOCKS_MAX {
            self.blocks.clear();
        }
        let changes = match self.pokes.touch(&(offset..block.next())) {
            true => changes,
            false => 0,
        };
        self.blocks.insert((image, offset, mode, changes), block);
        Ok(block)
    }

    /// The code at an offset of an image at a certain time.
    fn text(&self, image: usize, offset: u64, time: u64) -> Option<Cow<'_, [u8]>> {
        /// No block is longer.
        const WINDOW: usize = 16 << 10;

        let text = match self.images.get(image)?.text(offset) {
            Some(text) => Cow::Borrowed(text.get(..WINDOW).unwrap_or(text)),
            None if self.generated.has(image) => self.made(image, offset, WINDOW)?,
            None => return None,
        };
        let len = u64::try_from(text.len()).ok()?;
        if !self.pokes.touch(&(offset..offset.saturating_add(len))) {
            return Some(text);
        }
        let mut text = text.into_owned();
        self.pokes.apply(time, offset, &mut text);
        Some(Cow::Owned(text))
    }

    /// The bytes of a function that the kernel has generated, up to its end. They come from the copy of the kernel's memory; without it,
    /// they are zeros, and the code changes give their values.
    fn made(&self, image: usize, offset: u64, max: usize) -> Option<Cow<'_, [u8]>> {
        let (at, _) = self.images.get(image)?.function(offset)?;
        let space = |end: u64| usize::try_from(end - offset).unwrap_or(max).min(max);
        let copied = self.copied(offset).and_then(|image| self.images.get(image));
        Some(match copied.and_then(|copied| copied.text(offset)) {
            Some(text) => Cow::Borrowed(text.get(..space(at.end)).unwrap_or(text)),
            None => Cow::Owned(vec![0; space(self.pokes.end(offset)?.min(at.end))]),
        })
    }

    /// Where the code at `ip` is at a certain time.
    fn place(
        &mut self,
        program: Option<&Program>,
        time: u64,
        ip: u64,
    ) -> std::result::Result<Place, Missing> {
        let missing = |why: &str| Missing::Code(why.to_owned());
        if kernel::has(ip) {
            let found = self.of_kernel(ip, time);
            return match (found, &self.kernel) {
                (Some(image), _) => Ok(Place {
                    image,
                    base: 0,
                    end: u64::MAX,
                }),
                (None, Some(_)) => Err(missing("code of the kernel that no symbol stands for")),
                (None, None) => Err(missing("code of the kernel: give --kernel for that")),
            };
        }
        let no_record = || missing("code that no record describes");
        let program = program.ok_or_else(no_record)?;
        let key = (program.number, ip);
        if let Some((times, place)) = self.places.get(&key) {
            if times.contains(&time) {
                return Ok(*place);
            }
        }
        let (map, times) = program.mapping(ip, time).ok_or_else(no_record)?;
        let image = self
            .image(&map.path, map.build_id.as_deref())
            .map_err(Missing::Error)?
            .ok_or_else(|| Missing::Code(format!("code that no file has: {}", shown(&map.path))))?;
        let of_image = self.images.get(image);
        let place = Place {
            image,
            base: map.start.wrapping_sub(map.offset),
            // A file with a format has its code in one piece, although it may be mapped in several.
            end: match of_image.is_some_and(Image::is_in_pieces) {
                true => map.offset.saturating_add(map.end.saturating_sub(map.start)),
                false => u64::MAX,
            },
        };
        if self.places.len() >= Self::BLOCKS_MAX {
            self.places.clear();
        }
        self.places.insert(key, (times, place));
        Ok(place)
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

    fn decode(
        &self,
        (number, start, mode): (usize, u64, Mode),
        end: u64,
        time: u64,
        tree: &mut Tree,
    ) -> Option<Block> {
        let image = self.images.get(number)?;
        let text = self.text(number, start, time)?;
        let text = up_to(&text, end.saturating_sub(start));
        let end = image.next_function(start).unwrap_or(u64::MAX).min(end);
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

    /// How many instructions of the block at `ip` are executed before the one at `to`, if an instruction begins there. `to` must be in the
    /// block.
    pub(super) fn part(
        &self,
        program: Option<&Program>,
        time: u64,
        (ip, to): (u64, u64),
        mode: Mode,
    ) -> Option<u64> {
        let (image, offset) = match self.of_kernel(ip, time) {
            Some(image) => (image, ip),
            None => {
                let (map, _) = program?.mapping(ip, time)?;
                let key = (map.path.clone(), map.build_id.clone());
                let image = (*self.numbers.get(&key)?)?;
                (image, ip.wrapping_sub(map.start).wrapping_add(map.offset))
            }
        };
        let text = self.text(image, offset, time)?;
        let (mut at, mut count) = (ip, 0);
        while at < to {
            let insn = Insn::decode(text.get(usize::try_from(at - ip).ok()?..)?, mode)?;
            at += u64::from(insn.len);
            count += 1;
        }
        (at == to).then_some(count)
    }
}

/// At most the first `len` bytes.
fn up_to(text: &[u8], len: u64) -> &[u8] {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    text.get(..len).unwrap_or(text)
}

/// Whether a path names memory and no file.
fn is_memory(path: &[u8]) -> bool {
    path.starts_with(b"/memfd:")
        || path.starts_with(b"/dev/zero")
        || path.starts_with(b"/SYSV")
        || path.starts_with(b"/anon_hugepage")
        || path.ends_with(b" (deleted)")
}

/// Whether the code of the instruction does not determine its target.
pub(super) fn is_indirect(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::IndirectJump | Kind::IndirectCall | Kind::Return | Kind::Far(_)
    )
}
