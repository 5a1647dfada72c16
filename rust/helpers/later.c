// SPDX-License-Identifier: GPL-2.0
/*
 * What the current context does not allow, and a worker therefore does later.
 */

#include "helpers.h"

#include <linux/device.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

static struct workqueue_struct *workers;
static LLIST_HEAD(waiting);
/* The number of objects that were given to rust_perf_run_later() and are not done. */
static atomic_t pending = ATOMIC_INIT(0);

static void queue_waiting(struct irq_work *irq_work)
{
	struct rust_perf_later *later, *next;

	llist_for_each_entry_safe(later, next, llist_del_all(&waiting), node)
		queue_work(workers, &later->work);
}

static struct irq_work queue = IRQ_WORK_INIT_HARD(queue_waiting);

static void run(struct work_struct *work)
{
	struct rust_perf_later *later =
		container_of(work, struct rust_perf_later, work);
	struct module *module = later->module;

	later->run(later);
	module_put(module);
	/*
	 * module_going() waits for this, so the module may be freed afterwards. This
	 * code is in rust_perf.ko, whose exit waits for the worker as well.
	 *
	 * Release: pairs with the acquire in rust_perf_later_flush().
	 */
	atomic_dec_return_release(&pending);
}

/* @module contains run(). NULL is rust_perf.ko. */
void rust_perf_later_init(struct rust_perf_later *later, struct module *module,
			  void (*run_later)(struct rust_perf_later *later))
{
	INIT_WORK(&later->work, run);
	later->module = module;
	later->run = run_later;
}

/*
 * Lets a worker call run(), which frees @later. Context: any, NMI included.
 *
 * Either the module is in use, or it is being unloaded and module_going() waits
 * for the worker.
 */
void rust_perf_run_later(struct rust_perf_later *later)
{
	atomic_inc(&pending);
	__module_get(later->module);
	llist_add(&later->node, &waiting);
	irq_work_queue(&queue);
}

/* Waits for all that was left to workers, and for what run() itself leaves to them. */
void rust_perf_later_flush(void)
{
	do {
		irq_work_sync(&queue);
		flush_workqueue(workers);
		cond_resched();
		/* Acquire: pairs with the release in run(). */
	} while (atomic_read_acquire(&pending));
}

int rust_perf_later_start(void)
{
	workers = alloc_workqueue("rust_perf", WQ_UNBOUND, 0);
	return workers ? 0 : -ENOMEM;
}

void rust_perf_later_end(void)
{
	rust_perf_later_flush();
	destroy_workqueue(workers);
}

struct rust_perf_device_ref {
	struct rust_perf_later later;
	struct device *device;
};

static void put_device_later(struct rust_perf_later *later)
{
	struct rust_perf_device_ref *ref =
		container_of(later, struct rust_perf_device_ref, later);

	put_device(ref->device);
	kfree(ref);
}

/*
 * A reference to a device that a worker drops. perf frees AUX areas with the
 * mmap lock held. The release of a device takes locks under which a page fault
 * may occur, so it must not run with the mmap lock held.
 */
struct rust_perf_device_ref *rust_perf_device_ref_new(struct device *device)
{
	struct rust_perf_device_ref *ref;

	ref = kzalloc(sizeof(*ref), GFP_KERNEL);
	if (!ref)
		return NULL;
	rust_perf_later_init(&ref->later, NULL, put_device_later);
	ref->device = get_device(device);
	return ref;
}

/* Context: any. */
void rust_perf_device_ref_drop(struct rust_perf_device_ref *ref)
{
	rust_perf_run_later(&ref->later);
}
