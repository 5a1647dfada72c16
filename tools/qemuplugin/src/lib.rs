// SPDX-License-Identifier: GPL-2.0 OR MIT

//! QEMU's interface for plugins, version 7 (QEMU 11): `qemu-plugin.h`.
//!
//! A plugin is a `cdylib` with a [`Plugin`], which [`plugin!`] exports. QEMU calls the plugin for each block of guest code that it
//! translates. In that callback the plugin registers callbacks for the execution of the block, or of its instructions.
//!
//! The data of a callback must live as long as QEMU: QEMU does not report when it discards a translation.
//!
//! QEMU never runs callbacks of one virtual CPU on two threads at the same time.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::marker::PhantomData;

use registers::Registers;

pub mod biased;
pub mod inside;
mod raw;
pub mod registers;

/// A plugin.
pub trait Plugin: Sync + Sized + 'static {
    /// Creates the plugin from the options on QEMU's command line.
    ///
    /// # Errors
    ///
    /// An option is not valid, or a file cannot be opened. QEMU prints the error and exits.
    fn new(options: &Options, machine: &Machine) -> Result<Self, String>;

    /// Called when QEMU translates a block.
    fn translated(&'static self, translation: &Translation<'_>);

    /// The plugin's callback for discontinuities, if it has one.
    fn discontinuities(&'static self) -> Option<&'static dyn Discontinuities> {
        None
    }

    /// Called when QEMU exits.
    fn exits(&'static self) {}
}

/// A callback for discontinuities: control flow that is not caused by a branch.
pub trait Discontinuities: Sync {
    /// A virtual CPU continues at `to`. For [`Discontinuity::Interrupt`], `from` is the instruction that would have been next. For
    /// [`Discontinuity::Exception`], it is the instruction that caused the exception.
    fn discontinuity(&self, cpu: &mut VirtualCpu, kind: Discontinuity, from: u64, to: u64);
}

/// The kind of a discontinuity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discontinuity {
    /// An interrupt.
    Interrupt,
    /// A fault, a trap or a software interrupt.
    Exception,
}

/// A callback for the execution of a block or an instruction.
pub trait Executes: Sync + 'static {
    /// The virtual CPU is about to execute the block or the instruction.
    fn executes(&'static self, cpu: &mut VirtualCpu);
}

/// A callback for the execution of a block or an instruction, which can read registers.
pub trait Sees: Sync + 'static {
    /// The virtual CPU is about to execute the block or the instruction.
    fn executes(&'static self, cpu: &mut VirtualCpu, registers: &Registers<'_>);
}

/// A callback for writes of an instruction to memory.
pub trait Writes: Sync + 'static {
    /// Whether `wrote()` is to be called now. If not, the search for the physical address is skipped.
    fn is_on(&'static self) -> bool;

    /// The virtual CPU has written `len` bytes at this physical address.
    fn wrote(&'static self, cpu: &mut VirtualCpu, address: u64, len: u64);
}

/// The options behind the plugin's file on QEMU's command line: `name=value`, separated by commas.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(String, String)>);

impl Options {
    /// Parses the options.
    ///
    /// # Errors
    ///
    /// A word has no value, or a name that is not one of `names`.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str>,
        names: &[&str],
    ) -> Result<Self, String> {
        let mut options = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some((name, value)) if names.contains(&name) => {
                    options.push((name.to_owned(), value.to_owned()));
                }
                _ => {
                    return Err(format!(
                        "unknown option {word:?}: it takes {}",
                        names.join(", ")
                    ))
                }
            }
        }
        Ok(Self(options))
    }

    /// The value of an option; the last one if it is given several times.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(found, _)| found == name)?;
        Some(&found.1)
    }

    /// The value of a mandatory option.
    ///
    /// # Errors
    ///
    /// The option is missing.
    pub fn need(&self, name: &str) -> Result<&str, String> {
        self.get(name).ok_or_else(|| format!("{name}= is missing"))
    }

    /// The value of an option as an address: a hexadecimal number with or without `0x`.
    ///
    /// # Errors
    ///
    /// The option is missing, or its value is not an address.
    pub fn address(&self, name: &str) -> Result<u64, String> {
        let text = self.need(name)?;
        u64::from_str_radix(text.trim_start_matches("0x"), 16)
            .map_err(|e| format!("{name}={text} is no address: {e}"))
    }
}

/// Properties of the emulated machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Maximum number of virtual CPUs of the guest.
    pub cpus: usize,
}

/// A block that is being translated.
pub struct Translation<'a> {
    block: *mut raw::Block,
    _callback: PhantomData<&'a ()>,
}

impl Translation<'_> {
    /// The address of the block's first instruction.
    #[must_use]
    pub fn address(&self) -> u64 {
        // SAFETY: QEMU's block, valid during the callback, to which `self` is bound.
        unsafe { raw::qemu_plugin_tb_vaddr(self.block) }
    }

    /// The number of the block's instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        // SAFETY: QEMU's block, valid during the callback, to which `self` is bound.
        unsafe { raw::qemu_plugin_tb_n_insns(self.block) }
    }

    /// Whether the block has no instructions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The instructions of the block.
    pub fn instructions(&self) -> impl DoubleEndedIterator<Item = Instruction<'_>> {
        (0..self.len()).map(|index| Instruction {
            // SAFETY: QEMU's block, valid during the callback, to which `self` is bound; `index` is
            // below the number of its instructions.
            raw: unsafe { raw::qemu_plugin_tb_get_insn(self.block, index) },
            _callback: PhantomData,
        })
    }

    /// Registers `what` to be called each time that the block is about to execute.
    pub fn on_execution<E: Executes>(&self, what: &'static E) {
        let user = std::ptr::from_ref(what).cast_mut().cast();
        // SAFETY: QEMU's block, valid during the callback, to which `self` is bound. `executes::<E>()` gets a pointer to an `E`, which is
        // never freed.
        unsafe {
            raw::qemu_plugin_register_vcpu_tb_exec_cb(
                self.block,
                executes::<E>,
                raw::NO_REGISTERS,
                user,
            );
        }
    }

    /// Clears `flag` each time that the block is about to execute, after the callbacks that were registered before.
    pub fn clears(&self, flag: Flag) {
        // SAFETY: QEMU's block, valid during the callback, to which `self` is bound. The scoreboard is never freed, and has a number at
        // this offset.
        unsafe {
            raw::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
                self.block,
                raw::STORE,
                flag.0 .0,
                0,
            );
        }
    }

    /// Like [`Self::on_execution()`], for a callback that reads registers.
    pub fn on_execution_with_registers<S: Sees>(&self, what: &'static S) {
        let user = std::ptr::from_ref(what).cast_mut().cast();
        // SAFETY: QEMU's block, valid during the callback, to which `self` is bound. `sees::<S>()` gets a pointer to an `S`, which is never
        // freed.
        unsafe {
            raw::qemu_plugin_register_vcpu_tb_exec_cb(
                self.block,
                sees::<S>,
                raw::READS_REGISTERS,
                user,
            );
        }
    }
}

/// A number for each virtual CPU, in a scoreboard that is never freed.
#[derive(Debug, Clone, Copy)]
struct Number(raw::U64);

// SAFETY: A handle of QEMU's, which can be used on any thread.
unsafe impl Send for Number {}
// SAFETY: A handle has no state, and QEMU's functions for it may be called at the same time.
unsafe impl Sync for Number {}

impl Number {
    /// A number that is 0 on each CPU.
    fn new() -> Self {
        Self(raw::U64 {
            // SAFETY: Creates a new scoreboard with space for a number on each CPU; there are no requirements.
            score: unsafe { raw::qemu_plugin_scoreboard_new(size_of::<u64>()) },
            offset: 0,
        })
    }

    /// The number on a CPU; 0 for a CPU that QEMU has not started. QEMU aborts if it is asked for the number of such a CPU.
    fn get(self, cpu: usize) -> u64 {
        // SAFETY: No requirements.
        let started = unsafe { raw::qemu_plugin_num_vcpus() };
        if usize::try_from(started).unwrap_or(0) <= cpu {
            return 0;
        }
        let cpu = c_uint::try_from(cpu).unwrap_or(0);
        // SAFETY: The scoreboard is never freed, and has a number at this offset. The index is that of a CPU that QEMU has started.
        unsafe { raw::qemu_plugin_u64_get(self.0, cpu) }
    }
}

/// A flag for each virtual CPU, which translated code sets and clears.
#[derive(Debug, Clone, Copy)]
pub struct Flag(Number);

impl Flag {
    /// A flag that is clear on each CPU.
    #[must_use]
    pub fn new() -> Self {
        Self(Number::new())
    }

    /// Whether the flag is set on this CPU.
    #[must_use]
    pub fn is_set(self, cpu: usize) -> bool {
        self.0.get(cpu) != 0
    }
}

/// A counter for each virtual CPU, to which translated code adds.
#[derive(Debug, Clone, Copy)]
pub struct Counter(Number);

impl Counter {
    /// A counter that is 0 on each CPU.
    #[must_use]
    pub fn new() -> Self {
        Self(Number::new())
    }

    /// The value of the counter on this CPU.
    #[must_use]
    pub fn get(self, cpu: usize) -> u64 {
        self.0.get(cpu)
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Flag {
    fn default() -> Self {
        Self::new()
    }
}

/// The longest instruction of x86, in bytes.
pub const LEN_MAX: usize = 15;

/// An instruction of a block that is being translated.
pub struct Instruction<'a> {
    raw: *mut raw::Instruction,
    _callback: PhantomData<&'a ()>,
}

impl Instruction<'_> {
    /// The address of the instruction.
    #[must_use]
    pub fn address(&self) -> u64 {
        // SAFETY: QEMU's instruction, valid during the callback, to which `self` is bound.
        unsafe { raw::qemu_plugin_insn_vaddr(self.raw) }
    }

    /// Copies the bytes of the instruction to `buffer`, and returns them.
    #[must_use]
    pub fn bytes<'b>(&self, buffer: &'b mut [u8; LEN_MAX]) -> &'b [u8] {
        // SAFETY: QEMU's instruction, valid during the callback, to which `self` is bound. The buffer has the length that is passed.
        let len = unsafe {
            raw::qemu_plugin_insn_data(self.raw, buffer.as_mut_ptr().cast(), buffer.len())
        };
        buffer.get(..len).unwrap_or_default()
    }

    /// Registers `what` to be called each time that the instruction is about to execute.
    pub fn on_execution<E: Executes>(&self, what: &'static E) {
        let user = std::ptr::from_ref(what).cast_mut().cast();
        // SAFETY: QEMU's instruction, valid during the callback, to which `self` is bound. `executes::<E>()` gets a pointer to an `E`,
        // which is never freed.
        unsafe {
            raw::qemu_plugin_register_vcpu_insn_exec_cb(
                self.raw,
                executes::<E>,
                raw::NO_REGISTERS,
                user,
            );
        }
    }

    /// Like [`Self::on_execution()`], for a callback that reads registers.
    pub fn on_execution_with_registers<S: Sees>(&self, what: &'static S) {
        let user = std::ptr::from_ref(what).cast_mut().cast();
        // SAFETY: QEMU's instruction, valid during the callback, to which `self` is bound. `sees::<S>()` gets a pointer to an `S`, which is
        // never freed.
        unsafe {
            raw::qemu_plugin_register_vcpu_insn_exec_cb(
                self.raw,
                sees::<S>,
                raw::READS_REGISTERS,
                user,
            );
        }
    }

    /// Sets `flag` each time that the instruction is about to execute.
    pub fn sets(&self, flag: Flag) {
        self.inline(raw::STORE, flag.0);
    }

    /// Adds 1 to `counter` each time that the instruction is about to execute, after the callbacks of its block.
    pub fn counts(&self, counter: Counter) {
        self.inline(raw::ADD, counter.0);
    }

    fn inline(&self, op: c_int, number: Number) {
        // SAFETY: QEMU's instruction, valid during the callback, to which `self` is bound. The scoreboard is never freed, and has a number
        // at this offset.
        unsafe {
            raw::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(self.raw, op, number.0, 1);
        }
    }

    /// Registers `what` to be called each time that the instruction has written to memory, but not to a device's registers.
    pub fn on_write<W: Writes>(&self, what: &'static W) {
        let user = std::ptr::from_ref(what).cast_mut().cast();
        // SAFETY: QEMU's instruction, valid during the callback, to which `self` is bound. `wrote::<W>()` gets a pointer to a `W`, which is
        // never freed.
        unsafe {
            raw::qemu_plugin_register_vcpu_mem_cb(
                self.raw,
                wrote::<W>,
                raw::NO_REGISTERS,
                raw::WRITES,
                user,
            );
        }
    }
}

/// The virtual CPU on whose thread a callback runs. QEMU never has two threads for one CPU at the same time.
#[derive(Debug)]
pub struct VirtualCpu {
    index: usize,
    /// Prevents `Send`: the value stays on the CPU's thread.
    _thread: PhantomData<*mut ()>,
}

impl VirtualCpu {
    /// The virtual CPU whose callback this is.
    fn calls(cpu: c_uint) -> Self {
        Self {
            index: usize::try_from(cpu).unwrap_or(usize::MAX),
            _thread: PhantomData,
        }
    }

    /// The index of the virtual CPU.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

extern "C" fn executes<E: Executes>(cpu: c_uint, user: *mut c_void) {
    // SAFETY: `on_execution()` has given QEMU an `E` that is never freed.
    let what: &'static E = unsafe { &*user.cast::<E>() };
    what.executes(&mut VirtualCpu::calls(cpu));
}

extern "C" fn sees<S: Sees>(cpu: c_uint, user: *mut c_void) {
    // SAFETY: One of the two `on_execution_with_registers()` has given QEMU an `S` that is never freed.
    let what: &'static S = unsafe { &*user.cast::<S>() };
    // SAFETY: QEMU calls this with `READS_REGISTERS`.
    let registers = unsafe { Registers::new() };
    what.executes(&mut VirtualCpu::calls(cpu), &registers);
}

extern "C" fn wrote<W: Writes>(cpu: c_uint, info: u32, address: u64, user: *mut c_void) {
    // SAFETY: `on_write()` has given QEMU a `W` that is never freed.
    let what: &'static W = unsafe { &*user.cast::<W>() };
    if !what.is_on() {
        return;
    }
    // SAFETY: `info` and `address` are those of this callback.
    let physical = unsafe { raw::qemu_plugin_get_hwaddr(info, address) };
    if physical.is_null() {
        return;
    }
    // SAFETY: Not null, and used in the callback that it was asked for in.
    let physical = unsafe { raw::qemu_plugin_hwaddr_phys_addr(physical) };
    // SAFETY: `info` is that of this callback.
    let shift = unsafe { raw::qemu_plugin_mem_size_shift(info) };
    what.wrote(&mut VirtualCpu::calls(cpu), physical, 1 << shift);
}

extern "C" fn translated<P: Plugin>(block: *mut raw::Block, user: *mut c_void) {
    // SAFETY: `install()` has given QEMU a `P` that is never freed.
    let plugin: &'static P = unsafe { &*user.cast::<P>() };
    plugin.translated(&Translation {
        block,
        _callback: PhantomData,
    });
}

extern "C" fn discontinuity<P: Plugin>(
    cpu: c_uint,
    kind: c_int,
    from: u64,
    to: u64,
    user: *mut c_void,
) {
    // SAFETY: `install()` has given QEMU a `P` that is never freed.
    let plugin: &'static P = unsafe { &*user.cast::<P>() };
    let kind = match kind {
        raw::INTERRUPT => Discontinuity::Interrupt,
        _ => Discontinuity::Exception,
    };
    if let Some(what) = plugin.discontinuities() {
        what.discontinuity(&mut VirtualCpu::calls(cpu), kind, from, to);
    }
}

extern "C" fn exits<P: Plugin>(user: *mut c_void) {
    // SAFETY: `install()` has given QEMU a `P` that is never freed.
    let plugin: &'static P = unsafe { &*user.cast::<P>() };
    plugin.exits();
}

/// Installs the plugin. QEMU calls this through [`plugin!`] when it has loaded the plugin. Returns 0 on success.
///
/// # Safety
///
/// The arguments must be those of `qemu_plugin_install()`.
#[doc(hidden)]
pub unsafe fn install<P: Plugin>(
    name: &str,
    names: &[&str],
    id: u64,
    info: *const c_void,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    let mut texts = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `index` is below `count`, the length of the array by the safety requirement.
        let word = unsafe { words.add(index) };
        // SAFETY: `word` points into the array, as computed above.
        let word = unsafe { word.read() };
        // SAFETY: A string, by the safety requirement; it lives during this call.
        let word = unsafe { CStr::from_ptr(word) };
        texts.push(word.to_string_lossy().into_owned());
    }
    // SAFETY: By the safety requirement; it lives during this call.
    let info = unsafe { &*info.cast::<raw::Info>() };
    let machine = Machine {
        cpus: usize::try_from(info.max_vcpus).unwrap_or(0),
    };
    let made = Options::parse(texts.iter().map(String::as_str), names).and_then(|options| {
        if !info.system_emulation {
            return Err("it is for the emulation of a machine".to_owned());
        }
        P::new(&options, &machine)
    });
    let plugin: &'static P = match made {
        Ok(plugin) => Box::leak(Box::new(plugin)),
        Err(error) => {
            eprintln!("{name}: {error}");
            return -1;
        }
    };
    let user: *mut c_void = std::ptr::from_ref(plugin).cast_mut().cast();
    // SAFETY: `id` is that of this plugin, by the safety requirement. `translated::<P>()` gets a pointer to a `P`, which is never freed.
    unsafe { raw::qemu_plugin_register_vcpu_tb_trans_cb(id, translated::<P>, user) };
    if plugin.discontinuities().is_some() {
        let kinds = raw::INTERRUPT | raw::EXCEPTION;
        // SAFETY: `id` is that of this plugin, by the safety requirement. `discontinuity::<P>()` gets a pointer to a `P`, which is never
        // freed.
        unsafe { raw::qemu_plugin_register_vcpu_discon_cb(id, kinds, discontinuity::<P>, user) };
    }
    // SAFETY: `id` is that of this plugin, by the safety requirement. `exits::<P>()` gets a pointer to a `P`, which is never freed.
    unsafe { raw::qemu_plugin_register_atexit_cb(id, exits::<P>, user) };
    0
}

/// Exports a [`Plugin`] to QEMU: the type, the name with which its error messages begin, and the names of its options.
///
/// ```text
/// qemuplugin::plugin!(Counter, "counter", ["out"]);
/// ```
#[macro_export]
macro_rules! plugin {
    ($type:ty, $name:literal, $options:expr) => {
        /// The version of the interface.
        #[no_mangle]
        pub static qemu_plugin_version: ::std::ffi::c_int = 7;

        /// QEMU calls this when it has loaded the plugin.
        ///
        /// # Safety
        ///
        /// Only QEMU may call it.
        #[no_mangle]
        pub unsafe extern "C" fn qemu_plugin_install(
            id: u64,
            info: *const ::std::ffi::c_void,
            count: ::std::ffi::c_int,
            words: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: QEMU's own arguments, by the safety requirement.
            unsafe { $crate::install::<$type>($name, &$options, id, info, count, words) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_known_and_have_values() {
        let names = ["out", "from"];
        let options = Options::parse(["out=a=b", "from=0xFF", "out=c"], &names).unwrap();
        assert_eq!(options.get("out"), Some("c"));
        assert_eq!(options.address("from"), Ok(0xff));
        assert_eq!(options.need("to"), Err("to= is missing".to_owned()));
        for (word, said) in [
            ("out", "unknown option \"out\": it takes out, from"),
            ("other=1", "unknown option \"other=1\": it takes out, from"),
        ] {
            assert_eq!(Options::parse([word], &names), Err(said.to_owned()));
        }
        let options = Options::parse(["from=x"], &names).unwrap();
        assert!(options
            .address("from")
            .is_err_and(|e| e.contains("from=x is no address")));
    }
}
