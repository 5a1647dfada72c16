/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the PMUs of this directory share: one callback at a time on each CPU.
 *
 * The callbacks of a PMU run with interrupts off, but perf may stop an event in NMI, or below one
 * of its own functions: when a sibling overflows, it throttles the whole group. Such a stop is
 * left to the callback that it interrupts, which ends the transaction before it returns.
 */
#ifndef C_AUX_H
#define C_AUX_H

#include <linux/compiler.h>
#include <linux/types.h>

struct c_aux_guard {
	/* A callback runs on this CPU. */
	bool busy;
	/* It is to end the transaction. */
	bool stop;
};

/* False if this interrupts another callback on this CPU. */
static inline bool c_aux_enter(struct c_aux_guard *guard)
{
	if (unlikely(READ_ONCE(guard->busy)))
		return false;

	WRITE_ONCE(guard->busy, true);
	barrier();
	return true;
}

/* True if the caller must end the transaction, and then leave again. */
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

/* Leaves a stop to the callback that this one interrupts. */
static inline void c_aux_defer_stop(struct c_aux_guard *guard)
{
	WRITE_ONCE(guard->stop, true);
}

#endif /* C_AUX_H */
