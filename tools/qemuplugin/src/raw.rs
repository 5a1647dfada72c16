// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The used part of `qemu-plugin.h`. QEMU has the functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `QEMU_PLUGIN_CB_NO_REGS`: the callback reads no registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_CB_R_REGS`: the callback reads registers.
pub(crate) const READS_REGISTERS: c_int = 1;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
pub(crate) const ADD: c_int = 0;
/// `QEMU_PLUGIN_INLINE_STORE_U64`.
pub(crate) const STORE: c_int = 1;
/// `QEMU_PLUGIN_MEM_W`: stores.
pub(crate) const WRITES: c_int = 2;
/// `QEMU_PLUGIN_DISCON_INTERRUPT`.
pub(crate) const INTERRUPT: c_int = 1;
/// `QEMU_PLUGIN_DISCON_EXCEPTION`.
pub(crate) const EXCEPTION: c_int = 2;

#[repr(C)]
pub(crate) struct Block(u8);
#[repr(C)]
pub(crate) struct Instruction(u8);
#[repr(C)]
pub(crate) struct Physical(u8);
#[repr(C)]
pub(crate) struct Scoreboard(u8);
#[repr(C)]
pub(crate) struct Register(u8);

/// `qemu_plugin_u64`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct U64 {
    pub(crate) score: *mut Scoreboard,
    pub(crate) offset: usize,
}

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
pub(crate) struct RegisterDescriptor {
    pub(crate) handle: *mut Register,
    pub(crate) name: *const c_char,
    pub(crate) feature: *const c_char,
    pub(crate) is_readonly: bool,
}

/// GLib's `GArray` and `GByteArray`.
#[repr(C)]
pub(crate) struct Array<T> {
    pub(crate) data: *mut T,
    pub(crate) len: c_uint,
}

/// `qemu_info_t`.
#[repr(C)]
pub(crate) struct Info {
    target_name: *const c_char,
    version_min: c_int,
    version_cur: c_int,
    pub(crate) system_emulation: bool,
    smp_vcpus: c_int,
    pub(crate) max_vcpus: c_int,
}

type Executes = extern "C" fn(c_uint, *mut c_void);
type Wrote = extern "C" fn(c_uint, u32, u64, *mut c_void);

extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: u64,
        cb: extern "C" fn(*mut Block, *mut c_void),
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_discon_cb(
        id: u64,
        kinds: c_int,
        cb: extern "C" fn(c_uint, c_int, u64, u64, *mut c_void),
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_atexit_cb(
        id: u64,
        cb: extern "C" fn(*mut c_void),
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        cb: Executes,
        flags: c_int,
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Instruction,
        cb: Executes,
        flags: c_int,
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Instruction,
        cb: Wrote,
        flags: c_int,
        rw: c_int,
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub(crate) fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_insn_vaddr(insn: *const Instruction) -> u64;
    pub(crate) fn qemu_plugin_insn_data(
        insn: *const Instruction,
        to: *mut c_void,
        len: usize,
    ) -> usize;
    pub(crate) fn qemu_plugin_scoreboard_new(size: usize) -> *mut Scoreboard;
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        insn: *mut Instruction,
        op: c_int,
        entry: U64,
        value: u64,
    );
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut Block,
        op: c_int,
        entry: U64,
        value: u64,
    );
    pub(crate) fn qemu_plugin_num_vcpus() -> c_int;
    pub(crate) fn qemu_plugin_u64_get(entry: U64, cpu: c_uint) -> u64;
    pub(crate) fn qemu_plugin_get_registers() -> *mut Array<RegisterDescriptor>;
    pub(crate) fn qemu_plugin_read_register(register: *mut Register, to: *mut Array<u8>);
    pub(crate) fn qemu_plugin_read_memory_vaddr(
        address: u64,
        to: *mut Array<u8>,
        len: usize,
    ) -> bool;
    pub(crate) fn g_byte_array_new() -> *mut Array<u8>;
    pub(crate) fn g_byte_array_set_size(array: *mut Array<u8>, len: c_uint) -> *mut Array<u8>;
    pub(crate) fn g_array_unref(array: *mut Array<RegisterDescriptor>);
    pub(crate) fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    pub(crate) fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut Physical;
    pub(crate) fn qemu_plugin_hwaddr_phys_addr(address: *const Physical) -> u64;
}
