/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C for what bindgen cannot see: static inlines and macros. The prefix is our
 * own, since kernels without CONFIG_RUST_INLINE_HELPERS export every
 * rust_helper_*.
 */

#ifndef RUST_PERF_HELPERS_H
#define RUST_PERF_HELPERS_H

#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/perf_event.h>
#include <linux/types.h>
#include <linux/xarray.h>

struct list_head *rust_perf_addr_filters(struct perf_event *event);
bool rust_perf_aux_paused(struct perf_event *event);
void rust_perf_set_aux_paused(struct perf_event *event, bool paused);
int rust_perf_cpuhp_setup(int (*online)(unsigned int cpu,
					struct hlist_node *node),
			  int (*offline)(unsigned int cpu,
					 struct hlist_node *node));
void rust_perf_cpuhp_remove(int state);
int rust_perf_cpuhp_add(int state, struct hlist_node *node);
void rust_perf_cpuhp_del(int state, struct hlist_node *node);
ssize_t rust_perf_cpumask_emit(char *page, const struct cpumask *mask);
unsigned long rust_perf_page_order(void *address);
phys_addr_t rust_perf_virt_to_phys(void *address);
void *rust_perf_vmap(void **addresses, unsigned int nr);
void rust_perf_vunmap(void *mapping);
bool rust_perf_in_nmi(void);
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
void rust_perf_xa_init(struct xarray *xa);

#ifdef CONFIG_X86_64
struct callback_head;
struct k_sigaction;
struct notifier_block;
struct pt_regs;
struct tracepoint;

struct pt_regs *rust_perf_user_regs(struct task_struct *task);
struct pt_regs *rust_perf_running_user_regs(void);
struct pt_regs *rust_perf_current_user_regs(void);
void rust_perf_note_switch(struct task_struct *prev, struct task_struct *next);
void rust_perf_forget_switches(void);
unsigned int rust_perf_user_bits(struct pt_regs *regs);
bool rust_perf_die_is_user_step(unsigned long event, void *args);
int rust_perf_die_claim_step(void *args);
int rust_perf_register_die_notifier(struct notifier_block *block);
void rust_perf_unregister_die_notifier(struct notifier_block *block);
struct tracepoint *rust_perf_find_tracepoint(const char *name);
void rust_perf_tracepoint_synchronize(void);
bool rust_perf_signal_passes(int sig, struct k_sigaction *ka);
int rust_perf_task_work_on_return(struct callback_head *work);
u64 rust_perf_tsc(void);
#endif

#ifdef CONFIG_KUNIT
bool rust_perf_alloc_chunk(void **addresses, unsigned int order);
void rust_perf_free_chunk_page(void *address);
int rust_perf_page_count(void *address);
#endif

#endif
