// SPDX-License-Identifier: GPL-2.0

#include "helpers.h"

#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sysfs.h>

struct list_head *rust_perf_addr_filters(struct perf_event *event)
{
	return &perf_event_addr_filters(event)->list;
}

bool rust_perf_aux_paused(struct perf_event *event)
{
	return READ_ONCE(event->hw.aux_paused);
}

void rust_perf_set_aux_paused(struct perf_event *event, bool paused)
{
	WRITE_ONCE(event->hw.aux_paused, paused);
}

int rust_perf_cpuhp_setup(int (*online)(unsigned int cpu,
					struct hlist_node *node),
			  int (*offline)(unsigned int cpu,
					 struct hlist_node *node))
{
	return cpuhp_setup_state_multi(CPUHP_AP_ONLINE_DYN, "perf/rust:online",
				       online, offline);
}

void rust_perf_cpuhp_remove(int state)
{
	cpuhp_remove_multi_state(state);
}

int rust_perf_cpuhp_add(int state, struct hlist_node *node)
{
	return cpuhp_state_add_instance(state, node);
}

void rust_perf_cpuhp_del(int state, struct hlist_node *node)
{
	cpuhp_state_remove_instance(state, node);
}

ssize_t rust_perf_cpumask_emit(char *page, const struct cpumask *mask)
{
	return sysfs_emit(page, "%*pbl\n", cpumask_pr_args(mask));
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
