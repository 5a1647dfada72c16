// SPDX-License-Identifier: GPL-2.0

#include "helpers.h"

#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/vmalloc.h>

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

/* What rb_alloc_aux_page() leaves in the first page of a chunk. */
unsigned long rust_perf_page_order(void *address)
{
	struct page *page = virt_to_page(address);

	return PagePrivate(page) ? page_private(page) : 0;
}

phys_addr_t rust_perf_virt_to_phys(void *address)
{
	return virt_to_phys(address);
}

/* The mapping has a reference to each page. */
void *rust_perf_vmap(void **addresses, unsigned int nr)
{
	struct page **pages;
	void *mapping;
	unsigned int i;

	pages = kvmalloc_array(nr, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return NULL;

	for (i = 0; i < nr; i++) {
		pages[i] = virt_to_page(addresses[i]);
		get_page(pages[i]);
	}

	mapping = vmap(pages, nr, VM_MAP | VM_MAP_PUT_PAGES, PAGE_KERNEL);
	if (!mapping) {
		while (i--)
			put_page(pages[i]);
		kvfree(pages);
	}
	return mapping;
}

void rust_perf_vunmap(void *mapping)
{
	/* Drops the references, and frees the array: VM_MAP_PUT_PAGES. */
	vfree(mapping);
}

#ifdef CONFIG_KUNIT
/* As rb_alloc_aux_page() and the loop in rb_alloc_aux(). */
bool rust_perf_alloc_chunk(void **addresses, unsigned int order)
{
	struct page *page = alloc_pages(GFP_KERNEL | __GFP_ZERO, order);
	unsigned int i;

	if (!page)
		return false;

	if (order) {
		split_page(page, order);
		SetPagePrivate(page);
		set_page_private(page, order);
	}
	for (i = 0; i < 1U << order; i++)
		addresses[i] = page_address(page + i);
	return true;
}

/* As rb_free_aux_page(). */
void rust_perf_free_chunk_page(void *address)
{
	struct page *page = virt_to_page(address);

	ClearPagePrivate(page);
	__free_page(page);
}

int rust_perf_page_count(void *address)
{
	return page_count(virt_to_page(address));
}
#endif

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

void rust_perf_irq_work_init(struct irq_work *work,
			     void (*func)(struct irq_work *work))
{
	*work = IRQ_WORK_INIT_HARD(func);
}
