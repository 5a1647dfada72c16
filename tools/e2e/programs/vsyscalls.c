// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Calls of the vsyscall page, which the kernel emulates. Says how often, and so how often the instruction at `returned` was executed, to
 * which they return. They are so many that some are interrupted by another task.
 */
#include <stdio.h>

static long __attribute__((noinline)) call(void)
{
	long result = 0xffffffffff600400; /* time() */

	__asm__ volatile(".globl returned\n"
			 "call *%0\n"
			 "returned: nop\n"
			 : "+a"(result)
			 : "D"(0)
			 : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory");
	return result;
}

int main(void)
{
	int calls = 0;

	for (int i = 0; i < 10000; i++)
		calls += call() > 0;
	printf("%d\n", calls);
	return 0;
}
