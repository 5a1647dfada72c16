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

/* NULL for a task that does not return to user mode. */
struct pt_regs *rust_stepping_user_regs(struct task_struct *task)
{
	if (task->flags & (PF_KTHREAD | PF_USER_WORKER | PF_EXITING))
		return NULL;
	return task_pt_regs(task);
}

/* Only to be compared: the task may be gone from user mode for good. */
struct pt_regs *rust_stepping_frame(struct task_struct *task)
{
	return task_pt_regs(task);
}

/* The last task switch of a CPU, which may be under way. */
struct task_switch {
	struct task_struct *prev;
	struct task_struct *next;
};

static DEFINE_PER_CPU(struct task_switch, task_switch);

/* In trace_sched_switch(), with the run queue locked. */
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
 * What was noted when switches were last followed is stale. With the
 * interrupt, no switch is under way.
 */
static void forget_switches(void)
{
	unsigned int cpu;

	cpus_read_lock();
	on_each_cpu(forget_switch, NULL, 1);
	/* A CPU that is offline comes back with the note that it left with. */
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
 * Of the task to which this CPU goes back, with interrupts off, while switches
 * are noted. As long as the previous task is still current, that is the next
 * one: it has not run yet, and is not freed before it has.
 */
struct pt_regs *rust_stepping_current_user_regs(void)
{
	struct task_struct *task = current;

	if (__this_cpu_read(task_switch.prev) == task)
		task = __this_cpu_read(task_switch.next);
	return rust_stepping_user_regs(task);
}

/* 64, 32, or 0 for a code segment of the program's own. */
unsigned int rust_stepping_user_bits(struct pt_regs *regs)
{
	if (user_64bit_mode(regs))
		return 64;
	return regs->cs == __USER32_CS ? 32 : 0;
}

/* Whether the trap flag of the task with this frame is the debugger's. */
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
 * Reads the current task's memory without a page fault; 0, or how much could
 * not be read. Protection keys restrict data accesses of the task's, not
 * execution: text in memory that can only be executed is read without them.
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

	/* The register is the task's: no switch may save another value. */
	local_irq_save(flags);
	pkru = read_pkru();
	write_pkru(0);
	err = copy_from_user_nofault(to, src, len);
	write_pkru(pkru);
	local_irq_restore(flags);
	return err ? len : 0;
}

/*
 * Reads what the current task's memory had when it was mapped from its file;
 * how much was read. May sleep.
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

/* Whether a breakpoint in the current task can be a uprobe's. */
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

/* Whether the current task has executed one. */
bool rust_stepping_has_probe_state(void)
{
#ifdef CONFIG_UPROBES
	return current->utask;
#else
	return false;
#endif
}

/*
 * The address of the instruction in whose place the current task executes a
 * copy elsewhere, or 0.
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

/* As far as the kernel counts: without CONFIG_PREEMPT_COUNT locks are unseen. */
bool rust_stepping_may_sleep(void)
{
	return !irqs_disabled() && !in_atomic() && !softirq_count() && !rcu_preempt_depth();
}

void rust_stepping_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

/* Nothing happens, or the task stops and goes on. */
bool rust_stepping_signal_passes(int sig, struct k_sigaction *ka)
{
	return ka->sa.sa_handler == SIG_IGN ||
	       (ka->sa.sa_handler == SIG_DFL &&
		(sig_kernel_ignore(sig) || sig_kernel_stop(sig)));
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

		/* What else is in the trap is for others. */
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

/* Before that of uprobes, which stops the chain. */
static struct notifier_block die_block = {
	.notifier_call = die_notify,
	.priority = INT_MAX,
};

/* --- tracepoints --------------------------------------------------------- */

struct hook {
	const char *name;
	void *probe;
	/* Some kernels are built without it. */
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

/* Tasks are followed by these. */
static struct hook hooks[] = {
	HOOK(sys_enter, false),
	HOOK(sys_exit, false),
	HOOK(sched_switch, false),
	HOOK(rseq_ip_fixup, true),
	/*
	 * Not compared: arch/x86/entry/vsyscall/vsyscall_trace.h, which has its
	 * prototype, is not installed.
	 */
	HOOK(emulate_vsyscall, true),
};

/* A signal may be on its way when the first task is followed. */
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

/* The kernel's own tracepoints stay, but most are not exported by symbol. */
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

/* Afterwards no probe runs. */
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

/* Follows signals and breakpoints. */
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

/* Follows system calls and switches of tasks, too. */
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

/* --- the last one is gone ------------------------------------------------ */

static void idle(struct work_struct *work);
static DECLARE_DELAYED_WORK(idle_work, idle);

static void idle(struct work_struct *work)
{
	/* A task is yet to come by the hooks. */
	if (rust_stepping_idle())
		schedule_delayed_work(&idle_work, 1);
}

static void queue_idle(struct irq_work *work)
{
	schedule_delayed_work(&idle_work, 0);
}

static struct irq_work idle_irq_work = IRQ_WORK_INIT(queue_idle);

/* Has rust_stepping_idle() called in a task. In any context. */
void rust_stepping_idle_later(void)
{
	irq_work_queue(&idle_irq_work);
}

/* Afterwards it is not called any more. */
void rust_stepping_idle_cancel(void)
{
	irq_work_sync(&idle_irq_work);
	cancel_delayed_work_sync(&idle_work);
}
