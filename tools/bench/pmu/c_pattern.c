// SPDX-License-Identifier: GPL-2.0
/*
 * c_pattern: the driver of samples/pattern in C, with its direct sink only. The Rust framework is
 * compared with it.
 *
 * A timer is the clock of a trace unit in software. At every tick the unit writes packets through
 * a table of regions in the layout of Intel's ToPA, and raises its interrupt where the table says
 * so. samples/pattern/codec describes the packets, Documentation/abi.md the terms. This driver
 * lacks: other sinks, faults, alignment, and counting without an AUX area.
 *
 * Like the drivers in the kernel's tree, it assumes that perf_aux_output_begin() returns one of its
 * own buffers. That is wrong if the AUX events of two PMUs are redirected to one event.
 */

#include <linux/bitfield.h>
#include <linux/bits.h>
#include <linux/cache.h>
#include <linux/hrtimer.h>
#include <linux/io.h>
#include <linux/math.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include "c_aux.h"
#include "c_old.h"
#include "c_packet.h"

/* c_broken.c includes this file and enables one of these defects. */
#ifndef C_DEFECT
#define C_DEFECT(name)		false
#endif

/* attr.config */
#define C_PATTERN_RATE		GENMASK_ULL(23, 0)
#define C_PATTERN_BURST		GENMASK_ULL(39, 24)
#define C_PATTERN_PACKET	GENMASK_ULL(47, 40)
#define C_PATTERN_SEED		GENMASK_ULL(63, 48)
/* attr.config1 */
#define C_PATTERN_DRY		BIT_ULL(2)
#define C_PATTERN_MIN		GENMASK_ULL(63, 48)

#define C_PATTERN_DEFAULT_KIB	1024
#define C_PATTERN_TICKS_PER_SEC	1000
/* The unit's clock must leave the CPU to others. */
#define C_PATTERN_SHORTEST_TICK	20000

/* An entry of the table: the physical address of a page, and these bits. */
#define TOPA_END		BIT_ULL(0)
#define TOPA_INT		BIT_ULL(2)
#define TOPA_STOP		BIT_ULL(4)
#define TOPA_BASE		GENMASK_ULL(51, 12)

/*
 * perf_event::pmu_private. It changes only in the event's transaction, of which there is one at a
 * time; so it is on cache lines of its own.
 */
struct c_pattern_event {
	ktime_t tick;
	u64 limit;
	u64 burst;
	unsigned int min;
	bool dry;
	/* The next packet. So far .pos bytes were generated, in .run complete transactions. */
	struct c_packet packet;
} ____cacheline_aligned;

struct c_pattern_buffer {
	unsigned long size;
	bool overwrite;
	/* Indices of the entries that carry marks. */
	unsigned long stop;
	unsigned long intr;
	/* An entry for each page, and the end entry, which leads to the first. */
	int nr_entries;
	u64 table[] __counted_by(nr_entries);
};

/* The registers of the unit. */
struct c_pattern_unit {
	unsigned long entry;
	unsigned long offset;
	/* Whether the unit has filled an entry with TOPA_STOP. */
	bool stopped;
};

struct c_pattern_cpu {
	struct c_aux_cpu aux;
	/* Valid while a transaction is open. */
	struct c_pattern_buffer *buffer;
	struct c_pattern_unit unit;
	unsigned long written;
	/* Whether packets are dropped until the next transaction. */
	bool full;
};

static DEFINE_PER_CPU_SHARED_ALIGNED(struct c_pattern_cpu, c_pattern_cpus);

static atomic_t c_pattern_streams = ATOMIC_INIT(0);

/*
 * Writes to the pages of the table. If @from is NULL, only moves the write pointer. Returns false
 * if the unit stops before the end.
 */
static bool c_pattern_put(struct c_pattern_cpu *cp, const void *from, size_t left, bool *raised)
{
	struct c_pattern_buffer *buffer = cp->buffer;
	struct c_pattern_unit *unit = &cp->unit;

	while (left) {
		u64 entry = buffer->table[unit->entry];
		size_t len;

		if (unit->stopped)
			return false;
		if (entry & TOPA_END) {
			unit->entry = 0;
			continue;
		}

		len = min(left, PAGE_SIZE - unit->offset);
		if (from) {
			memcpy(phys_to_virt(entry & TOPA_BASE) + unit->offset, from, len);
			from += len;
		}
		left -= len;
		unit->offset += len;
		if (unit->offset < PAGE_SIZE)
			break;

		if (entry & TOPA_INT)
			*raised = true;
		if (entry & TOPA_STOP) {
			unit->stopped = true;
		} else {
			unit->entry++;
			unit->offset = 0;
		}
	}
	return !left;
}

/* Writes a packet. If there is no space for all of it, the write pointer stays where it is. */
static bool c_pattern_packet(struct c_pattern_cpu *cp, struct c_pattern_event *data, bool *raised)
{
	struct c_pattern_unit unit = cp->unit;
	bool done = true;

	if (data->dry) {
		done = c_pattern_put(cp, NULL, data->packet.len, raised);
	} else {
		__le64 block[C_PACKET_WORDS];
		unsigned int at;

		for (at = 0; done && at < data->packet.len; at += C_PACKET_UNIT) {
			c_packet_block(&data->packet, at, block);
			done = c_pattern_put(cp, block, sizeof(block), raised);
		}
	}

	if (!done) {
		cp->unit = unit;
		return false;
	}
	cp->written += data->packet.len;
	return true;
}

/* A tick of the unit's clock. Returns whether the unit raises its interrupt. */
static bool c_pattern_generate(struct c_pattern_cpu *cp, struct perf_event *event)
{
	struct c_pattern_event *data = event->pmu_private;
	struct c_packet *packet = &data->packet;
	u64 left = data->limit - min(data->limit, packet->pos);
	u64 packets = data->burst;
	bool raised = false;
	u64 i;

	if (left < packets * packet->len)
		packets = div_u64(left, packet->len);
	if (!packets)
		return false;

	packet->time = ktime_get_mono_fast_ns();
	packet->cpu = smp_processor_id();
	for (i = 0; i < packets; i++) {
		bool drops = C_DEFECT(drops_packets) && !(packet->pos / packet->len % 16);

		if (!drops && !cp->full && !c_pattern_packet(cp, data, &raised))
			cp->full = true;
		packet->pos += packet->len;
	}
	if (!C_DEFECT(counts_nothing))
		local64_add(packets * packet->len, &event->count);

	return raised || cp->full;
}

static void c_pattern_unmark(struct c_pattern_buffer *buffer)
{
	buffer->table[buffer->stop] &= ~(TOPA_STOP | TOPA_INT);
	buffer->table[buffer->intr] &= ~TOPA_INT;
}

/*
 * Places the marks of a transaction, as pt_buffer_reset_markers() does: STOP at the last end of a
 * page within the space, INT there, and at the first end of a page that reaches the wakeup point,
 * one page before STOP at the latest. Returns false if no page ends within the space, so that the
 * unit could not be stopped.
 */
static bool c_pattern_mark(struct c_pattern_buffer *buffer, struct perf_output_handle *handle)
{
	unsigned long head = handle->head;
	unsigned long stop = round_down(head + handle->size, PAGE_SIZE);
	unsigned long first = round_down(head, PAGE_SIZE) + PAGE_SIZE;
	unsigned long intr = round_up(handle->wakeup, PAGE_SIZE);
	unsigned long mask = (buffer->size >> PAGE_SHIFT) - 1;

	if (C_DEFECT(ignores_space))
		stop = round_down(head + buffer->size, PAGE_SIZE);

	c_pattern_unmark(buffer);
	if ((long)(stop - first) < 0)
		return false;

	if ((long)(intr - first) < 0)
		intr = first;
	if ((long)(intr - stop) >= 0 || C_DEFECT(ignores_watermark))
		intr = stop != first ? stop - PAGE_SIZE : stop;

	buffer->stop = ((stop >> PAGE_SHIFT) - 1) & mask;
	buffer->intr = ((intr >> PAGE_SHIFT) - 1) & mask;
	buffer->table[buffer->stop] |= TOPA_STOP | TOPA_INT;
	buffer->table[buffer->intr] |= TOPA_INT;
	return true;
}

/* C counterpart of perf_event_itrace_started(), which modules cannot call. */
static void c_pattern_itrace_started(struct perf_event *event)
{
	if (!(event->attach_state & PERF_ATTACH_ITRACE) && !C_DEFECT(itrace_start_again))
		WRITE_ONCE(event->attach_state, event->attach_state | PERF_ATTACH_ITRACE);
}

static bool c_pattern_open(struct c_pattern_cpu *cp, struct perf_event *event)
{
	struct c_pattern_buffer *buffer = perf_aux_output_begin(&cp->aux.handle, event);
	unsigned long head = cp->aux.handle.head;

	if (!buffer)
		return false;

	if (C_DEFECT(skips_unpadded) && !perf_aux_output_skip(&cp->aux.handle, C_PACKET_UNIT))
		head = cp->aux.handle.head;
	if (C_DEFECT(writes_unread) && head) {
		unsigned long unread = (head - C_PACKET_UNIT) & (buffer->size - 1);
		u64 entry = buffer->table[unread >> PAGE_SHIFT];

		memset(phys_to_virt(entry & TOPA_BASE) + offset_in_page(unread), 0, C_PACKET_UNIT);
	}

	cp->buffer = buffer;
	cp->written = 0;
	if (!C_DEFECT(full_for_good))
		cp->full = false;
	cp->unit.entry = (head & (buffer->size - 1)) >> PAGE_SHIFT;
	cp->unit.offset = offset_in_page(head);
	if (C_DEFECT(begins_at_zero))
		cp->unit.entry = 0;
	cp->unit.stopped = !buffer->overwrite && !c_pattern_mark(buffer, &cp->aux.handle);
	if (C_DEFECT(overwrite_stops) && buffer->overwrite) {
		c_pattern_unmark(buffer);
		buffer->stop = buffer->nr_entries - 2;
		buffer->table[buffer->stop] |= TOPA_STOP;
	}

	event->hw.state = 0;
	c_pattern_itrace_started(event);
	return true;
}

/* Ends the transaction, if one is open. */
static void c_pattern_close(struct c_aux_cpu *cpu)
{
	struct c_pattern_cpu *cp = container_of(cpu, struct c_pattern_cpu, aux);
	struct perf_event *event = cpu->handle.event;
	static atomic_t commits = ATOMIC_INIT(0);
	struct c_pattern_event *data;
	unsigned long size;

	if (!event)
		return;

	data = event->pmu_private;
	data->packet.run++;

	if (cp->full && !C_DEFECT(never_truncated))
		perf_aux_output_flag(&cpu->handle, PERF_AUX_FLAG_TRUNCATED);
	if (cp->buffer->overwrite ? C_DEFECT(overwrite_truncated) : C_DEFECT(truncated_with_space))
		perf_aux_output_flag(&cpu->handle, PERF_AUX_FLAG_TRUNCATED);
	if (C_DEFECT(unknown_flag))
		perf_aux_output_flag(&cpu->handle, 0x20);
	if (C_DEFECT(changes_format) && cp->written && atomic_inc_return(&commits) % 2)
		perf_aux_output_flag(&cpu->handle, PERF_AUX_FLAG_CORESIGHT_FORMAT_RAW);
	if (cp->buffer->overwrite && !C_DEFECT(overwrite_head_stays))
		cpu->handle.head += cp->written;
	if (cp->buffer->overwrite && C_DEFECT(overwrite_head_back) && data->packet.run % 4 == 3)
		cpu->handle.head /= 2;

	size = cp->written;
	if (size && C_DEFECT(size_more))
		size += 8;
	if (size && C_DEFECT(size_less))
		size -= C_PACKET_UNIT;

	/* B, see perf_aux_output_begin(). */
	smp_wmb();
	perf_aux_output_end(&cpu->handle, size);
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
}

static void c_pattern_leave(struct c_pattern_cpu *cp)
{
	c_aux_leave_cpu(&cp->aux, c_pattern_close);
}

static enum hrtimer_restart c_pattern_tick(struct hrtimer *timer)
{
	struct c_pattern_cpu *cp = container_of(timer, struct c_pattern_cpu, aux.timer);
	struct c_pattern_event *data;
	struct perf_event *event;

	/* The timer of a CPU that goes offline moves to another CPU. */
	if (cp != this_cpu_ptr(&c_pattern_cpus) || !c_aux_enter(&cp->aux.guard))
		return HRTIMER_NORESTART;

	event = cp->aux.handle.event;
	if (!event) {
		c_pattern_leave(cp);
		return HRTIMER_NORESTART;
	}

	data = event->pmu_private;
	if (C_DEFECT(resume_lost) && c_aux_paused(event))
		data->limit = 0;
	if ((!c_aux_paused(event) || C_DEFECT(pause_ignored)) &&
	    c_pattern_generate(cp, event) &&
	    !cp->buffer->overwrite) {
		bool truncated = cp->full;

		c_pattern_close(&cp->aux);
		/* perf disables an event whose trace was truncated. */
		if (!truncated)
			c_pattern_open(cp, event);
	}
	c_pattern_leave(cp);

	if (event->hw.state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;

	hrtimer_forward_now(timer, data->tick);
	return HRTIMER_RESTART;
}

static void c_pattern_start(struct perf_event *event, int flags)
{
	struct c_pattern_cpu *cp = this_cpu_ptr(&c_pattern_cpus);
	struct c_pattern_event *data = event->pmu_private;

	/* The unit checks hw.aux_paused at every tick. */
	if (flags & PERF_EF_RESUME)
		return;
	if (C_DEFECT(restart_lost) && !(flags & PERF_EF_START))
		return;
	if (!c_aux_enter(&cp->aux.guard))
		return;

	if ((!cp->aux.handle.event || C_DEFECT(start_nests)) && c_pattern_open(cp, event))
		hrtimer_start(&cp->aux.timer, data->tick, HRTIMER_MODE_REL_PINNED_HARD);
	c_pattern_leave(cp);
}

static void c_pattern_stop(struct perf_event *event, int flags)
{
	if (flags & PERF_EF_PAUSE)
		return;
	if (C_DEFECT(start_nests) && !(flags & PERF_EF_UPDATE))
		return;
	if (C_DEFECT(stop_leaves_open))
		return;

	c_aux_stop(this_cpu_ptr(&c_pattern_cpus.aux), event, flags, c_pattern_close);
	if (C_DEFECT(stop_begins_again)) {
		event->hw.state = 0;
		c_pattern_start(event, PERF_EF_START);
	}
}

static int c_pattern_add(struct perf_event *event, int flags)
{
	return c_aux_add(this_cpu_ptr(&c_pattern_cpus.aux), event, flags, c_pattern_start);
}

static void c_pattern_del(struct perf_event *event, int flags)
{
	c_pattern_stop(event, PERF_EF_UPDATE);
}

static void c_pattern_read(struct perf_event *event)
{
}

static void *c_pattern_setup_aux(struct perf_event *event, void **pages, int nr_pages,
				 bool overwrite)
{
	struct c_pattern_event *data = event->pmu_private;
	unsigned long size = (unsigned long)nr_pages << PAGE_SHIFT;
	struct c_pattern_buffer *buffer;
	int i;

	/* One page is too small: the unit stops at its end, and perf keeps the last byte free. */
	if (nr_pages > 64 && C_DEFECT(refuses_large))
		return NULL;
	if (nr_pages < 2 || nr_pages < data->min || data->packet.len > size / 2)
		return NULL;

	buffer = kvzalloc(struct_size(buffer, table, nr_pages + 1), GFP_KERNEL);
	if (!buffer)
		return NULL;

	buffer->nr_entries = nr_pages + 1;
	buffer->size = size;
	buffer->overwrite = overwrite;
	for (i = 0; i < nr_pages; i++)
		buffer->table[i] = virt_to_phys(pages[i]);
	buffer->table[nr_pages] = TOPA_END;

	/* The area may outlive the event. perf holds the module for the event only. */
	if (!C_DEFECT(area_holds_nothing))
		__module_get(THIS_MODULE);
	return buffer;
}

static void c_pattern_free_aux(void *aux)
{
	kvfree(aux);
	if (!C_DEFECT(area_holds_nothing) && !C_DEFECT(area_leaks))
		module_put(THIS_MODULE);
}

static void c_pattern_event_destroy(struct perf_event *event)
{
	kfree(event->pmu_private);
}

static int c_pattern_plan(struct perf_event *event, struct c_pattern_event *data)
{
	u64 config = event->attr.config;
	u64 config1 = event->attr.config1;
	u64 rate = FIELD_GET(C_PATTERN_RATE, config);
	u64 tick;
	u32 len;

	if ((config1 & ~(C_PATTERN_DRY | C_PATTERN_MIN)) || c_config3(event))
		return -EINVAL;

	rate = (rate ?: C_PATTERN_DEFAULT_KIB) * 1024;
	len = (FIELD_GET(C_PATTERN_PACKET, config) ?: 1) * C_PACKET_UNIT;
	data->burst = FIELD_GET(C_PATTERN_BURST, config);
	if (!data->burst)
		data->burst = max(div_u64(rate, C_PATTERN_TICKS_PER_SEC * len), 1ULL);

	tick = div64_u64(data->burst * len * NSEC_PER_SEC, rate);
	if (tick < C_PATTERN_SHORTEST_TICK)
		return -EINVAL;

	data->tick = ns_to_ktime(tick);
	data->packet.len = len;
	data->packet.seed = FIELD_GET(C_PATTERN_SEED, config);
	data->dry = config1 & C_PATTERN_DRY;
	data->min = FIELD_GET(C_PATTERN_MIN, config1);
	data->limit = event->attr.config2 ?: U64_MAX;
	return 0;
}

static int c_pattern_event_init(struct perf_event *event)
{
	struct c_pattern_event *data;
	int ret;

	if (event->attr.type != event->pmu->type)
		return -ENOENT;
	if (event->attr.freq)
		return -EINVAL;
	if (has_branch_stack(event))
		return -EOPNOTSUPP;

	data = kzalloc_obj(*data);
	if (!data)
		return -ENOMEM;

	ret = c_pattern_plan(event, data);
	if (ret) {
		kfree(data);
		return ret;
	}

	/* The number of a stream is never 0. */
	data->packet.stream = atomic_inc_return(&c_pattern_streams) ?: 1;
	event->pmu_private = data;
	event->destroy = c_pattern_event_destroy;
	return 0;
}

PMU_FORMAT_ATTR(rate, "config:0-23");
PMU_FORMAT_ATTR(burst, "config:24-39");
PMU_FORMAT_ATTR(packet, "config:40-47");
PMU_FORMAT_ATTR(seed, "config:48-63");
PMU_FORMAT_ATTR(sink, "config1:0-1");
PMU_FORMAT_ATTR(dry, "config1:2");
PMU_FORMAT_ATTR(min, "config1:48-63");
PMU_FORMAT_ATTR(limit, "config2:0-63");

static struct attribute *c_pattern_format_attrs[] = {
	&format_attr_rate.attr,
	&format_attr_burst.attr,
	&format_attr_packet.attr,
	&format_attr_seed.attr,
	&format_attr_sink.attr,
	&format_attr_dry.attr,
	&format_attr_min.attr,
	&format_attr_limit.attr,
	NULL
};

static const struct attribute_group c_pattern_format_group = {
	.name = "format",
	.attrs = c_pattern_format_attrs,
};

static const struct attribute_group *c_pattern_groups[] = {
	&c_pattern_format_group,
	NULL
};

static struct pmu c_pattern_pmu = {
	.module		= THIS_MODULE,
	.capabilities	= PERF_PMU_CAP_EXCLUSIVE | PERF_PMU_CAP_ITRACE |
			  PERF_PMU_CAP_NO_EXCLUDE | PERF_PMU_CAP_AUX_PAUSE,
	.task_ctx_nr	= perf_sw_context,
	.attr_groups	= c_pattern_groups,
	.event_init	= c_pattern_event_init,
	.add		= c_pattern_add,
	.del		= c_pattern_del,
	.start		= c_pattern_start,
	.stop		= c_pattern_stop,
	.read		= c_pattern_read,
	.setup_aux	= c_pattern_setup_aux,
	.free_aux	= c_pattern_free_aux,
};

static int __init c_pattern_init(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		hrtimer_setup(&per_cpu(c_pattern_cpus, cpu).aux.timer, c_pattern_tick, CLOCK_MONOTONIC,
			      HRTIMER_MODE_REL_PINNED_HARD);

	return perf_pmu_register(&c_pattern_pmu, "c_pattern", -1);
}
module_init(c_pattern_init);

static void __exit c_pattern_exit(void)
{
	int cpu;

	perf_pmu_unregister(&c_pattern_pmu);
	for_each_possible_cpu(cpu)
		hrtimer_cancel(&per_cpu(c_pattern_cpus, cpu).aux.timer);

	/* Waits until every task has returned from c_pattern_free_aux(). */
	synchronize_rcu_tasks();
}
module_exit(c_pattern_exit);

MODULE_AUTHOR("The auxpmu authors");
MODULE_DESCRIPTION("samples/pattern with its direct sink, in C");
MODULE_LICENSE("GPL");
