// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Reads its own flags in all ways: a program that did not set TF does not see it. */
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>

#define TF 0x100

int main(void)
{
	unsigned long flags, seen = 0;

	for (int i = 0; i < 200; i++) {
		asm volatile("pushfq\n\tpop %0" : "=r"(flags));
		seen += !!(flags & TF);
		asm volatile("pushfw\n\tmovzwq (%%rsp), %0\n\tadd $2, %%rsp" : "=r"(flags));
		seen += !!(flags & TF);
		asm volatile("syscall\n\tmov %%r11, %0"
			     : "=r"(flags) : "a"(SYS_getppid) : "rcx", "r11", "memory");
		seen += !!(flags & TF);
		/* Puts back what it read. */
		asm volatile("pushfq\n\tpopfq\n\tpushfq\n\tpop %0" : "=r"(flags) : : "cc");
		seen += !!(flags & TF);
		asm volatile("mov %%ss, %%eax\n\tmov %%eax, %%ss\n\tpushfq\n\tpop %0" : "=r"(flags) : : "rax");
		seen += !!(flags & TF);
	}
	/* A tracer by ptrace cannot hide it; but it goes the same way then. */
	puts("seen\0\0\0\0fine" + 8 * !seen);
	return seen != 0;
}
