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
 * the CPU execute the code at this address again. If there is a breakpoint, it
 * may be a new one, which the kernel knows by now. If the CPU hits it more than
 * TRIES times in a row, the notifier lets the kernel die.
 */
#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/uaccess.h>
#include <asm/text-patching.h>

#define TRIES 10

/* The last breakpoint that was not stale when a CPU hit it, and how often. */
struct last {
	unsigned long addr;
	unsigned int tries;
};

static DEFINE_PER_CPU(struct last, last);

/* The guest's init reads it when the guest ends. Lost increments do no harm. */
static unsigned int met;
module_param(met, uint, 0444);
MODULE_PARM_DESC(met, "breakpoints met that were no longer there");

static int tcg_int3_notify(struct notifier_block *nb, unsigned long event,
			   void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	unsigned long addr = regs->ip - INT3_INSN_SIZE;
	struct last *this = this_cpu_ptr(&last);
	u8 byte;

	if (event != DIE_INT3 || user_mode(regs) ||
	    get_kernel_nofault(byte, (u8 *)addr))
		return NOTIFY_DONE;

	if (byte != INT3_INSN_OPCODE) {
		this->addr = 0;
		WRITE_ONCE(met, met + 1);
	} else if (this->addr != addr) {
		this->addr = addr;
		this->tries = 1;
	} else if (this->tries++ == TRIES) {
		return NOTIFY_DONE;
	}
	regs->ip = addr;
	return NOTIFY_STOP;
}

static struct notifier_block tcg_int3_block = {
	.notifier_call = tcg_int3_notify,
};

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
