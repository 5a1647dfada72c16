// SPDX-License-Identifier: GPL-2.0
/*
 * User code on x86: its registers, its traps, and the tracepoints where it
 * enters and leaves the kernel.
 */

#include "helpers.h"

#include <linux/cpu.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/irq_work.h>
#include <linux/kdebug.h>
#include <linux/mm.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/task_stack.h>
#include <linux/signal.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/task_work.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <linux/uprobes.h>
#include <linux/workqueue.h>
#include <asm/debugreg.h>
#include <asm/pkru.h>
#include <asm/trapnr.h>
#include <trace/events/rseq.h>
#include <trace/events/sched.h>
#include <trace/events/signal.h>
#include <trace/events/syscalls.h>

/* --- registers ----------------------------------------------------------- */

/* The user registers of a task; NULL if it does not return to user mode. */
struct pt_regs *rust_stepping_user_regs(struct task_struct *task)
{
	if (task->flags & (PF_KTHREAD | PF_USER_WORKER | PF_EXITING))
		return NULL;
	return task_pt_regs(task);
}

/* Only for comparison: the task may never return to user mode. */
struct pt_regs *rust_stepping_frame(struct task_struct *task)
{
	return task_pt_regs(task);
}

/* The last task switch of a CPU. It may be in progress. */
struct task_switch {
	struct task_struct *prev;
	struct task_struct *next;
};

static DEFINE_PER_CPU(struct task_switch, task_switch);

/* Called in trace_sched_switch(), with the run queue locked. */
void rust_stepping_note_switch(struct task_struct *prev,
			       struct task_struct *next)
{
	__this_cpu_write(task_switch.prev, prev);
	__this_cpu_write(task_switch.next, next);
}

static void forget_switch(void *unused)
{
	rust_stepping_note_switch(NULL, NULL);
}

/*
 * Clears the notes, which are stale since switches were followed last. A CPU
 * that takes the interrupt has no switch in progress.
 */
static void forget_switches(void)
{
	unsigned int cpu;

	cpus_read_lock();
	on_each_cpu(forget_switch, NULL, 1);
	/* An offline CPU would come back online with its old note. */
	for_each_possible_cpu(cpu)
		if (!cpu_online(cpu))
			*per_cpu_ptr(&task_switch, cpu) =
				(struct task_switch){ NULL, NULL };
	cpus_read_unlock();
}

struct pt_regs *rust_stepping_running_user_regs(void)
{
	return rust_stepping_user_regs(current);
}

/*
 * The user registers of the task to which this CPU returns. Interrupts are
 * off, and switches are noted. While the previous task is still current, this
 * is the next task: it has not run yet, and it is not freed before it runs.
 */
struct pt_regs *rust_stepping_current_user_regs(void)
{
	struct task_struct *task = current;

	if (__this_cpu_read(task_switch.prev) == task)
		task = __this_cpu_read(task_switch.next);
	return rust_stepping_user_regs(task);
}

/* 64, 32, or 0 in a code segment that the program has defined. */
unsigned int rust_stepping_user_bits(struct pt_regs *regs)
{
	if (user_64bit_mode(regs))
		return 64;
	return regs->cs == __USER32_CS ? 32 : 0;
}

/* Whether a debugger has set the trap flag of the task with this frame. */
bool rust_stepping_is_forced(struct pt_regs *regs)
{
	struct task_struct *task = current;

	if (task_pt_regs(task) != regs)
		task = __this_cpu_read(task_switch.next);
	return task && task_pt_regs(task) == regs &&
	       test_tsk_thread_flag(task, TIF_FORCED_TF) &&
	       regs->flags & X86_EFLAGS_TF;
}

/* --- memory -------------------------------------------------------------- */

/*
 * Reads the current task's memory without a page fault. Returns 0, or @len on
 * failure. Protection keys restrict data accesses of the task, but not
 * execution. So the second attempt, for text that can only be executed,
 * disables them.
 */
unsigned long rust_stepping_read(void *to, unsigned long from,
				 unsigned long len)
{
	const void __user *src = (const void __user *)from;
	unsigned long flags;
	u32 pkru;
	long err;

	if (!copy_from_user_nofault(to, src, len))
		return 0;
	if (!cpu_feature_enabled(X86_FEATURE_OSPKE))
		return len;

	/* The register belongs to the task: no switch may save another value. */
	local_irq_save(flags);
	pkru = read_pkru();
	write_pkru(0);
	err = copy_from_user_nofault(to, src, len);
	write_pkru(pkru);
	local_irq_restore(flags);
	return err ? len : 0;
}

/*
 * Reads the file that is mapped at @from, so later changes of the memory are
 * not seen. Returns the number of bytes that were read. May sleep.
 */
unsigned long rust_stepping_read_file(void *to, unsigned long from,
				      unsigned long len)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	struct file *file = NULL;
	loff_t pos = 0;
	ssize_t read;

	if (!mm)
		return 0;
	mmap_read_lock(mm);
	vma = vma_lookup(mm, from);
	if (vma && vma->vm_file) {
		file = get_file(vma->vm_file);
		pos = ((loff_t)vma->vm_pgoff << PAGE_SHIFT) +
		      (from - vma->vm_start);
	}
	mmap_read_unlock(mm);
	if (!file)
		return 0;

	read = kernel_read(file, to, len, &pos);
	fput(file);
	return read < 0 ? 0 : read;
}

/* --- probes of user code ------------------------------------------------- */

/* Whether a breakpoint in the current task can belong to a uprobe. */
bool rust_stepping_has_probes(void)
{
#ifdef CONFIG_UPROBES
	if (current->mm && mm_flags_test(MMF_HAS_UPROBES, current->mm))
		return true;
	return current->utask && current->utask->return_instances;
#else
	return false;
#endif
}

/* Whether the current task has hit a uprobe before. */
bool rust_stepping_has_probe_state(void)
{
#ifdef CONFIG_UPROBES
	return current->utask;
#else
	return false;
#endif
}

/*
 * The address of the probed instruction of which the current task executes a
 * copy elsewhere; 0 if it executes none.
 */
unsigned long rust_stepping_probe_address(void)
{
#ifdef CONFIG_UPROBES
	struct uprobe_task *utask = current->utask;

	if (utask && utask->active_uprobe)
		return utask->vaddr;
#endif
	return 0;
}

/* --- context ------------------------------------------------------------- */

bool rust_stepping_in_nmi(void)
{
	return in_nmi();
}

/*
 * With PREEMPT_RT, in_atomic() detects neither disabled softirqs nor RCU readers.
 * Without CONFIG_PREEMPT_COUNT, held spinlocks are not detected.
 */
bool rust_stepping_may_sleep(void)
{
	return !irqs_disabled() && !in_atomic() && !softirq_count() && !rcu_preempt_depth();
}

void rust_stepping_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

/* Whether the signal has no effect, or only stops the task until it is continued. */
bool rust_stepping_signal_passes(int sig, struct k_sigaction *ka)
{
	return ka->sa.sa_handler == SIG_IGN ||
	       (ka->sa.sa_handler == SIG_DFL &&
		(sig_kernel_ignore(sig) || sig_kernel_stop(sig)));
}

/*
 * Context: any but NMI. With PREEMPT_RT, kmalloc() takes sleeping locks, also with
 * GFP_ATOMIC. kmalloc_nolock() takes none, but fails if a lock is held.
 */
void *rust_stepping_alloc(size_t size)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return kmalloc_nolock(size, 0, NUMA_NO_NODE);
	return kmalloc(size, GFP_ATOMIC);
}

void rust_stepping_free(void *memory)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		kfree_nolock(memory);
	else
		kfree(memory);
}

int rust_stepping_task_work(struct callback_head *work)
{
	return task_work_add(current, work, TWA_RESUME);
}

/* --- traps --------------------------------------------------------------- */

static int die_notify(struct notifier_block *block, unsigned long event,
		      void *data)
{
	struct die_args *args = data;
	unsigned long *dr6;

	if (!args->regs || !user_mode(args->regs))
		return NOTIFY_DONE;

	switch (event) {
	case DIE_INT3:
		if (rust_stepping_has_probes())
			rust_stepping_breakpoint(args->regs->ip - 1);
		return NOTIFY_DONE;
	case DIE_DEBUG:
		/* args->err holds a pointer: see notify_debug(). */
		dr6 = (unsigned long *)args->err;
		if (!(*dr6 & DR_STEP) || !rust_stepping_single_step())
			return NOTIFY_DONE;

		/* Other causes of the trap are left to other notifiers. */
		*dr6 &= ~DR_STEP;
		current->thread.virtual_dr6 &= ~DR_STEP;
		if (*dr6 || current->thread.virtual_dr6 & DR_TRAP_BITS)
			return NOTIFY_DONE;
		return NOTIFY_STOP;
	case DIE_TRAP:
		if (args->trapnr != X86_TRAP_UD || !rust_stepping_invalid_opcode())
			return NOTIFY_DONE;
		return NOTIFY_STOP;
	default:
		return NOTIFY_DONE;
	}
}

/* Called before the notifier of uprobes, which stops the chain. */
static struct notifier_block die_block = {
	.notifier_call = die_notify,
	.priority = INT_MAX,
};

/* --- tracepoints --------------------------------------------------------- */

struct hook {
	const char *name;
	void *probe;
	/* Whether some kernels are built without it. */
	bool optional;
	struct tracepoint *found;
	bool hooked;
};

#define HOOK(tracepoint, maybe) {				\
		.name = #tracepoint,				\
		.probe = rust_stepping_##tracepoint,		\
		.optional = maybe,				\
	}

#define rust_stepping_rseq_ip_fixup rust_stepping_rseq_abort
#define rust_stepping_emulate_vsyscall rust_stepping_vsyscall

/* Hooked while tasks are followed. */
static struct hook hooks[] = {
	HOOK(sys_enter, false),
	HOOK(sys_exit, false),
	HOOK(sched_switch, false),
	HOOK(rseq_ip_fixup, true),
	/*
	 * check_types() does not cover this one: its prototype is in
	 * arch/x86/entry/vsyscall/vsyscall_trace.h, which is not installed.
	 */
	HOOK(emulate_vsyscall, true),
};

/* Always hooked: a signal may be in delivery when the first task is followed. */
static struct hook always[] = {
	HOOK(signal_deliver, false),
};

/* The compiler compares the probes with the prototypes of the tracepoints. */
static void __maybe_unused check_types(void)
{
	check_trace_callback_type_sys_enter(rust_stepping_sys_enter);
	check_trace_callback_type_sys_exit(rust_stepping_sys_exit);
	check_trace_callback_type_sched_switch(rust_stepping_sched_switch);
	check_trace_callback_type_signal_deliver(rust_stepping_signal_deliver);
	check_trace_callback_type_rseq_ip_fixup(rust_stepping_rseq_abort);
}

struct search {
	struct hook *hooks;
	size_t nr;
};

static void match(struct tracepoint *tp, void *data)
{
	struct search *search = data;
	size_t i;

	for (i = 0; i < search->nr; i++)
		if (!strcmp(tp->name, search->hooks[i].name))
			search->hooks[i].found = tp;
}

/*
 * The kernel's own tracepoints are never freed. Most are not exported, so they
 * are found by name.
 */
static int find(struct hook *hooks, size_t nr)
{
	struct search search = { hooks, nr };
	size_t i;

	for_each_kernel_tracepoint(match, &search);
	for (i = 0; i < nr; i++)
		if (!hooks[i].found && !hooks[i].optional) {
			pr_err("rust_stepping: no tracepoint %s\n",
			       hooks[i].name);
			return -ENOENT;
		}
	return 0;
}

/* When this returns, no probe runs any more. */
static void unhook(struct hook *hooks, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i++)
		if (hooks[i].hooked) {
			tracepoint_probe_unregister(hooks[i].found,
						    hooks[i].probe, NULL);
			hooks[i].hooked = false;
		}
	tracepoint_synchronize_unregister();
}

static int hook(struct hook *hooks, size_t nr)
{
	size_t i;
	int err;

	for (i = 0; i < nr; i++) {
		if (!hooks[i].found)
			continue;
		err = tracepoint_probe_register(hooks[i].found, hooks[i].probe,
						NULL);
		if (err) {
			unhook(hooks, nr);
			return err;
		}
		hooks[i].hooked = true;
	}
	return 0;
}

/* Hooks signals and breakpoints. */
int rust_stepping_hook_always(void)
{
	int err = find(hooks, ARRAY_SIZE(hooks)) ?:
		  find(always, ARRAY_SIZE(always)) ?:
		  hook(always, ARRAY_SIZE(always));

	if (err)
		return err;
	err = register_die_notifier(&die_block);
	if (err)
		unhook(always, ARRAY_SIZE(always));
	return err;
}

void rust_stepping_unhook_always(void)
{
	unregister_die_notifier(&die_block);
	unhook(always, ARRAY_SIZE(always));
}

/* Hooks system calls and task switches. */
int rust_stepping_hook(void)
{
	int err = hook(hooks, ARRAY_SIZE(hooks));

	if (!err)
		forget_switches();
	return err;
}

void rust_stepping_unhook(void)
{
	unhook(hooks, ARRAY_SIZE(hooks));
}

/* --- after the last guard ------------------------------------------------ */

static void idle(struct work_struct *work);
static DECLARE_DELAYED_WORK(idle_work, idle);

static void idle(struct work_struct *work)
{
	/* A pending clear of a trap flag still needs the hooks. */
	if (rust_stepping_idle())
		schedule_delayed_work(&idle_work, 1);
}

static void queue_idle(struct irq_work *work)
{
	schedule_delayed_work(&idle_work, 0);
}

static struct irq_work idle_irq_work = IRQ_WORK_INIT(queue_idle);

/* Schedules a call of rust_stepping_idle() in a task. May be called in any context. */
void rust_stepping_idle_later(void)
{
	irq_work_queue(&idle_irq_work);
}

/* When this returns, rust_stepping_idle() is not called any more. */
void rust_stepping_idle_cancel(void)
{
	irq_work_sync(&idle_irq_work);
	cancel_delayed_work_sync(&idle_work);
}
