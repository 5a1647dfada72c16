// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mapping rings: calls that must succeed, and calls that must fail.

use std::os::fd::AsFd;

use anyhow::{ensure, Context, Result};
use auxrec::sys::{page_size, Field, Mapping};
use rustix::io::Errno;

use super::{at_both, case, core, refused, ring, Case, Rule};
use crate::pmu::{Place, Pmu};
use crate::rig::{bytes, makes_trace, map_aux, map_base, offset, work, Mode, Rig, DATA_PAGES};

/// A wrong mapping: the area according to the control page, and the area that is mapped.
struct Wrong {
    what: &'static str,
    rule: Rule,
    /// `aux_offset` and `aux_size` in the control page.
    says: (u64, u64),
    /// Offset of the mapping, and its number of pages.
    maps: (u64, usize),
    error: Errno,
}

fn wrong() -> Vec<Wrong> {
    let behind = core(7393, "if (aux_offset < perf_data_size(rb) + PAGE_SIZE)");
    let elsewhere = core(7396, "if (aux_offset != pgoff_start << PAGE_SHIFT)");
    let size = core(7403, "if (aux_size != nr_pages * PAGE_SIZE)");
    let power = core(7410, "if (!is_power_of_2(nr_pages))");
    let row = |what, rule, says, maps| Wrong {
        what,
        rule,
        says,
        maps,
        error: Errno::INVAL,
    };
    let at = offset();
    vec![
        row("an area nowhere", behind, (0, 0), (at, 4)),
        row(
            "an area in the data ring",
            behind,
            (bytes(4), bytes(4)),
            (bytes(4), 4),
        ),
        row(
            "an area that begins a page too early",
            behind,
            (at - bytes(1), bytes(4)),
            (at - bytes(1), 4),
        ),
        row("an area of 3 pages", power, (at, bytes(3)), (at, 3)),
        row("an area of 5 pages", power, (at, bytes(5)), (at, 5)),
        row(
            "an area that is larger than it says",
            size,
            (at, bytes(4)),
            (at, 8),
        ),
        row(
            "an area that is smaller than it says",
            size,
            (at, bytes(8)),
            (at, 4),
        ),
        row(
            "an area that is elsewhere",
            elsewhere,
            (at, bytes(4)),
            (at + bytes(1), 4),
        ),
        row(
            "an area that says it is elsewhere",
            elsewhere,
            (at + bytes(1), bytes(4)),
            (at, 4),
        ),
        row("an area of half a page", size, (at, bytes(1) / 2), (at, 1)),
        row("an area of no size", size, (at, 0), (at, 4)),
        row(
            "an area at an odd place",
            elsewhere,
            (at + 1, bytes(4)),
            (at, 4),
        ),
        row(
            "an area at the end of all",
            elsewhere,
            (u64::MAX, bytes(4)),
            (at, 4),
        ),
        row("an area of all memory", size, (at, u64::MAX), (at, 4)),
    ]
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for wrong in wrong() {
        cases.push(case(
            format!("map: {}", wrong.what),
            wrong.rule,
            move |pmu| {
                let event = pmu.open(pmu.place())?;
                let base = map_base(&event)?;
                base.store(
                    Field::AuxOffset,
                    wrong.says.0,
                    std::sync::atomic::Ordering::Relaxed,
                );
                base.store(
                    Field::AuxSize,
                    wrong.says.1,
                    std::sync::atomic::Ordering::Relaxed,
                );
                let (offset, pages) = wrong.maps;
                let mapped = Mapping::new(&event, offset, pages * page_size(), true);
                refused("it", mapped, wrong.error)?;
                // A correct mapping still succeeds.
                map_aux(&event, &base, pmu.pages(4), Mode::Normal)
                    .context("the right area behind it")?;
                Ok("refused".to_owned())
            },
        ));
    }
    let data = core(7307, "if (nr_pages != 0 && !is_power_of_2(nr_pages))");
    for (what, pages) in [("3", 4), ("7", 8), ("12", 13)] {
        cases.push(case(
            format!("map: a data ring of {what} pages"),
            data,
            move |pmu| {
                let event = pmu.open(pmu.place())?;
                let mapped = Mapping::new(&event, 0, pages * page_size(), true);
                refused("it", mapped, Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ));
    }
    cases.extend([
        case(
            "map: an area without a data ring",
            core(7379, "rb = event->rb;"),
            |pmu| {
                let event = pmu.open(pmu.place())?;
                let mapped = Mapping::new(&event, offset(), 4 * page_size(), true);
                refused("it", mapped, Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "map: an area beside a data ring of no pages",
            ring(338, "if (!rb->nr_pages)"),
            no_data,
        ),
        case(
            "map: a second data ring of another size",
            core(7313, "if (data_page_nr(event->rb) != nr_pages)"),
            |pmu| {
                let event = pmu.open(pmu.place())?;
                let base = map_base(&event)?;
                let mapped = Mapping::new(&event, 0, (1 + 2 * DATA_PAGES) * page_size(), true);
                refused("it", mapped, Errno::INVAL)?;
                drop(base);
                Ok("refused".to_owned())
            },
        ),
        case(
            "map: the data ring twice",
            core(7325, "if (refcount_inc_not_zero(&event->rb->mmap_count)) {"),
            |pmu| {
                let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let again = map_base(&rig.event)?;
                rig.event.enable()?;
                rig.traces(1)?;
                rig.settles()?;
                drop(again);
                rig.is_exact()
            },
        ),
        case(
            "map: the area twice",
            core(7417, "refcount_inc(&rb->aux_mmap_count);"),
            |pmu| {
                let pages = pmu.pages(4);
                let mut rig = Rig::open(pmu, pmu.place(), pages, Mode::Normal)?;
                let again = Mapping::new(&rig.event, offset(), pages * page_size(), true)?;
                rig.event.enable()?;
                rig.traces(1)?;
                drop(again);
                // The trace continues in the remaining mapping.
                rig.traces(1)?;
                rig.settles()?;
                rig.is_exact()
            },
        ),
        case(
            "map: a second area, larger",
            core(7407, "if (rb_has_aux(rb) && rb->aux_nr_pages != nr_pages)"),
            |pmu| other_size(pmu, 4, 8),
        ),
        case(
            "map: a second area, smaller",
            core(7407, "if (rb_has_aux(rb) && rb->aux_nr_pages != nr_pages)"),
            |pmu| other_size(pmu, 8, 4),
        ),
        case(
            "map: a second area elsewhere",
            core(7400, "if (rb_has_aux(rb) && rb->aux_pgoff != pgoff_start)"),
            |pmu| {
                let pages = pmu.pages(4);
                let rig = Rig::open(pmu, pmu.place(), pages, Mode::Normal)?;
                let far = offset() + bytes(pages);
                rig.set(Field::AuxOffset, far);
                let mapped = Mapping::new(&rig.event, far, pages * page_size(), true);
                refused("it", mapped, Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "map: an area larger than all memory",
            ring(
                735,
                "if (get_order((unsigned long)nr_pages * sizeof(void *)) > MAX_PAGE_ORDER)",
            ),
            |pmu| {
                let event = pmu.open(pmu.place())?;
                let base = map_base(&event)?;
                let pages = 1_usize << 28;
                base.store(
                    Field::AuxOffset,
                    offset(),
                    std::sync::atomic::Ordering::Relaxed,
                );
                base.store(
                    Field::AuxSize,
                    bytes(pages),
                    std::sync::atomic::Ordering::Relaxed,
                );
                let mapped = Mapping::new(&event, offset(), pages * page_size(), true);
                ensure!(mapped.is_err(), "it was not refused");
                map_aux(&event, &base, pmu.pages(4), Mode::Normal)
                    .context("the right area behind it")?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "map: an area that is smaller than the smallest",
            ring(
                771,
                "rb->aux_priv = event->pmu->setup_aux(event, rb->aux_pages, nr_pages,",
            ),
            |pmu| {
                if pmu.normal == 1 {
                    return Err(super::skip("a page is enough for it"));
                }
                let event = pmu.open(pmu.place())?;
                let base = map_base(&event)?;
                for _ in 0..20 {
                    refused(
                        "it",
                        map_aux(&event, &base, pmu.normal / 2, Mode::Normal),
                        Errno::NOMEM,
                    )?;
                }
                map_aux(&event, &base, pmu.normal, Mode::Normal)
                    .context("the smallest behind it")?;
                Ok("refused, 20 times".to_owned())
            },
        ),
    ]);
    for factor in [1, 2, 4, 8, 16, 32, 64, 128] {
        cases.push(case(
            format!("map: an area {factor} times as large as the smallest"),
            ring(
                771,
                "rb->aux_priv = event->pmu->setup_aux(event, rb->aux_pages, nr_pages,",
            ),
            move |pmu| {
                let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(factor), Mode::Normal)?;
                rig.event.enable()?;
                rig.traces(1)?;
                rig.settles()?;
                rig.is_exact()
            },
        ));
    }
    cases.extend([
        case(
            "map: the area cannot be written",
            core(7151, "return vmf->pgoff == 0 ? 0 : VM_FAULT_SIGBUS;"),
            |pmu| {
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let aux = rig.aux.as_ref().context("no area")?;
                ensure!(
                    !writable(aux)?,
                    "the kernel could write there for this program"
                );
                Ok("refused".to_owned())
            },
        ),
        case(
            "map: a child does not get the mappings",
            core(
                7498,
                "vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);",
            ),
            |pmu| {
                let _rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let maps = std::fs::read_to_string("/proc/self/smaps")?;
                let flags = maps
                    .split("anon_inode:[perf_event]")
                    .nth(1)
                    .and_then(|rest| rest.lines().find(|line| line.starts_with("VmFlags:")))
                    .context("the mapping is not in smaps")?;
                ensure!(flags.contains(" dc "), "{flags}");
                Ok(flags.to_owned())
            },
        ),
        case(
            "map: the control page says where the data ring is",
            core(6831, "userpg->data_offset = PAGE_SIZE;"),
            |pmu| {
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let base = rig.base.as_ref().context("no control page")?;
                let mut words = [0; 16];
                base.copy_out(1040, &mut words)
                    .context("the control page")?;
                let offset = crate::records::number(&words, 0, 8)?;
                let size = crate::records::number(&words, 8, 8)?;
                ensure!(
                    (offset, size) == (bytes(1), bytes(DATA_PAGES)),
                    "{offset} and {size}"
                );
                Ok(format!("{size} bytes at {offset}"))
            },
        ),
    ]);
    cases.extend(at_both(
        "map: unmapped and mapped again",
        ring(801, "__rb_free_aux(rb);"),
        again,
    ));
    cases.extend(at_both(
        "map: 40 areas, one after the other",
        core(
            7057,
            "if (rb_has_aux(rb) && vma_start_pgoff(vma) == rb->aux_pgoff &&",
        ),
        |pmu, place| {
            let mut rig = Rig::open(pmu, place, pmu.pages(1), Mode::Normal)?;
            for n in 0..40 {
                drop(rig.aux.take());
                rig.base = None;
                rig.map(pmu.pages(1 << (n % 4)))?;
                rig.event.enable()?;
                work();
                if n % 2 == 0 {
                    rig.event.disable()?;
                }
            }
            Ok("mapped".to_owned())
        },
    ));
    cases
}

/// Whether this program may write into a mapping. The kernel checks that when it writes for the program.
fn writable(mapping: &Mapping) -> Result<bool> {
    match mapping.fill_from(std::fs::File::open("/dev/zero")?.as_fd(), 1) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => Ok(false),
        Err(error) => Err(error).context("reading into the area"),
    }
}

fn no_data(pmu: &Pmu) -> Result<String> {
    let event = pmu.open(pmu.place())?;
    let base = Mapping::new(&event, 0, page_size(), true).context("a data ring of no pages")?;
    let at = bytes(1);
    base.store(Field::AuxOffset, at, std::sync::atomic::Ordering::Relaxed);
    base.store(
        Field::AuxSize,
        bytes(pmu.pages(16)),
        std::sync::atomic::Ordering::Relaxed,
    );
    let aux = Mapping::new(&event, at, pmu.pages(16) * page_size(), true)?;
    if let Place::Cpu(cpu) = pmu.place() {
        crate::rig::pin(cpu)?;
    }
    let head = makes_trace(&event, &base)?;
    drop(aux);
    Ok(format!("{head} bytes, and no records"))
}

fn other_size(pmu: &Pmu, first: usize, second: usize) -> Result<String> {
    let rig = Rig::open(pmu, pmu.place(), pmu.pages(first), Mode::Normal)?;
    let pages = pmu.pages(second);
    rig.set(Field::AuxSize, bytes(pages));
    let mapped = Mapping::new(&rig.event, offset(), pages * page_size(), true);
    refused("it", mapped, Errno::INVAL)?;
    Ok("refused".to_owned())
}

/// The head continues, and so does the driver.
fn again(pmu: &Pmu, place: Place) -> Result<String> {
    let pages = pmu.pages(8);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    rig.event.enable()?;
    // Then the head is not at the front of the area.
    rig.traces(bytes(pmu.pages(1)) / 2)?;
    rig.settles()?;
    let first = rig.head();
    drop(rig.aux.take());
    rig.map(pages)?;
    ensure!(
        rig.head() == first,
        "aux_head has moved by {}",
        rig.head().wrapping_sub(first)
    );
    rig.event.enable()?;
    rig.traces(bytes(pages))?;
    rig.settles()?;
    Ok(format!(
        "from {first:#x} to {:#x}: {}",
        rig.head(),
        rig.is_exact()?
    ))
}
