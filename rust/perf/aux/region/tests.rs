// SPDX-License-Identifier: GPL-2.0

//! Tests of writing to the region.

use kernel::prelude::*;

#[kunit_tests(rust_perf_aux_region)]
mod cases {
    use super::super::*;
    use core::ffi::c_void;
    use kernel::page::PAGE_SIZE;

    /// The memory of a ring as perf allocates it: pages, and an array of their addresses.
    struct Memory {
        pages: KVec<KBox<[u8; PAGE_SIZE]>>,
        addresses: KVec<*mut c_void>,
    }

    impl Memory {
        fn new(nr_pages: usize) -> Result<Self> {
            let mut pages = KVec::new();
            let mut addresses = KVec::new();

            for _ in 0..nr_pages {
                let mut page = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;

                addresses.push(ptr::from_mut(&mut *page).cast(), GFP_KERNEL)?;
                pages.push(page, GFP_KERNEL)?;
            }
            Ok(Self { pages, addresses })
        }

        fn byte(&self, offset: usize) -> Option<u8> {
            let page = self.pages.get(offset / PAGE_SIZE)?;
            let place = ptr::from_ref(page.get(offset % PAGE_SIZE)?);

            // SAFETY: `place` is from a reference. The read is volatile, since the region writes
            // through the addresses.
            Some(unsafe { place.read_volatile() })
        }
    }

    /// The pages of `memory`, and an extent of them from `head` on.
    ///
    /// # Safety
    ///
    /// `memory` must outlive them.
    unsafe fn area(
        memory: &mut Memory,
        head: u64,
        space: u64,
        wakeup: u64,
        overwrite: bool,
    ) -> Result<(Pages, Extent)> {
        let nr_pages = memory.pages.len().try_into()?;
        // SAFETY: The array holds the addresses of that many pages, which live long enough by the
        // safety requirement.
        let pages = unsafe { Pages::new(memory.addresses.as_mut_ptr(), nr_pages, overwrite)? };
        let mut handle = Handle::new();

        handle.set_head(Pos::new(head));
        handle.0.size = space.try_into()?;
        handle.0.wakeup = wakeup.try_into()?;
        let extent = Extent::new(&handle, &pages);
        Ok((pages, extent))
    }

    struct Case {
        head: u64,
        space: u64,
        overwrite: bool,
        /// Lengths to write, one after the other, and whether they fit.
        writes: &'static [(usize, bool)],
        written: u64,
    }

    const RING: u64 = 2 * 4096;

    const CASES: &[Case] = &[
        // To the last byte, and not one more.
        Case {
            head: 0,
            space: 100,
            overwrite: false,
            writes: &[(60, true), (41, false), (40, true), (1, false), (0, true)],
            written: 100,
        },
        // Over the end of a page, and over the end of the ring, from a head that has wrapped.
        Case {
            head: 5 * RING + 4090,
            space: RING - 1,
            overwrite: false,
            writes: &[
                (10, true),
                (4090, true),
                (4000, true),
                (92, false),
                (91, true),
            ],
            written: RING - 1,
        },
        // A head at the end of the counter.
        Case {
            head: u64::MAX - 9,
            space: 64,
            overwrite: false,
            writes: &[(64, true), (1, false)],
            written: 64,
        },
        // perf never offers the whole ring; if it did, the region would not use it.
        Case {
            head: 0,
            space: u64::MAX,
            overwrite: false,
            writes: &[(2 * 4096, false), (2 * 4096 - 1, true), (1, false)],
            written: RING - 1,
        },
        // No limit in overwrite mode, whatever the handle's size is.
        Case {
            head: 17,
            space: 0,
            overwrite: true,
            writes: &[
                (2 * 4096 + 1, false),
                (2 * 4096, true),
                (2 * 4096, true),
                (3, true),
            ],
            written: 2 * RING + 3,
        },
    ];

    /// Runs a case; true if every byte is where it must be, and no other was touched.
    fn check(case: &Case) -> Result<bool> {
        let mut memory = Memory::new(2)?;
        // SAFETY: `memory` is dropped last.
        let (pages, mut extent) =
            unsafe { area(&mut memory, case.head, case.space, 0, case.overwrite)? };
        let mut region = Region::new(&pages, &mut extent);
        let mut model = KVec::from_elem(0u8, 2 * PAGE_SIZE, GFP_KERNEL)?;
        let mut at = case.head;

        for (i, &(len, fits)) in (1u8..).zip(case.writes) {
            let bytes = KVec::from_elem(i, len, GFP_KERNEL)?;

            match region.reserve(len) {
                Ok(mut writer) if fits => {
                    // In two pieces; a third would be one too many.
                    let (front, back) = bytes.split_at(len / 3);
                    if writer.put(front).is_err()
                        || writer.put(back).is_err()
                        || writer.put(&[0]).is_ok()
                    {
                        return Ok(false);
                    }
                    writer.commit();
                }
                Err(Full) if !fits => continue,
                _ => return Ok(false),
            }

            for _ in 0..len {
                let place = usize::try_from(at % RING)?;
                *model.get_mut(place).ok_or(EINVAL)? = i;
                at = at.wrapping_add(1);
            }
        }

        Ok(region.written() == case.written
            && (0..2 * PAGE_SIZE).all(|i| memory.byte(i) == model.get(i).copied()))
    }

    #[test]
    fn writes_land_where_they_must() {
        for case in CASES {
            assert!(check(case) == Ok(true));
        }
    }

    /// What is put but not committed does not count.
    #[test]
    fn dropped_writer_counts_nothing() {
        let written = || -> Result<u64> {
            let mut memory = Memory::new(1)?;
            // SAFETY: `memory` is dropped last.
            let (pages, mut extent) = unsafe { area(&mut memory, 0, 100, 0, false)? };
            let mut region = Region::new(&pages, &mut extent);

            if let Ok(mut writer) = region.reserve(10) {
                writer.put(&[1; 10]).map_err(|_| EINVAL)?;
            }
            Ok(region.written())
        };

        assert!(written() == Ok(0));
    }

    #[test]
    fn wakeup_is_a_position() {
        // Head, wakeup point, bytes written, due; also where the counter wraps.
        let table = [
            (0, 64, 63, false),
            (0, 64, 64, true),
            (100, 64, 0, false),
            (100, 64, 1, true),
            (u64::MAX - 9, 20, 29, false),
            (u64::MAX - 9, 20, 30, true),
        ];

        for (head, wakeup, len, due) in table {
            let seen = || -> Result<bool> {
                let mut memory = Memory::new(1)?;
                // SAFETY: `memory` is dropped last.
                let (pages, mut extent) = unsafe { area(&mut memory, head, 4095, wakeup, false)? };
                let mut region = Region::new(&pages, &mut extent);
                let mut writer = region.reserve(len).map_err(|_| EINVAL)?;

                writer
                    .put([0; 64].get(..len).ok_or(EINVAL)?)
                    .map_err(|_| EINVAL)?;
                writer.commit();
                Ok(region.wakeup_due())
            };

            assert!(seen() == Ok(due));
        }
    }
}
