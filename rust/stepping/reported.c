// SPDX-License-Identifier: GPL-2.0
/*
 * The generated code that was reported last. Code that is changed and changed
 * back must be reported again if the change was reported: a decoder uses the
 * newest report of an address.
 */

#include <linux/array_size.h>
#include <linux/bits.h>
#include <linux/compiler.h>
#include <linux/hash.h>
#include <linux/irqflags.h>
#include <linux/kconfig.h>
#include <linux/limits.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/percpu.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "helpers.h"
#include "trace.h"

#define LINE_SIZE	64
#define LINES		4096

/*
 * Code of an address space, at an address that is a multiple of the size.
 *
 * Lines that have the same place in the table take it from each other. What is
 * taken away is forgotten, and has changed when it is reported the next time.
 */
struct line {
	u64 space;	/* Numbers of address spaces begin with 1. */
	u64 number;	/* The address, divided by the size. */
	u64 changed;	/* The report that has changed the line last. */
	u64 known;	/* A bit for each byte that was reported. */
	u8 text[LINE_SIZE];
};

static struct line lines[LINES];
static u64 reports; /* The number of reports that have changed a line. */
static DEFINE_RAW_SPINLOCK(reported_lock); /* Held to write to any of these. */
/* Whether this CPU holds the lock, or waits for it. */
static DEFINE_PER_CPU(bool, is_reporting);

static struct line *line_at(u64 space, u64 number)
{
	return &lines[(number + hash_64(space, ilog2(LINES))) % LINES];
}

/* Whether the line becomes another one by this text. */
static bool change(struct line *line, u64 space, u64 number, unsigned int start,
		   const u8 *text, unsigned int len)
{
	bool is_other = line->space != space || line->number != number;
	unsigned int i;

	if (is_other) {
		WRITE_ONCE(line->space, space);
		WRITE_ONCE(line->number, number);
		line->known = 0;
	}
	for (i = 0; i < len; i++)
		if (line->known & BIT_ULL(start + i) &&
		    line->text[start + i] != text[i])
			is_other = true;
	memcpy(line->text + start, text, len);
	line->known |= GENMASK_ULL(start + len - 1, start);
	return is_other;
}

/*
 * Reports code of the current task by the tracepoint. Returns a number for
 * rust_stepping_is_replaced(). The lock keeps the tracepoints of all CPUs in
 * the order of the numbers.
 *
 * Context: any. While a CPU holds the lock, a probe of the tracepoint or an NMI
 * may call a driver there. The driver's reports are left out: the CPU would
 * wait for itself.
 */
u64 rust_stepping_report_code(unsigned long address, const u8 *text,
			      unsigned int len)
{
	u64 space = rust_stepping_space(), report = U64_MAX, now;
	unsigned int start, part;
	unsigned long flags;
	struct line *line;

	local_irq_save(flags);
	if (this_cpu_read(is_reporting))
		goto out;
	this_cpu_write(is_reporting, true);
	raw_spin_lock(&reported_lock);
	trace_rust_stepping_code(address, text, len);
	report = reports;
	now = report + 1;
	for (; len; address += part, text += part, len -= part) {
		start = address % LINE_SIZE;
		part = min(len, LINE_SIZE - start);
		line = line_at(space, address / LINE_SIZE);
		if (change(line, space, address / LINE_SIZE, start, text, part)) {
			WRITE_ONCE(line->changed, now);
			report = now;
		}
	}
	reports = report;
	raw_spin_unlock(&reported_lock);
	this_cpu_write(is_reporting, false);
out:
	local_irq_restore(flags);
	return report;
}

#if IS_ENABLED(CONFIG_KUNIT)
static void report_again(void *nested, unsigned long address, const u8 *text,
			 unsigned int len)
{
	*(u64 *)nested = rust_stepping_report_code(address, text, len);
}

/* Reports code, and again from a probe of the tracepoint. For tests. */
int rust_stepping_report_nested(unsigned long address, const u8 *text,
				unsigned int len, u64 *nested)
{
	int ret = register_trace_rust_stepping_code(report_again, nested);

	if (ret)
		return ret;
	rust_stepping_report_code(address, text, len);
	unregister_trace_rust_stepping_code(report_again, nested);
	tracepoint_synchronize_unregister();
	return 0;
}
#endif

/*
 * Whether other code than that of @report was reported later, near these
 * addresses of the current task. The caller has read the code that is there.
 */
bool rust_stepping_is_replaced(unsigned long first, unsigned long last,
			       u64 report)
{
	u64 space = rust_stepping_space(), number;
	struct line *line;

	/*
	 * Pairs with the release of the lock by the task that has reported the
	 * other code. Only after that was the code changed back.
	 */
	smp_rmb();
	for (number = first / LINE_SIZE; number <= last / LINE_SIZE; number++) {
		line = line_at(space, number);
		if (READ_ONCE(line->space) == space &&
		    READ_ONCE(line->number) == number &&
		    READ_ONCE(line->changed) > report)
			return true;
	}
	return false;
}
