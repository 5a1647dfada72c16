// SPDX-License-Identifier: GPL-2.0
/*
 * c_minimal: the driver of samples/pmu_minimal in C, with which the Rust framework is compared.
 *
 * At every tick of a timer it writes one record of 16 bytes, little endian, to the AUX area. The
 * event's counter is the number of ticks.
 *
 * Like the drivers in the kernel's tree, it assumes that perf_aux_output_begin() returns one of its
 * own buffers. That is wrong if the AUX events of two PMUs are redirected to one event.
 */

#include <linux/bits.h>
#include <linux/cache.h>
#include <linux/hrtimer.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include "c_aux.h"

#define C_MINIMAL_INTERVAL	GENMASK_ULL(31, 0)
#define C_MINIMAL_DEFAULT_US	1000
/* The timer must leave the CPU to others. */
#define C_MINIMAL_SHORTEST_US	20

struct c_minimal_record {
	/* CLOCK_MONOTONIC, ns. */
	__le64 time;
	/* The CPU that the event runs on. */
	__le32 cpu;
	/* Number of the tick, from 0 on. Ticks that found no space are missing. */
	__le32 number;
};

/* perf_event::pmu_private. Written at every tick, so on lines of its own. */
struct c_minimal_event {
	ktime_t interval;
	/* The number of the next tick. */
	u32 number;
} ____cacheline_aligned;

struct c_minimal_buffer {
	unsigned long size;
	int nr_pages;
	bool overwrite;
	void *pages[] __counted_by(nr_pages);
};

struct c_minimal_cpu {
	struct c_aux_cpu aux;
	/* Valid while a transaction is open. */
	struct c_minimal_buffer *buffer;
	unsigned long written;
	bool truncated;
};

static DEFINE_PER_CPU_SHARED_ALIGNED(struct c_minimal_cpu, c_minimal_cpus);

static bool c_minimal_open(struct c_minimal_cpu *cm, struct perf_event *event)
{
	cm->buffer = perf_aux_output_begin(&cm->aux.handle, event);
	if (!cm->buffer)
		return false;

	cm->written = 0;
	cm->truncated = false;
	event->hw.state = 0;
	return true;
}

/* Ends the transaction, if one is open. */
static void c_minimal_close(struct c_aux_cpu *cpu)
{
	struct c_minimal_cpu *cm = container_of(cpu, struct c_minimal_cpu, aux);
	struct perf_event *event = cpu->handle.event;

	if (!event)
		return;

	if (cm->truncated)
		perf_aux_output_flag(&cpu->handle, PERF_AUX_FLAG_TRUNCATED);
	if (cm->buffer->overwrite)
		cpu->handle.head += cm->written;

	/* B, see perf_aux_output_begin(). */
	smp_wmb();
	perf_aux_output_end(&cpu->handle, cm->written);
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
}

static void c_minimal_leave(struct c_minimal_cpu *cm)
{
	c_aux_leave_cpu(&cm->aux, c_minimal_close);
}

static void c_minimal_write(struct c_minimal_cpu *cm, u32 number)
{
	struct c_minimal_record record = {
		.time = cpu_to_le64(ktime_get_mono_fast_ns()),
		.cpu = cpu_to_le32(smp_processor_id()),
		.number = cpu_to_le32(number),
	};
	struct c_minimal_buffer *buffer = cm->buffer;
	const void *from = &record;
	size_t left = sizeof(record);

	if (!buffer->overwrite && cm->aux.handle.size - cm->written < sizeof(record)) {
		cm->truncated = true;
		return;
	}

	while (left) {
		unsigned long at = (cm->aux.handle.head + cm->written) & (buffer->size - 1);
		size_t len = min(left, PAGE_SIZE - offset_in_page(at));

		memcpy(buffer->pages[at >> PAGE_SHIFT] + offset_in_page(at), from, len);
		cm->written += len;
		from += len;
		left -= len;
	}
}

static bool c_minimal_wakeup_due(struct c_minimal_cpu *cm)
{
	unsigned long head = cm->aux.handle.head + cm->written;

	return !cm->buffer->overwrite && cm->written && (long)(head - cm->aux.handle.wakeup) >= 0;
}

static enum hrtimer_restart c_minimal_tick(struct hrtimer *timer)
{
	struct c_minimal_cpu *cm = container_of(timer, struct c_minimal_cpu, aux.timer);
	struct c_minimal_event *data;
	struct perf_event *event;

	/* The timer of a CPU that goes offline moves to another CPU. */
	if (cm != this_cpu_ptr(&c_minimal_cpus) || !c_aux_enter(&cm->aux.guard))
		return HRTIMER_NORESTART;

	event = cm->aux.handle.event;
	if (!event) {
		c_minimal_leave(cm);
		return HRTIMER_NORESTART;
	}

	data = event->pmu_private;
	local64_inc(&event->count);
	c_minimal_write(cm, data->number++);

	if (cm->truncated || c_minimal_wakeup_due(cm)) {
		bool truncated = cm->truncated;

		c_minimal_close(&cm->aux);
		/* perf disables an event whose trace was truncated. */
		if (!truncated)
			c_minimal_open(cm, event);
	}
	c_minimal_leave(cm);

	if (event->hw.state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;

	hrtimer_forward_now(timer, data->interval);
	return HRTIMER_RESTART;
}

static void c_minimal_start(struct perf_event *event, int flags)
{
	struct c_minimal_cpu *cm = this_cpu_ptr(&c_minimal_cpus);
	struct c_minimal_event *data = event->pmu_private;

	if (!c_aux_enter(&cm->aux.guard))
		return;

	if (!cm->aux.handle.event && c_minimal_open(cm, event))
		hrtimer_start(&cm->aux.timer, data->interval, HRTIMER_MODE_REL_PINNED_HARD);
	c_minimal_leave(cm);
}

static void c_minimal_stop(struct perf_event *event, int flags)
{
	c_aux_stop(this_cpu_ptr(&c_minimal_cpus.aux), event, flags, c_minimal_close);
}

static int c_minimal_add(struct perf_event *event, int flags)
{
	return c_aux_add(this_cpu_ptr(&c_minimal_cpus.aux), event, flags, c_minimal_start);
}

static void c_minimal_del(struct perf_event *event, int flags)
{
	c_minimal_stop(event, PERF_EF_UPDATE);
}

static void c_minimal_read(struct perf_event *event)
{
}

static void *c_minimal_setup_aux(struct perf_event *event, void **pages, int nr_pages,
				 bool overwrite)
{
	struct c_minimal_buffer *buffer;

	buffer = kvzalloc(struct_size(buffer, pages, nr_pages), GFP_KERNEL);
	if (!buffer)
		return NULL;

	buffer->nr_pages = nr_pages;
	buffer->size = (unsigned long)nr_pages << PAGE_SHIFT;
	buffer->overwrite = overwrite;
	memcpy(buffer->pages, pages, nr_pages * sizeof(*pages));

	/* The area may outlive the event. perf holds the module for the event only. */
	__module_get(THIS_MODULE);
	return buffer;
}

static void c_minimal_free_aux(void *aux)
{
	kvfree(aux);
	module_put(THIS_MODULE);
}

static void c_minimal_event_destroy(struct perf_event *event)
{
	kfree(event->pmu_private);
}

static int c_minimal_event_init(struct perf_event *event)
{
	u64 us = event->attr.config & C_MINIMAL_INTERVAL;
	struct c_minimal_event *data;

	if (event->attr.type != event->pmu->type)
		return -ENOENT;
	if (event->attr.freq)
		return -EINVAL;
	if (has_branch_stack(event))
		return -EOPNOTSUPP;
	if ((event->attr.config & ~C_MINIMAL_INTERVAL) || event->attr.config1 ||
	    event->attr.config2 || event->attr.config3)
		return -EINVAL;
	if (!us)
		us = C_MINIMAL_DEFAULT_US;
	if (us < C_MINIMAL_SHORTEST_US)
		return -EINVAL;

	data = kzalloc_obj(*data);
	if (!data)
		return -ENOMEM;

	data->interval = us_to_ktime(us);
	event->pmu_private = data;
	event->destroy = c_minimal_event_destroy;
	return 0;
}

PMU_FORMAT_ATTR(interval, "config:0-31");

static struct attribute *c_minimal_format_attrs[] = {
	&format_attr_interval.attr,
	NULL
};

static const struct attribute_group c_minimal_format_group = {
	.name = "format",
	.attrs = c_minimal_format_attrs,
};

static const struct attribute_group *c_minimal_groups[] = {
	&c_minimal_format_group,
	NULL
};

static struct pmu c_minimal_pmu = {
	.module		= THIS_MODULE,
	.capabilities	= PERF_PMU_CAP_EXCLUSIVE,
	.task_ctx_nr	= perf_sw_context,
	.attr_groups	= c_minimal_groups,
	.event_init	= c_minimal_event_init,
	.add		= c_minimal_add,
	.del		= c_minimal_del,
	.start		= c_minimal_start,
	.stop		= c_minimal_stop,
	.read		= c_minimal_read,
	.setup_aux	= c_minimal_setup_aux,
	.free_aux	= c_minimal_free_aux,
};

static int __init c_minimal_init(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		hrtimer_setup(&per_cpu(c_minimal_cpus, cpu).aux.timer, c_minimal_tick, CLOCK_MONOTONIC,
			      HRTIMER_MODE_REL_PINNED_HARD);

	return perf_pmu_register(&c_minimal_pmu, "c_minimal", -1);
}
module_init(c_minimal_init);

static void __exit c_minimal_exit(void)
{
	int cpu;

	perf_pmu_unregister(&c_minimal_pmu);
	for_each_possible_cpu(cpu)
		hrtimer_cancel(&per_cpu(c_minimal_cpus, cpu).aux.timer);

	/* Waits until every task has returned from c_minimal_free_aux(). */
	synchronize_rcu_tasks();
}
module_exit(c_minimal_exit);

MODULE_AUTHOR("The auxpmu authors");
MODULE_DESCRIPTION("samples/pmu_minimal in C");
MODULE_LICENSE("GPL");
