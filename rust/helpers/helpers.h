/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for static inlines and macros, which bindgen cannot see. They have
 * a prefix of their own, since kernels without CONFIG_RUST_INLINE_HELPERS export
 * every rust_helper_*.
 */

#ifndef RUST_PERF_HELPERS_H
#define RUST_PERF_HELPERS_H

#include <linux/dma-direction.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/list.h>
#include <linux/perf_event.h>
#include <linux/smp.h>
#include <linux/stddef.h>
#include <linux/suspend.h>
#include <linux/sysfs.h>
#include <linux/tracepoint-defs.h>
#include <linux/types.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

/* The first field of an object that kfree_rcu() frees. */
struct rust_perf_rcu {
	struct rcu_head rcu;
};

/* A task that runs a callback of a driver. It lies on the stack of the task. */
struct rust_perf_callback {
	struct list_head node;
	struct task_struct *task;
};

/* What a worker does later: see later.c. */
struct rust_perf_later {
	struct llist_node node;
	struct work_struct work;
	/* Contains run(), or is NULL for rust_perf.ko. */
	struct module *module;
	void (*run)(struct rust_perf_later *later);
};

/* The record of a registered PMU in rust_perf.ko. */
struct rust_perf_registration {
	struct list_head node;
	/* Calls end(). */
	struct rust_perf_later later;
	/* 1 once a caller has claimed the right to call end(). */
	atomic_t ending;
	/* Unregisters the PMU and frees the registration. */
	void (*end)(struct rust_perf_registration *registration);
};

/* Memory that a device writes to: see dma.c. */
struct rust_perf_dma;

/* A reference to a device: see later.c. */
struct rust_perf_device_ref;

/* Memory that is charged to a user: see charge.c. */
struct rust_perf_charge;

/* The same declarations as in trace.h. */
extern struct tracepoint __tracepoint_rust_perf_begin;
extern struct tracepoint __tracepoint_rust_perf_commit;

/* Offsets of fields whose paths in the bindings contain numbers that bindgen chooses. */
enum rust_perf_offset {
	RUST_PERF_AUX_PAUSED = offsetof(struct perf_event, hw.aux_paused),
};

/* Queues an irq_work on another CPU. */
struct rust_perf_remote {
	call_single_data_t call;
	struct irq_work *work;
	/* The call is queued, and its function has not run. */
	atomic_t busy;
};

/* An NMI handler: see nmi.c. */
struct rust_perf_nmi {
	struct list_head node;
	/* Whether it is on the list. */
	bool added;
	struct module *module;
	/* Runs in NMI. Returns whether it has handled the NMI. */
	bool (*handle)(struct rust_perf_nmi *nmi);
};

void rust_perf_later_init(struct rust_perf_later *later, struct module *module,
			  void (*run_later)(struct rust_perf_later *later));
void rust_perf_run_later(struct rust_perf_later *later);
void rust_perf_later_flush(void);
int rust_perf_later_start(void);
void rust_perf_later_end(void);
struct rust_perf_device_ref *rust_perf_device_ref_new(struct device *device);
void rust_perf_device_ref_drop(struct rust_perf_device_ref *ref);
void rust_perf_enter_callback(struct rust_perf_callback *callback);
void rust_perf_leave_callback(struct rust_perf_callback *callback);
bool rust_perf_may_unregister(void);
void rust_perf_registry_add(struct rust_perf_registration *registration);
void rust_perf_registry_del(struct rust_perf_registration *registration);
int rust_perf_registry_init(void);
void rust_perf_registry_exit(void);
void rust_perf_registration_init(struct rust_perf_registration *registration,
				 struct module *module,
				 void (*end)(struct rust_perf_registration *registration));
bool rust_perf_registration_claim(struct rust_perf_registration *registration);
void rust_perf_registration_end_later(struct rust_perf_registration *registration);
void rust_perf_attr_init(struct attribute *attr);
int rust_perf_cpu_to_node(unsigned int cpu);
bool rust_perf_cpu_online(unsigned int cpu);
unsigned int rust_perf_any_online_but(unsigned int cpu);
int rust_perf_ring_store(void *key, void *ring);
void rust_perf_ring_erase(void *key, void *ring);
void *rust_perf_ring_load(void *key);
void rust_perf_kfree_rcu(struct rust_perf_rcu *object);

struct list_head *rust_perf_addr_filters(struct perf_event *event);
void rust_perf_set_aux_paused(struct perf_event *event, bool paused);
void rust_perf_pm_add(struct notifier_block *block);
void rust_perf_pm_del(struct notifier_block *block);
void rust_perf_on_each_cpu(int (*func)(void *data), void *data);
int rust_perf_cpuhp_setup(int (*online)(unsigned int cpu,
					struct hlist_node *node),
			  int (*offline)(unsigned int cpu,
					 struct hlist_node *node));
void rust_perf_cpuhp_remove(int state);
int rust_perf_cpuhp_add(int state, struct hlist_node *node);
void rust_perf_cpuhp_del(int state, struct hlist_node *node);
ssize_t rust_perf_cpumask_emit(char *page, const struct cpumask *mask);
ssize_t rust_perf_cpu_emit(char *page, unsigned int cpu);
ssize_t rust_perf_text_show(struct device *device, struct device_attribute *attr,
			    char *page);
unsigned long rust_perf_page_order(void *address);
phys_addr_t rust_perf_virt_to_phys(void *address);
void *rust_perf_vmap(void **addresses, unsigned int nr);
void rust_perf_vunmap(void *mapping);
int rust_perf_event_node(struct perf_event *event);
unsigned long rust_perf_alloc_pages(int node, unsigned int order);
struct rust_perf_charge *rust_perf_charge(unsigned long pages,
					  unsigned long ring);
void rust_perf_uncharge(struct rust_perf_charge *charge);
struct rust_perf_dma *rust_perf_dma_map(struct device *dev, void **addresses,
					unsigned int nr,
					enum dma_data_direction direction);
struct rust_perf_dma *rust_perf_dma_alloc(struct device *dev, size_t size);
void rust_perf_dma_free(struct rust_perf_dma *dma);
void *rust_perf_dma_memory(struct rust_perf_dma *dma);
void rust_perf_dma_for_each(struct rust_perf_dma *dma,
			    bool (*each)(void *data, u64 address, u64 len),
			    void *data);
bool rust_perf_may_sleep(void);
int rust_perf_irq_set_affinity(unsigned int irq, unsigned int cpu);
void rust_perf_remote_init(struct rust_perf_remote *remote, struct irq_work *work);
void rust_perf_remote_queue(struct rust_perf_remote *remote, unsigned int cpu);
void rust_perf_remote_sync(struct rust_perf_remote *remote);
void rust_perf_dma_sync_for_cpu(struct rust_perf_dma *dma);
void rust_perf_dma_sync_for_device(struct rust_perf_dma *dma);
bool rust_perf_in_nmi(void);
bool rust_perf_perfmon_capable(void);
unsigned long rust_perf_local_irq_save(void);
void rust_perf_local_irq_restore(unsigned long flags);
void rust_perf_event_count(struct perf_event *event, u64 n);
bool rust_perf_has_branch_stack(struct perf_event *event);
u64 rust_perf_hrtimer_forward_now(struct hrtimer *timer, ktime_t interval);
void rust_perf_irq_work_init(struct irq_work *work,
			     void (*func)(struct irq_work *work));
void rust_perf_synchronize_rcu_tasks(void);
void rust_perf_trace_begin(struct perf_event *event, u64 aux_head, u64 space,
			   unsigned int reason);
void rust_perf_trace_commit(struct perf_event *event, u64 aux_head, u64 size,
			    u64 flags);
void rust_perf_trace_loss(struct perf_event *event, unsigned int cause,
			  bool known, u64 bytes);

#ifdef CONFIG_X86_64
u64 rust_perf_tsc(void);
#endif

#ifdef CONFIG_X86_LOCAL_APIC
int rust_perf_nmi_add(struct rust_perf_nmi *nmi);
void rust_perf_nmi_del(struct rust_perf_nmi *nmi);
void rust_perf_nmi_module_going(struct module *module);
#ifdef CONFIG_KUNIT
void rust_perf_nmi_raise(void);
#endif
#else
static inline void rust_perf_nmi_module_going(struct module *module)
{
}
#endif

#ifdef CONFIG_KUNIT
bool rust_perf_alloc_chunk(void **addresses, unsigned int order);
void rust_perf_free_chunk_page(void *address);
int rust_perf_page_count(void *address);
#endif

#endif
