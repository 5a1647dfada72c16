// SPDX-License-Identifier: GPL-2.0

//! The files of a PMU under `/sys/bus/event_source/devices/`.
//!
//! C counterpart: `PMU_FORMAT_ATTR()`, `PMU_EVENT_ATTR_STRING()` and `perf_event_sysfs_show()`.

use crate::bindings;
use core::ptr;
use kernel::{
    fmt,
    prelude::*,
    str::CString, //
};

/// A read-only file with a fixed text.
///
/// C counterpart: `struct perf_pmu_events_attr`.
///
/// To be made in a `static` of the driver, as [`format!`](crate::format!) does: perf and lockdep
/// keep its address.
#[repr(transparent)]
pub struct Attribute(bindings::perf_pmu_events_attr);

// SAFETY: Never written after it was made; the pointers in it are to `'static` strings.
unsafe impl Sync for Attribute {}

impl Attribute {
    /// The file `name` that contains `text` and a newline. sysfs shows at most a page of it.
    pub const fn new(name: &'static CStr, text: &'static CStr) -> Self {
        let mut attr: bindings::perf_pmu_events_attr = pin_init::zeroed();

        attr.attr.attr.name = kernel::str::as_char_ptr_in_const_context(name);
        attr.attr.attr.mode = 0o444;
        attr.attr.__bindgen_anon_1.show = Some(bindings::rust_perf_text_show);
        attr.event_str = kernel::str::as_char_ptr_in_const_context(text);

        Self(attr)
    }

    /// The file `name`, read through `show`.
    pub(crate) const fn with_show(
        name: &'static CStr,
        show: unsafe extern "C" fn(
            *mut bindings::device,
            *mut bindings::device_attribute,
            *mut c_char,
        ) -> isize,
    ) -> Self {
        let mut attr = Self::new(name, c"");

        attr.0.attr.__bindgen_anon_1.show = Some(show);
        attr
    }

    /// The name of the file.
    pub(crate) fn name(&self) -> &CStr {
        // SAFETY: Set by `new()` from a `&'static CStr`, and never written after.
        unsafe { CStr::from_char_ptr(self.0.attr.attr.name) }
    }

    fn as_raw(&'static self) -> *mut bindings::attribute {
        // sysfs takes mutable pointers but does not write through them.
        ptr::from_ref(&self.0.attr.attr).cast_mut()
    }
}

/// A read-only file whose text is made at run time.
///
/// # Invariants
///
/// The pointers in `raw` are to the strings in `name` and `_text`.
pub(crate) struct OwnedAttribute {
    raw: KBox<bindings::perf_pmu_events_attr>,
    name: CString,
    _text: CString,
}

// SAFETY: Never written after it was made; the pointers in it are to what it owns.
unsafe impl Send for OwnedAttribute {}
// SAFETY: Never written after it was made.
unsafe impl Sync for OwnedAttribute {}

impl OwnedAttribute {
    /// The file `name` that contains `text` and a newline. sysfs shows at most a page of it.
    pub(crate) fn new(name: &CStr, text: fmt::Arguments<'_>) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("{name}"))?;
        let text = CString::try_from_fmt(text)?;
        let mut raw: KBox<bindings::perf_pmu_events_attr> =
            KBox::new(pin_init::zeroed(), GFP_KERNEL)?;

        raw.attr.attr.name = name.as_char_ptr();
        raw.attr.attr.mode = 0o444;
        raw.attr.__bindgen_anon_1.show = Some(bindings::rust_perf_text_show);
        raw.event_str = text.as_char_ptr();
        // SAFETY: The attribute is valid for writes, and no other reference to it exists.
        unsafe { bindings::rust_perf_attr_init(&raw mut raw.attr.attr) };

        // INVARIANT: Set above; the strings' memory does not move with the box.
        Ok(Self {
            raw,
            name,
            _text: text,
        })
    }

    /// The name of the file.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    fn as_raw(&self) -> *mut bindings::attribute {
        // sysfs takes mutable pointers but does not write through them.
        ptr::from_ref(&self.raw.attr.attr).cast_mut()
    }
}

/// Declares files of fixed text, for [`Description::events`](crate::pmu::Description::events) and
/// [`Description::caps`](crate::pmu::Description::caps).
///
/// # Examples
///
/// ```
/// fn events() -> &'static [perf::sysfs::Attribute] {
///     perf::attributes! {
///         slow: "rate=0x10",
///         fast: "rate=0x10000,packet=0x4",
///     }
/// }
///
/// // `perf list` shows `my_pmu/slow/` and `my_pmu/fast/`.
/// assert_eq!(events().len(), 2);
/// ```
///
/// C counterpart: `PMU_EVENT_ATTR_STRING()`.
#[macro_export]
macro_rules! attributes {
    ($($name:ident: $text:literal),* $(,)?) => {{
        static ATTRIBUTES: &[$crate::sysfs::Attribute] = &[$(
            $crate::sysfs::Attribute::new(
                ::kernel::c_str!(::core::stringify!($name)),
                ::kernel::c_str!($text),
            ),
        )*];

        ATTRIBUTES
    }};
}

/// A directory of [`Attribute`]s.
struct Group {
    _raw: KBox<bindings::attribute_group>,
    // `_raw.attrs` points into this.
    _attrs: KVec<*mut bindings::attribute>,
    // `_attrs` points into these.
    _more: KVec<OwnedAttribute>,
}

/// The directories of a PMU, in the form of `pmu->attr_groups`.
///
/// # Invariants
///
/// `ptrs` is a null-terminated list of pointers to the groups in `groups`, which are initialised
/// and stay where they are.
pub(crate) struct Groups {
    ptrs: KVec<*const bindings::attribute_group>,
    _groups: KVec<Group>,
}

// SAFETY: It is only read once it is made. The pointers are to memory that it owns or that is
// `'static`.
unsafe impl Send for Groups {}
// SAFETY: A shared reference gives read access only, and nothing writes to it once it is made.
unsafe impl Sync for Groups {}

impl Groups {
    /// Makes a directory for each name, with its files. The name "" stands for the PMU's own
    /// directory. Directories without files are left out.
    pub(crate) fn new<const N: usize>(
        dirs: [(&'static CStr, &'static [Attribute], KVec<OwnedAttribute>); N],
    ) -> Result<Self> {
        let mut groups = KVec::new();
        let mut ptrs = KVec::new();

        for (name, attributes, more) in dirs {
            if attributes.is_empty() && more.is_empty() {
                continue;
            }
            let mut attrs = KVec::new();
            for attribute in attributes {
                attrs.push(attribute.as_raw(), GFP_KERNEL)?;
            }
            for attribute in &more {
                attrs.push(attribute.as_raw(), GFP_KERNEL)?;
            }
            attrs.push(ptr::null_mut(), GFP_KERNEL)?;

            let mut raw: bindings::attribute_group = pin_init::zeroed();
            if !name.is_empty() {
                raw.name = name.as_char_ptr();
            }
            raw.__bindgen_anon_2.attrs = attrs.as_mut_ptr();
            let raw = KBox::new(raw, GFP_KERNEL)?;

            ptrs.push(ptr::from_ref(&*raw), GFP_KERNEL)?;
            groups.push(
                Group {
                    _raw: raw,
                    _attrs: attrs,
                    _more: more,
                },
                GFP_KERNEL,
            )?;
        }
        ptrs.push(ptr::null(), GFP_KERNEL)?;

        // INVARIANT: The groups are boxed and the lists end with null.
        Ok(Self {
            ptrs,
            _groups: groups,
        })
    }

    /// The list, valid as long as `self`; C does not write to it.
    pub(crate) fn as_raw(&self) -> *mut *const bindings::attribute_group {
        self.ptrs.as_ptr().cast_mut()
    }
}

#[cfg(CONFIG_RUST_PERF_TESTING)]
#[kunit_tests(rust_perf_sysfs)]
mod tests {
    use super::*;
    use kernel::page::PAGE_SIZE;

    /// The text of a file as sysfs gets it, in a page.
    fn shown(text: fmt::Arguments<'_>) -> Result<KVec<u8>> {
        let attribute = OwnedAttribute::new(c"text", text)?;
        let file = ptr::from_ref(&attribute.raw.attr).cast_mut();
        // kmalloc() aligns it to a page.
        let mut page = KVec::from_elem(0u8, PAGE_SIZE, GFP_KERNEL)?;

        // SAFETY: `file` is in a `struct perf_pmu_events_attr`, whose text stays. The function
        // writes at most a page, and does not use the device.
        let len = unsafe {
            bindings::rust_perf_text_show(ptr::null_mut(), file, page.as_mut_ptr().cast())
        };
        page.truncate(usize::try_from(len)?);
        Ok(page)
    }

    #[test]
    fn no_text_is_longer_than_a_page() -> Result {
        assert_eq!(&*shown(fmt!("config:0-3"))?, b"config:0-3\n");
        // sysfs_emit() leaves space for the null.
        assert_eq!(shown(fmt!("{:9000}", 1))?.len(), PAGE_SIZE - 1);
        Ok(())
    }
}
