// SPDX-License-Identifier: GPL-2.0
/*
 * User code on x86: its registers, its traps, and the tracepoints where it
 * enters and leaves the kernel.
 */

#include "helpers.h"

#include <linux/kdebug.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/signal.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/task_work.h>
#include <linux/tracepoint.h>
#include <asm/debugreg.h>
#include <asm/tsc.h>

/* NULL for a task that does not return to user mode. */
struct pt_regs *rust_perf_user_regs(struct task_struct *task)
{
	if (task->flags & (PF_KTHREAD | PF_USER_WORKER | PF_EXITING))
		return NULL;
	return task_pt_regs(task);
}

/* The last task switch of a CPU, which may be under way. */
struct task_switch {
	struct task_struct *prev;
	struct task_struct *next;
};

static DEFINE_PER_CPU(struct task_switch, task_switch);

/* In trace_sched_switch(), with the run queue locked. */
void rust_perf_note_switch(struct task_struct *prev, struct task_struct *next)
{
	__this_cpu_write(task_switch.prev, prev);
	__this_cpu_write(task_switch.next, next);
}

static void forget_switch(void *unused)
{
	rust_perf_note_switch(NULL, NULL);
}

/*
 * To be called once the switches are noted: what was noted before is stale.
 * With the interrupt, no switch is under way.
 */
void rust_perf_forget_switches(void)
{
	on_each_cpu(forget_switch, NULL, 1);
}

struct pt_regs *rust_perf_running_user_regs(void)
{
	return rust_perf_user_regs(current);
}

/*
 * Of the task to which this CPU goes back, with interrupts off. To be called
 * only while switches are noted. As long as
 * the task before is still current, that is the next one: it has not run yet,
 * and is not freed before it has.
 */
struct pt_regs *rust_perf_current_user_regs(void)
{
	struct task_struct *task = current;

	if (__this_cpu_read(task_switch.prev) == task)
		task = __this_cpu_read(task_switch.next);
	return rust_perf_user_regs(task);
}

/* 64, 32, or 0 for a code segment of the program's own. */
unsigned int rust_perf_user_bits(struct pt_regs *regs)
{
	if (user_64bit_mode(regs))
		return 64;
	return regs->cs == __USER32_CS ? 32 : 0;
}

bool rust_perf_die_is_user_step(unsigned long event, void *args)
{
	struct die_args *die = args;

	return event == DIE_DEBUG && user_mode(die->regs) &&
	       *(unsigned long *)die->err & DR_STEP;
}

/* Takes the step out of the trap; what else is in it is for others. */
int rust_perf_die_claim_step(void *args)
{
	struct die_args *die = args;
	unsigned long *dr6 = (unsigned long *)die->err;

	*dr6 &= ~DR_STEP;
	current->thread.virtual_dr6 &= ~DR_STEP;

	if (*dr6 || current->thread.virtual_dr6 & DR_TRAP_BITS)
		return NOTIFY_DONE;
	return NOTIFY_STOP;
}

int rust_perf_register_die_notifier(struct notifier_block *block)
{
	return register_die_notifier(block);
}

void rust_perf_unregister_die_notifier(struct notifier_block *block)
{
	unregister_die_notifier(block);
}

struct wanted {
	const char *name;
	struct tracepoint *found;
};

static void match(struct tracepoint *tp, void *data)
{
	struct wanted *wanted = data;

	if (!strcmp(tp->name, wanted->name))
		wanted->found = tp;
}

struct tracepoint *rust_perf_find_tracepoint(const char *name)
{
	struct wanted wanted = { .name = name };

	for_each_kernel_tracepoint(match, &wanted);
	return wanted.found;
}

void rust_perf_tracepoint_synchronize(void)
{
	tracepoint_synchronize_unregister();
}

/* Nothing happens, or the task stops and goes on. */
bool rust_perf_signal_passes(int sig, struct k_sigaction *ka)
{
	return ka->sa.sa_handler == SIG_IGN ||
	       (ka->sa.sa_handler == SIG_DFL &&
		(sig_kernel_ignore(sig) || sig_kernel_stop(sig)));
}

int rust_perf_task_work_on_return(struct callback_head *work)
{
	return task_work_add(current, work, TWA_RESUME);
}

u64 rust_perf_tsc(void)
{
	return rdtsc_ordered();
}
