// SPDX-License-Identifier: GPL-2.0

//! The files of a PMU under `/sys/bus/event_source/devices/`.
//!
//! C counterpart: `PMU_FORMAT_ATTR()`, `PMU_EVENT_ATTR_STRING()` and `perf_event_sysfs_show()`.

use crate::bindings;
use core::ptr;
use kernel::prelude::*;

/// A read-only file with a fixed text.
///
/// C counterpart: `struct perf_pmu_events_attr`.
///
/// Made in a `static` of the driver, as [`format!`](crate::format!) does: perf and lockdep keep
/// its address.
#[repr(transparent)]
pub struct Attribute(bindings::perf_pmu_events_attr);

// SAFETY: Never written after it was made; the pointers in it are to `'static` strings.
unsafe impl Sync for Attribute {}

impl Attribute {
    /// The file `name` that reads `text`, with a newline put behind it.
    pub const fn new(name: &'static CStr, text: &'static CStr) -> Self {
        let mut attr: bindings::perf_pmu_events_attr = pin_init::zeroed();

        attr.attr.attr.name = kernel::str::as_char_ptr_in_const_context(name);
        attr.attr.attr.mode = 0o444;
        attr.attr.__bindgen_anon_1.show = Some(bindings::perf_event_sysfs_show);
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

    fn as_raw(&'static self) -> *mut bindings::attribute {
        // sysfs takes mutable pointers but does not write through them.
        ptr::from_ref(&self.0.attr.attr).cast_mut()
    }
}

/// Declares files of fixed text, for [`Pmu::events`](crate::Pmu::events) and
/// [`Pmu::caps`](crate::Pmu::caps).
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
}

/// The directories of a PMU, as `pmu.attr_groups` wants them.
///
/// # Invariants
///
/// `ptrs` is a null-terminated list of pointers to the groups in `groups`, which are initialised
/// and stay where they are.
pub(crate) struct Groups {
    ptrs: KVec<*const bindings::attribute_group>,
    _groups: KVec<Group>,
}

// SAFETY: Only read once made, and what the pointers lead to is owned or `'static`.
unsafe impl Send for Groups {}
// SAFETY: As above.
unsafe impl Sync for Groups {}

impl Groups {
    /// Makes the directories named, with their files; the name "" is for files beside them.
    /// Directories without files are left out.
    pub(crate) fn new(dirs: &[(&'static CStr, &'static [Attribute])]) -> Result<Self> {
        let mut groups = KVec::new();
        let mut ptrs = KVec::new();

        for &(name, attributes) in dirs.iter().filter(|(_, files)| !files.is_empty()) {
            let mut attrs = KVec::with_capacity(attributes.len() + 1, GFP_KERNEL)?;
            for attribute in attributes {
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
