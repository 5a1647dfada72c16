// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Restartable sequences that are aborted: they loop until the kernel switches to the other thread, which is on the same CPU. Says how
 * often, and so how often the instruction at `aborted` was executed.
 */
#define _GNU_SOURCE
#include <linux/rseq.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/rseq.h>

#define ABORTS 20

static volatile int done;

static void *other(void *unused)
{
	while (!done)
		;
	return unused;
}

static void __attribute__((noinline)) sequence(void)
{
	struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);

	__asm__ volatile(".pushsection .data\n"
			 ".balign 32\n"
			 "1: .long 0, 0\n"
			 ".quad 2f, 3f - 2f, aborted\n"
			 ".popsection\n"
			 "lea 1b(%%rip), %%rax\n"
			 "mov %%rax, %0\n"
			 "2: test %%rax, %%rax\n"
			 "jnz 2b\n"
			 "3: ud2\n"
			 /* What must be in front: RSEQ_SIG. */
			 ".byte 0x0f, 0xb9, 0x3d\n"
			 ".long 0x53053053\n"
			 ".globl aborted\n"
			 "aborted: nop\n"
			 : "+m"(area->rseq_cs)
			 :
			 : "rax", "cc", "memory");
}

int main(void)
{
	pthread_t thread;
	cpu_set_t set;
	int i;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	if (sched_setaffinity(0, sizeof(set), &set) || pthread_create(&thread, NULL, other, NULL))
		return 1;
	for (i = 0; i < ABORTS; i++)
		sequence();
	done = 1;
	pthread_join(thread, NULL);
	printf("%d\n", i);
	return 0;
}
