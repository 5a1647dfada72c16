// SPDX-License-Identifier: GPL-2.0 OR MIT

//! QEMU's interface for plugins, version 7 (QEMU 11): `qemu-plugin.h`.

use crate::record::{Block, Marker, Recorder};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The version of the interface.
#[no_mangle]
pub static qemu_plugin_version: c_int = 7;

/// Callbacks that read no registers.
const NO_REGISTERS: c_int = 0;
/// Stores.
const WRITES: c_int = 2;
/// Kernel addresses have this bit, and user addresses do not.
const KERNEL: u64 = 1 << 63;

#[repr(C)]
struct Translation(u8);
#[repr(C)]
struct Instruction(u8);
#[repr(C)]
struct Physical(u8);

type Executed = extern "C" fn(c_uint, *mut c_void);
type Wrote = extern "C" fn(c_uint, u32, u64, *mut c_void);

extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: u64,
        cb: extern "C" fn(*mut Translation, *mut c_void),
        user: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut Translation,
        cb: Executed,
        flags: c_int,
        user: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Instruction,
        cb: Executed,
        flags: c_int,
        user: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Instruction,
        cb: Wrote,
        flags: c_int,
        rw: c_int,
        user: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(tb: *const Translation) -> usize;
    fn qemu_plugin_tb_vaddr(tb: *const Translation) -> u64;
    fn qemu_plugin_tb_get_insn(tb: *const Translation, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_vaddr(insn: *const Instruction) -> u64;
    fn qemu_plugin_insn_size(insn: *const Instruction) -> usize;
    fn qemu_plugin_insn_data(insn: *const Instruction, to: *mut c_void, len: usize) -> usize;
    fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut Physical;
    fn qemu_plugin_hwaddr_phys_addr(address: *const Physical) -> u64;
}

static RECORDER: Recorder = Recorder::new();

/// What stands on QEMU's command line.
struct Options {
    file: Mutex<File>,
    from: u64,
    to: u64,
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

fn cpu(index: c_uint) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

extern "C" fn executed(index: c_uint, user: *mut c_void) {
    // SAFETY: `translated()` has leaked this block for the callback.
    let block = unsafe { &*user.cast::<Block>() };
    RECORDER.executed(block, cpu(index));
}

extern "C" fn began(_index: c_uint, _user: *mut c_void) {
    mark(Marker::Begin);
}

extern "C" fn ended(_index: c_uint, _user: *mut c_void) {
    mark(Marker::End);
}

fn mark(marker: Marker) {
    let (Some(report), Some(options)) = (RECORDER.mark(marker), OPTIONS.get()) else {
        return;
    };
    let mut file = options.file.lock().unwrap_or_else(PoisonError::into_inner);
    // A report that lacks its end is an error to who reads it.
    if let Err(error) = file.write_all(report.as_bytes()) {
        eprintln!("bench-plugin: cannot write the report: {error}");
    }
}

extern "C" fn wrote(index: c_uint, info: u32, address: u64, user: *mut c_void) {
    if !RECORDER.is_open() {
        return;
    }
    // SAFETY: `info` and `address` are those of this callback.
    let physical = unsafe { qemu_plugin_get_hwaddr(info, address) };
    if physical.is_null() {
        return;
    }
    // SAFETY: Not null, and used in the callback that it was asked for in.
    let physical = unsafe { qemu_plugin_hwaddr_phys_addr(physical) };
    // SAFETY: `info` is that of this callback.
    let shift = unsafe { qemu_plugin_mem_size_shift(info) };
    let at = u64::try_from(user.addr()).unwrap_or(u64::MAX);
    RECORDER.wrote(cpu(index), at, physical, 1 << shift);
}

extern "C" fn translated(tb: *mut Translation, _user: *mut c_void) {
    // SAFETY: QEMU gives a translation that is valid during this callback.
    let start = unsafe { qemu_plugin_tb_vaddr(tb) };
    // SAFETY: As for `qemu_plugin_tb_vaddr()`: `tb` is valid during this callback.
    let count = unsafe { qemu_plugin_tb_n_insns(tb) };
    let kernel = start & KERNEL != 0;

    if kernel {
        let block = RECORDER.block(start, u64::try_from(count).unwrap_or(u64::MAX));
        let user = Arc::into_raw(block).cast_mut().cast();
        // SAFETY: `tb` is valid, and `user` is what `executed()` takes; it is never freed.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, NO_REGISTERS, user) };
    }
    for index in 0..count {
        // SAFETY: `tb` is valid, and `index` below its number of instructions.
        let insn = unsafe { qemu_plugin_tb_get_insn(tb, index) };
        if kernel {
            watch(insn);
        } else {
            look_for_marker(insn);
        }
    }
}

/// Has writes reported if the instruction is one of those whose writes count.
fn watch(insn: *mut Instruction) {
    // SAFETY: `translated()` passes an instruction of its translation.
    let at = unsafe { qemu_plugin_insn_vaddr(insn) };
    if !OPTIONS.get().is_some_and(|o| (o.from..o.to).contains(&at)) {
        return;
    }
    let user = std::ptr::without_provenance_mut(usize::try_from(at).unwrap_or(0));
    // SAFETY: `insn` is an instruction of the translation, and `wrote()` takes an address that it
    // does not dereference.
    unsafe { qemu_plugin_register_vcpu_mem_cb(insn, wrote, NO_REGISTERS, WRITES, user) };
}

fn look_for_marker(insn: *mut Instruction) {
    let mut bytes = [0; Marker::LEN];
    // SAFETY: `translated()` passes an instruction of its translation.
    if unsafe { qemu_plugin_insn_size(insn) } != bytes.len() {
        return;
    }
    // SAFETY: `insn` is an instruction of the translation; `bytes` has room for `bytes.len()`.
    unsafe { qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), bytes.len()) };
    let callback: Executed = match Marker::decode(&bytes) {
        Some(Marker::Begin) => began,
        Some(Marker::End) => ended,
        None => return,
    };
    // SAFETY: `insn` is an instruction of the translation; the callbacks use no data.
    unsafe {
        qemu_plugin_register_vcpu_insn_exec_cb(insn, callback, NO_REGISTERS, std::ptr::null_mut());
    }
}

impl Options {
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let (mut out, mut from, mut to) = (None, None, None);
        let address = |text: &str| {
            u64::from_str_radix(text.trim_start_matches("0x"), 16)
                .map_err(|e| format!("{text:?} is no address: {e}"))
        };
        for word in words {
            match word.split_once('=') {
                Some(("out", path)) => out = Some(path),
                Some(("from", text)) => from = Some(address(text)?),
                Some(("to", text)) => to = Some(address(text)?),
                _ => return Err(format!("unknown option {word:?}")),
            }
        }
        let out = out.ok_or("out= is missing")?;
        let file = File::create(out).map_err(|e| format!("cannot create {out}: {e}"))?;
        Ok(Self {
            file: Mutex::new(file),
            from: from.ok_or("from= is missing")?,
            to: to.ok_or("to= is missing")?,
        })
    }
}

/// QEMU calls this when it has loaded the plugin.
///
/// # Safety
///
/// `words` must be `count` pointers to strings.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    let mut options = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `index` is below `count`, and there are so many by the safety requirement.
        let word = unsafe { words.add(index) };
        // SAFETY: In the array, by the line before.
        let word = unsafe { word.read() };
        // SAFETY: A string, by the safety requirement; it lives during this call.
        let word = unsafe { CStr::from_ptr(word) };
        options.push(word.to_string_lossy());
    }
    let options = Options::parse(options.iter().map(AsRef::as_ref));
    let set = options.and_then(|options| {
        OPTIONS
            .set(options)
            .map_err(|_| "it is loaded twice".to_owned())
    });
    if let Err(error) = set {
        eprintln!("bench-plugin: {error}");
        return -1;
    }
    // SAFETY: `id` is that of this plugin, and the callback uses no data.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translated, std::ptr::null_mut()) };
    0
}
