// SPDX-License-Identifier: GPL-2.0

#include "helpers.h"

#include <linux/capability.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/gfp.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/vmalloc.h>

#ifdef CONFIG_X86_64
#include <asm/tsc.h>

u64 rust_perf_tsc(void)
{
	return rdtsc_ordered();
}
#endif

struct list_head *rust_perf_addr_filters(struct perf_event *event)
{
	return &perf_event_addr_filters(event)->list;
}

void rust_perf_set_aux_paused(struct perf_event *event, bool paused)
{
	WRITE_ONCE(event->hw.aux_paused, paused);
}

void rust_perf_pm_add(struct notifier_block *block)
{
	register_pm_notifier(block);
}

void rust_perf_pm_del(struct notifier_block *block)
{
	unregister_pm_notifier(block);
}

/* Calls @func in task context on each online CPU, one CPU after the other. */
void rust_perf_on_each_cpu(int (*func)(void *data), void *data)
{
	unsigned int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu)
		smp_call_on_cpu(cpu, func, data, false);
	cpus_read_unlock();
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

ssize_t rust_perf_cpu_emit(char *page, unsigned int cpu)
{
	return sysfs_emit(page, "%u\n", cpu);
}

/* As perf_event_sysfs_show(), for text of any length: writes no more than a page. */
ssize_t rust_perf_text_show(struct device *device, struct device_attribute *attr,
			    char *page)
{
	struct perf_pmu_events_attr *text =
		container_of(attr, struct perf_pmu_events_attr, attr);

	return sysfs_emit(page, "%s\n", text->event_str);
}

/* The order that rb_alloc_aux_page() stores in the first page of a chunk. */
unsigned long rust_perf_page_order(void *address)
{
	struct page *page = virt_to_page(address);

	return PagePrivate(page) ? page_private(page) : 0;
}

phys_addr_t rust_perf_virt_to_phys(void *address)
{
	return virt_to_phys(address);
}

/* The mapping holds a reference to each page. */
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

/* The node of an event's unit: the node of the PMU's device, or else of the CPU. */
int rust_perf_event_node(struct perf_event *event)
{
	int node = NUMA_NO_NODE;

	if (event->pmu->parent)
		node = dev_to_node(event->pmu->parent);
	if (node == NUMA_NO_NODE && event->cpu >= 0)
		node = cpu_to_node(event->cpu);
	return node;
}

/* A high order may fail. The driver reports it, so the page allocator does not warn. */
unsigned long rust_perf_alloc_pages(int node, unsigned int order)
{
	struct page *page = alloc_pages_node(node, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN,
					     order);

	return page ? (unsigned long)page_address(page) : 0;
}

#ifdef CONFIG_KUNIT
/* Allocates a chunk as rb_alloc_aux_page() and the loop in rb_alloc_aux() do. */
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

/* Frees a page as rb_free_aux_page() does. */
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

/*
 * With PREEMPT_RT, in_atomic() detects neither disabled softirqs nor RCU readers.
 * A force-threaded interrupt handler runs with softirqs disabled, as an RCU reader.
 */
bool rust_perf_may_sleep(void)
{
	return !irqs_disabled() && !in_atomic() && !softirq_count() && !rcu_preempt_depth();
}

int rust_perf_irq_set_affinity(unsigned int irq, unsigned int cpu)
{
	return cpu < nr_cpu_ids ? irq_set_affinity(irq, cpumask_of(cpu)) : -EINVAL;
}

static void remote_queue_here(void *info)
{
	struct rust_perf_remote *remote = info;

	irq_work_queue(remote->work);
	/* The last access: rust_perf_remote_sync() returns, and the caller may free it. */
	atomic_xchg(&remote->busy, 0);
}

/* Queues an irq_work on another CPU: modules cannot call irq_work_queue_on(). */
void rust_perf_remote_init(struct rust_perf_remote *remote, struct irq_work *work)
{
	INIT_CSD(&remote->call, remote_queue_here, remote);
	remote->work = work;
	atomic_set(&remote->busy, 0);
}

/*
 * The work runs on @cpu after this, and sees what the caller has stored before. The
 * caller has turned interrupts off and found @cpu online.
 *
 * A call merges with one whose function has not run: smp_call_function_single_async()
 * does not serialise calls. Both sides access @busy fully ordered. So if a call merges,
 * the function has yet to clear @busy, and the work, which runs with interrupts off,
 * has yet to run.
 */
void rust_perf_remote_queue(struct rust_perf_remote *remote, unsigned int cpu)
{
	if (!atomic_xchg(&remote->busy, 1))
		WARN_ON_ONCE(smp_call_function_single_async(cpu, &remote->call));
}

/* Waits for the function, which has queued the work. No rust_perf_remote_queue() runs. */
void rust_perf_remote_sync(struct rust_perf_remote *remote)
{
	while (atomic_read_acquire(&remote->busy))
		cpu_relax();
}

bool rust_perf_perfmon_capable(void)
{
	return perfmon_capable();
}

unsigned long rust_perf_local_irq_save(void)
{
	unsigned long flags;

	local_irq_save(flags);
	return flags;
}

void rust_perf_local_irq_restore(unsigned long flags)
{
	local_irq_restore(flags);
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

void rust_perf_attr_init(struct attribute *attr)
{
	sysfs_attr_init(attr);
}

int rust_perf_cpu_to_node(unsigned int cpu)
{
	return cpu_possible(cpu) ? cpu_to_node(cpu) : NUMA_NO_NODE;
}

bool rust_perf_cpu_online(unsigned int cpu)
{
	return cpu_online(cpu);
}

/* Returns nr_cpu_ids if no other CPU is online. */
unsigned int rust_perf_any_online_but(unsigned int cpu)
{
	return cpumask_any_but(cpu_online_mask, cpu);
}

/* The ring buffers that have an AUX area of a driver of the framework, by address. */
static DEFINE_XARRAY(rings);

int rust_perf_ring_store(void *key, void *ring)
{
	return xa_insert(&rings, (unsigned long)key, ring, GFP_KERNEL);
}

void rust_perf_ring_erase(void *key, void *ring)
{
	xa_cmpxchg(&rings, (unsigned long)key, ring, NULL, 0);
}

/* The caller is an RCU reader, or has interrupts off. */
void *rust_perf_ring_load(void *key)
{
	return xa_load(&rings, (unsigned long)key);
}

/* @object comes from kmalloc(). */
void rust_perf_kfree_rcu(struct rust_perf_rcu *object)
{
	kfree_rcu(object, rcu);
}

void rust_perf_irq_work_init(struct irq_work *work,
			     void (*func)(struct irq_work *work))
{
	*work = IRQ_WORK_INIT_HARD(func);
}
