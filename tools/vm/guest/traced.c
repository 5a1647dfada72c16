// SPDX-License-Identifier: GPL-2.0
/*
 * A module to trace: its code is executed when it is loaded, when a parameter
 * is written, and when it is unloaded.
 *
 * Its functions are not __init or __exit: the kernel frees such code, and then
 * perf cannot read it.
 */
#include <linux/module.h>

static noinline u64 traced_fold(u64 word, int rounds)
{
	while (rounds-- > 0)
		word = word & 1 ? word >> 1 ^ 0xd800000000000000 : word >> 1;
	return word;
}

static u64 sum = 1;

static int traced_set(const char *value, const struct kernel_param *param)
{
	int rounds;
	int ret = kstrtoint(value, 10, &rounds);

	if (ret)
		return ret;
	sum = traced_fold(sum, rounds);
	return 0;
}

static const struct kernel_param_ops traced_ops = {
	.set = traced_set,
};
module_param_cb(rounds, &traced_ops, NULL, 0200);

static int traced_init(void)
{
	sum = traced_fold(sum, 20);
	return 0;
}
module_init(traced_init);

static noinline void traced_leave(void)
{
	sum = traced_fold(sum, 30) + 1;
}

static void traced_exit(void)
{
	traced_leave();
	sum++; /* So that the call above does not become a jump (tail call). */
}
module_exit(traced_exit);

MODULE_DESCRIPTION("Code to trace");
MODULE_LICENSE("GPL");
