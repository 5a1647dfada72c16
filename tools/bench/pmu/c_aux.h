/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Code that the PMUs of this directory share: it permits one callback at a time on each CPU, and
 * adds and stops events.
 *
 * The callbacks of a PMU run with interrupts off. But perf may stop an event in NMI, or below one
 * of its own functions: when a sibling overflows, perf throttles the whole group. Such a stop is
 * deferred to the callback that it interrupts, which ends the transaction before it returns.
 */
#ifndef C_AUX_H
#define C_AUX_H

#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/hrtimer.h>
#include <linux/perf_event.h>
#include <linux/types.h>

struct c_aux_guard {
	/* Whether a callback runs on this CPU. */
	bool busy;
	/* Whether that callback must end the transaction. */
	bool stop;
};

/* Returns false if this interrupts another callback on this CPU. */
static inline bool c_aux_enter(struct c_aux_guard *guard)
{
	if (unlikely(READ_ONCE(guard->busy)))
		return false;

	WRITE_ONCE(guard->busy, true);
	barrier();
	return true;
}

/* Returns true if the caller must end the transaction, and then call this again. */
static inline bool c_aux_leave(struct c_aux_guard *guard)
{
	barrier();
	WRITE_ONCE(guard->busy, false);
	barrier();
	if (likely(!READ_ONCE(guard->stop)))
		return false;

	WRITE_ONCE(guard->busy, true);
	WRITE_ONCE(guard->stop, false);
	barrier();
	return true;
}

/* Defers a stop to the callback that this one interrupts. */
static inline void c_aux_defer_stop(struct c_aux_guard *guard)
{
	WRITE_ONCE(guard->stop, true);
}

/* The per-CPU state that all drivers have. It is the first member of their own state. */
struct c_aux_cpu {
	/* A transaction is open while handle.event is set. */
	struct perf_output_handle handle;
	struct c_aux_guard guard;
	struct hrtimer timer;
};

/*
 * The functions below are inlined with the driver's callback, so that it is called directly.
 * @close ends the transaction, if one is open.
 */
static __always_inline void c_aux_leave_cpu(struct c_aux_cpu *cpu,
					    void (*close)(struct c_aux_cpu *cpu))
{
	while (unlikely(c_aux_leave(&cpu->guard)))
		close(cpu);
}

static __always_inline void c_aux_stop(struct c_aux_cpu *cpu, struct perf_event *event, int flags,
				       void (*close)(struct c_aux_cpu *cpu))
{
	/*
	 * Without PERF_EF_UPDATE perf throttles the event's group. That may be in NMI, or with the
	 * timers locked; the timer finds no transaction then, and is not started again.
	 */
	if (flags & PERF_EF_UPDATE)
		hrtimer_try_to_cancel(&cpu->timer);

	if (!c_aux_enter(&cpu->guard)) {
		c_aux_defer_stop(&cpu->guard);
		return;
	}
	if (cpu->handle.event == event)
		close(cpu);
	c_aux_leave_cpu(cpu, close);
}

static __always_inline int c_aux_add(struct c_aux_cpu *cpu, struct perf_event *event, int flags,
				     void (*start)(struct perf_event *event, int flags))
{
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (!(flags & PERF_EF_START))
		return 0;
	if (cpu->handle.event)
		return -EBUSY;

	/* perf_aux_output_begin() sets handle.rb, unless there is no AUX area. */
	cpu->handle.rb = NULL;
	start(event, PERF_EF_START);

	/* If the area is full, perf disables the event once it is added. */
	if ((event->hw.state & PERF_HES_STOPPED) && !cpu->handle.rb)
		return -EAGAIN;
	return 0;
}

#endif /* C_AUX_H */
