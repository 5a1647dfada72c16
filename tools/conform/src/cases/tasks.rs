// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Threads, children, and processes that end.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::Flags;
use rustix::io::Errno;

use super::{case, core, refused, ring, skip, Case};
use crate::fuzz;
use crate::part::command;
use crate::pmu::{Place, Pmu};
use crate::rig::{beside, map_base, patience, rounds, work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    vec![
        case(
            "tasks: an inherited event on all CPUs has no ring",
            core(7459, "if (event->cpu == -1 && event->attr.inherit)"),
            |pmu| {
                pmu.task()?;
                let mut attr = pmu.attr();
                attr.flags |= Flags::INHERIT;
                let event = match Event::open(&attr, 0, -1) {
                    Ok(event) => event,
                    Err(error) => return Ok(format!("refused at once: {error}")),
                };
                refused("a mapping", map_base(&event), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "tasks: children write into the area of their parent",
            ring(381, "if (output_event->parent)"),
            children,
        ),
        case(
            "tasks: a child that is not inherited is not traced",
            core(14979, "if (!event->attr.inherit ||"),
            |pmu| {
                pmu.task()?;
                let mut rig = Rig::open(pmu, Place::Task, pmu.pages(16), Mode::Normal)?;
                rig.event.enable()?;
                rig.traces(1)?;
                // The event stays enabled: a copy in the child would trace the child.
                let mut child = child(20)?;
                waits(&mut child)?;
                rig.follows()?;
                rig.settles()?;
                let theirs = of_others(&rig)?;
                ensure!(theirs == 0, "{theirs} records of a child");
                rig.is_exact()
            },
        ),
        case(
            "tasks: 60 children, one after the other",
            core(
                14509,
                "static void sync_child_event(struct perf_event *child_event,",
            ),
            |pmu| {
                let mut rig = of_child(pmu)?;
                let number = rounds(60, || {
                    let mut child = child(1)?;
                    waits(&mut child)?;
                    rig.follows()?;
                    Ok(of_others(&rig)? > 0)
                })?;
                rig.settles()?;
                traced_children(&rig, number)
            },
        ),
        case(
            "tasks: children killed while they are traced",
            core(14684, "void perf_event_exit_task(struct task_struct *task)"),
            |pmu| {
                let mut rig = of_child(pmu)?;
                let mut wait = 0;
                let number = rounds(20, || {
                    let mut child = child(2000)?;
                    // The children are killed at different points of their lives.
                    wait = (wait + 1) % 16;
                    std::thread::sleep(Duration::from_millis(wait));
                    child.kill()?;
                    child.wait()?;
                    rig.follows()?;
                    Ok(of_others(&rig)? > 0)
                })?;
                rig.settles()?;
                traced_children(&rig, number)
            },
        ),
        case(
            "tasks: enable_on_exec: nothing before exec, trace after it",
            core(
                4705,
                "static void perf_event_enable_on_exec(struct perf_event_context *ctx)",
            ),
            on_exec,
        ),
        case(
            "tasks: another process, by its number",
            core(13992, "task = find_lively_task_by_vpid(pid);"),
            other,
        ),
        case(
            "tasks: another process that ends",
            core(14684, "void perf_event_exit_task(struct task_struct *task)"),
            ends,
        ),
        case(
            "tasks: two threads, each with an event",
            core(
                3781,
                "perf_event_context_sched_out(struct task_struct *task, struct task_struct *next)",
            ),
            two,
        ),
        case(
            "tasks: the descriptor outlives who opened it",
            core(
                5941,
                "int perf_event_release_kernel(struct perf_event *event)",
            ),
            |pmu| {
                let place = pmu.task()?;
                let name = pmu.clone();
                let opened = std::thread::Builder::new()
                    .spawn(move || Rig::open(&name, place, name.pages(4), Mode::Normal))
                    .context("starting a thread")?;
                let rig = opened
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
                rig.event.enable()?;
                work();
                rig.event.disable()?;
                ensure!(
                    rig.head() == 0,
                    "{} bytes of a thread that has ended",
                    rig.head()
                );
                Ok("nothing".to_owned())
            },
        ),
    ]
}

fn child(times: u32) -> Result<Child> {
    let mut command = command(&["work", &times.to_string()])?;
    command.spawn().context("starting a child")
}

/// The number of AUX records of other processes.
fn of_others(rig: &Rig) -> Result<usize> {
    let own = u32::try_from(rustix::process::getpid().as_raw_nonzero().get())?;
    Ok(rig.ids.iter().filter(|id| id.pid != own).count())
}

/// Checks that one of so many children was traced: there are records of this process, too.
fn traced_children(rig: &Rig, children: u32) -> Result<String> {
    let theirs = of_others(rig)?;
    ensure!(
        theirs > 0,
        "no record of {children} children, and {} of this process",
        rig.ids.len()
    );
    Ok(format!(
        "{theirs} of {} records are of children; {children} were started",
        rig.ledger.records
    ))
}

fn waits(child: &mut Child) -> Result<()> {
    let end = Instant::now() + patience();
    while child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(1));
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("a child does not end");
        }
    }
    Ok(())
}

/// An event of this thread and its children, on one CPU.
fn of_child(pmu: &Pmu) -> Result<Rig> {
    pmu.task()?;
    let cpu = match pmu.cpu() {
        Ok(Place::Cpu(cpu)) => cpu,
        _ => 0,
    };
    let mut attr = pmu.attr();
    attr.flags |= Flags::INHERIT;
    let event = Event::open(&attr, 0, i32::try_from(cpu)?).context("opening an inherited event")?;
    crate::rig::pin(cpu)?;
    let mut rig = Rig::of(pmu, event, Place::Task, pmu.pages(64), Mode::Normal)?;
    // The area may have parts of several streams, so its bytes are not checked.
    rig.stream = None;
    rig.event.enable()?;
    Ok(rig)
}

fn children(pmu: &Pmu) -> Result<String> {
    let mut rig = of_child(pmu)?;
    // The child may run on any CPU, so it is started several times.
    let number = rounds(1, || {
        let mut child = child(5)?;
        waits(&mut child)?;
        rig.follows()?;
        Ok(of_others(&rig)? > 0)
    })?;
    rig.settles()?;
    traced_children(&rig, number)
}

fn on_exec(pmu: &Pmu) -> Result<String> {
    pmu.task()?;
    let mut attr = pmu.attr();
    attr.flags |= Flags::ENABLE_ON_EXEC;
    let mut child = fuzz::Child::begin()?;
    let pid = child.pid()?.as_raw_nonzero().get();
    let event = Event::open(&attr, pid, -1).context("opening an event of a child")?;
    let mut rig = Rig::of(pmu, event, Place::Task, pmu.pages(16), Mode::Normal)?;
    for _ in 0..10 {
        child.tell("work")?;
    }
    let running = rig.count()?.running;
    ensure!(
        rig.head() == 0 && running == 0,
        "before exec it ran {running} ns, and traced {} bytes",
        rig.head()
    );
    child.tell("exec")?;
    // Nothing enables the event from here on but exec.
    let end = Instant::now() + patience();
    while rig.head() == 0 {
        child.tell("work")?;
        ensure!(
            Instant::now() < end,
            "nothing was traced after exec; it ran {} ns",
            rig.count()?.running
        );
    }
    rig.settles()?;
    for id in &rig.ids {
        ensure!(
            i64::from(id.pid) == i64::from(pid),
            "{id:?} of process {pid}"
        );
    }
    rig.is_exact()
}

fn of_other(pmu: &Pmu, child: &Child) -> Result<Rig> {
    pmu.task()?;
    let event = Event::open(&pmu.attr(), i32::try_from(child.id())?, -1)?;
    Rig::of(pmu, event, Place::Task, pmu.pages(16), Mode::Normal)
}

fn other(pmu: &Pmu) -> Result<String> {
    pmu.task()?;
    let mut child = child(5000)?;
    let traced = (|| {
        let mut rig = of_other(pmu, &child)?;
        rig.event.enable()?;
        rig.traces(1)?;
        rig.settles()?;
        for id in &rig.ids {
            ensure!(id.pid == child.id(), "{id:?} of process {}", child.id());
        }
        rig.is_exact()
    })();
    child.kill()?;
    child.wait()?;
    traced
}

fn ends(pmu: &Pmu) -> Result<String> {
    pmu.task()?;
    let mut child = child(500)?;
    let mut rig = of_other(pmu, &child)?;
    rig.event.enable()?;
    let end = Instant::now() + patience();
    while child.try_wait()?.is_none() {
        rig.follows()?;
        std::thread::sleep(Duration::from_millis(1));
        ensure!(Instant::now() < end, "the process does not end");
    }
    rig.follows()?;
    let head = rig.head();
    ensure!(head > 0, "nothing is visible when the process has ended");
    rig.event.enable()?;
    work();
    ensure!(rig.head() == head, "bytes of a process that has ended");
    rig.is_exact()
}

fn two(pmu: &Pmu) -> Result<String> {
    pmu.task()?;
    let each = |pmu: &Pmu| -> Result<u64> {
        let mut rig = Rig::open(pmu, Place::Task, pmu.pages(16), Mode::Normal)?;
        rig.event.enable()?;
        for _ in 0..10 {
            rig.traces(1)?;
            std::thread::yield_now();
        }
        rig.settles()?;
        rig.is_exact()?;
        Ok(rig.ledger.bytes)
    };
    std::thread::scope(|scope| {
        let other = beside(scope, || each(pmu))?;
        let mine = each(pmu)?;
        let other = other
            .join()
            .map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
        let other = match other {
            Err(error) if pmu.exclusive && error.to_string().contains("opening") => {
                return Err(skip(format!("{error:#}")));
            }
            other => other?,
        };
        Ok(format!("{mine} and {other} bytes"))
    })
}
