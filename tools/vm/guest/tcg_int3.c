// SPDX-License-Identifier: GPL-2.0
/*
 * Lets a guest under QEMU's TCG continue after it has hit a stale breakpoint,
 * one that the kernel has already removed.
 *
 * The kernel patches its own code in three steps: a breakpoint (int3) over the
 * first byte, then the other bytes, then the first one. It waits after each
 * step until all CPUs have executed a serialising instruction. A CPU that
 * fetches the code afterwards cannot see the breakpoint.
 *
 * With TCG it can. notdirty_write() in QEMU's accel/tcg/cputlb.c discards the
 * translations of the code, and the caller stores the byte afterwards, without
 * a lock. Another virtual CPU can translate the code again in between. That
 * translation contains the breakpoint and stays. When the CPU executes it, the
 * kernel knows of no breakpoint there and dies with "Oops: int3".
 *
 * The die notifier of this module is called before the kernel dies. It makes
 * the CPU execute the code at this address again, with the resume flag set. The
 * stale translation may begin at this address. QEMU does not use it again, since
 * it was made for a clear resume flag. If memory has a breakpoint, it may be a new
 * one, which the kernel knows by now. If the CPU hits a breakpoint here more than
 * TRIES times in a row, the notifier lets the kernel die.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/jump_label.h>
#include <linux/kdebug.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <asm/processor-flags.h>
#include <asm/text-patching.h>

#define TRIES 10

/* How often in a row the CPU has hit a breakpoint that it was to execute again. */
static DEFINE_PER_CPU(unsigned int, tries);

/* The guest's init reads it when the guest ends. Lost increments do no harm. */
static unsigned int met;
module_param(met, uint, 0444);
MODULE_PARM_DESC(met, "breakpoints met that were no longer there");

static int tcg_int3_notify(struct notifier_block *nb, unsigned long event,
			   void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	unsigned long addr = regs->ip - INT3_INSN_SIZE;
	u8 byte;

	if (event != DIE_INT3 || user_mode(regs) ||
	    get_kernel_nofault(byte, (u8 *)addr))
		return NOTIFY_DONE;

	/*
	 * Other instructions clear the resume flag. If it is still set, the CPU has
	 * executed a breakpoint again.
	 */
	if (!(regs->flags & X86_EFLAGS_RF))
		this_cpu_write(tries, 0);
	else if (this_cpu_inc_return(tries) > TRIES)
		return NOTIFY_DONE;

	if (byte != INT3_INSN_OPCODE)
		WRITE_ONCE(met, met + 1);
	regs->ip = addr;
	regs->flags |= X86_EFLAGS_RF;
	return NOTIFY_STOP;
}

static struct notifier_block tcg_int3_block = {
	.notifier_call = tcg_int3_notify,
};

/* The time limit of wait_for_rounds(). Only a defect exceeds it. */
#define LIMIT_MS 60000

static DEFINE_STATIC_KEY_FALSE(key);
/* The number of times that execute() has called changing(), in thousands. */
static unsigned int rounds;

/* The barrier keeps the compiler from dropping the calls. */
static noinline void nothing(void)
{
	barrier();
}

static noinline void changing(void)
{
	nothing();
	/* The call above returns to this branch, so a translation begins at the branch. */
	if (static_branch_unlikely(&key))
		nothing();
	barrier();
}

static int execute(void *unused)
{
	while (!kthread_should_stop()) {
		unsigned int n;

		/*
		 * As in the scheduler: nothing else runs on this CPU, if it
		 * loops in a stale breakpoint.
		 */
		local_irq_disable();
		for (n = 0; n < 1000; n++)
			changing();
		local_irq_enable();
		WRITE_ONCE(rounds, rounds + 1);
		cond_resched();
	}
	return 0;
}

/* Waits until the CPU has executed the changed code. */
static int wait_for_rounds(void)
{
	/* The CPU that loops may be the one that updates jiffies. */
	ktime_t end = ktime_add_ms(ktime_get(), LIMIT_MS);
	unsigned int seen = READ_ONCE(rounds);

	while (READ_ONCE(rounds) - seen < 2) {
		if (ktime_after(ktime_get(), end))
			return -EIO;
		usleep_range(50, 100);
	}
	return 0;
}

/*
 * Changes the branch in changing() so many times, while the last CPU executes it. If
 * that CPU loops in a stale breakpoint, this fails with EIO, or all CPUs come to wait
 * for it.
 */
static int set_changes(const char *text, const struct kernel_param *param)
{
	struct task_struct *task;
	unsigned int changes;
	int err;

	err = kstrtouint(text, 0, &changes);
	if (err)
		return err;
	task = kthread_create(execute, NULL, "tcg_int3");
	if (IS_ERR(task))
		return PTR_ERR(task);
	kthread_bind(task, cpumask_last(cpu_online_mask));
	wake_up_process(task);
	while (changes-- && !err) {
		if (static_key_enabled(&key))
			static_branch_disable(&key);
		else
			static_branch_enable(&key);
		err = signal_pending(current) ? -EINTR : wait_for_rounds();
	}
	/* A CPU that loops goes on when QEMU discards the translation: one more change. */
	static_branch_enable(&key);
	static_branch_disable(&key);
	kthread_stop(task);
	return err;
}

static const struct kernel_param_ops changes_ops = {
	.set = set_changes,
};
module_param_cb(changes, &changes_ops, NULL, 0200);
MODULE_PARM_DESC(changes, "write a number: changes code so often while a CPU executes it");

static int __init tcg_int3_init(void)
{
	return register_die_notifier(&tcg_int3_block);
}
module_init(tcg_int3_init);

static void __exit tcg_int3_exit(void)
{
	unregister_die_notifier(&tcg_int3_block);
}
module_exit(tcg_int3_exit);

MODULE_DESCRIPTION("Goes on after breakpoints that QEMU's TCG did not forget");
MODULE_LICENSE("GPL");
