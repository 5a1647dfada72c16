// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Sets TF itself and counts its own steps, as a debugger in the same process would. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

static volatile int steps;

static void step(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	(void)context;
	steps++;
}

int main(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_sigaction = step;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGTRAP, &action, NULL);
	for (int i = 0; i < 10; i++)
		asm volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\t"
			     "nop\n\tnop\n\tnop\n\tnop\n\t"
			     "pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\t" : : : "cc", "memory");
	printf("%d\n", steps);
	return steps != 70;
}
