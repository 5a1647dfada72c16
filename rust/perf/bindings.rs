// SPDX-License-Identifier: GPL-2.0

//! Raw bindings: those of the kernel crate, and those for perf that it lacks.
//!
//! Only this crate uses raw C types; drivers never do.

// Generated code is not ours to lint; the list is that of `rust/bindings/lib.rs`.
#[allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]
mod raw {
    // Generated items shadow those of the glob: `perf_event`, opaque there, has its fields here.
    pub(crate) use kernel::bindings::*;

    use kernel::ffi;
    use pin_init::MaybeZeroable;

    include!(concat!(env!("RUST_PERF_OBJTREE"), "/bindings_generated.rs"));
}

pub(crate) use raw::*;
