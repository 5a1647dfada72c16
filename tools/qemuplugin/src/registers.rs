// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The registers of a virtual CPU.

use crate::raw;
use std::ffi::CStr;
use std::marker::PhantomData;

/// The registers of the virtual CPU whose callback this is.
#[derive(Debug)]
pub struct Registers<'a>(PhantomData<&'a *mut ()>);

/// A register.
#[derive(Debug, Clone, Copy)]
pub struct Register(*mut raw::Register);

// SAFETY: It is QEMU's name of a register, which is read on the CPU that is asked for it.
unsafe impl Send for Register {}
// SAFETY: It has no state.
unsafe impl Sync for Register {}

impl Registers<'_> {
    /// # Safety
    ///
    /// It must be used only in a callback that QEMU lets read registers.
    pub(crate) unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// The register of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Register> {
        // SAFETY: In a callback of a virtual CPU, by the type.
        let list = unsafe { raw::qemu_plugin_get_registers() };
        if list.is_null() {
            return None;
        }
        // SAFETY: An array of GLib's, not null, and ours until it is given back below.
        let array = unsafe { &*list };
        let len = usize::try_from(array.len).unwrap_or(0);
        let mut found = None;
        for index in 0..len {
            // SAFETY: The array has `len` elements.
            let descriptor = unsafe { array.data.add(index) };
            // SAFETY: An element of the array, which is not changed.
            let descriptor = unsafe { &*descriptor };
            if descriptor.name.is_null() {
                continue;
            }
            // SAFETY: A string that lives as long as QEMU.
            let text = unsafe { CStr::from_ptr(descriptor.name) };
            if text.to_bytes() == name.as_bytes() {
                found = Some(Register(descriptor.handle));
            }
        }
        // SAFETY: Ours, and not used any more.
        unsafe { raw::g_array_unref(list) };
        found
    }

    /// The value of a register of 64 bits.
    #[must_use]
    pub fn read(&self, register: Register) -> Option<u64> {
        TO.with(|to| {
            let to = to.0;
            // SAFETY: An array of this thread's, which is never freed, and has place for less.
            unsafe { raw::g_byte_array_set_size(to, 0) };
            // SAFETY: A register of QEMU's; an array of this thread's, which is never freed; in a
            // callback that may read registers, by the type.
            unsafe { raw::qemu_plugin_read_register(register.0, to) };
            // SAFETY: An array of GLib's, of this thread's, which nobody changes here.
            let array = unsafe { &*to };
            if array.len != 8 {
                return None;
            }
            // SAFETY: The array has eight bytes.
            let bytes = unsafe { array.data.cast::<[u8; 8]>().read() };
            Some(u64::from_le_bytes(bytes))
        })
    }
}

/// Where QEMU writes the value of a register.
struct To(*mut raw::Array<u8>);

thread_local! {
    /// Made once, as a program's code is looked for at each of its returns.
    // SAFETY: Makes a new one.
    static TO: To = To(unsafe { raw::g_byte_array_new() });
}
