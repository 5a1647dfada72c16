// SPDX-License-Identifier: GPL-2.0

#include "helpers.h"

#include <linux/preempt.h>
#include <linux/rcupdate.h>

bool rust_perf_aux_paused(struct perf_event *event)
{
	return READ_ONCE(event->hw.aux_paused);
}

void rust_perf_set_aux_paused(struct perf_event *event, bool paused)
{
	WRITE_ONCE(event->hw.aux_paused, paused);
}

bool rust_perf_in_nmi(void)
{
	return in_nmi();
}

void rust_perf_event_count(struct perf_event *event, u64 n)
{
	local64_add(n, &event->count);
}

bool rust_perf_has_branch_stack(struct perf_event *event)
{
	return has_branch_stack(event);
}

u64 rust_perf_hrtimer_forward_now(struct hrtimer *timer, ktime_t interval)
{
	return hrtimer_forward_now(timer, interval);
}

void rust_perf_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

void rust_perf_xa_init(struct xarray *xa)
{
	xa_init(xa);
}
