// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * System calls that the kernel refuses and hands to a handler of the program's. Says how often, and so how often the instruction at
 * `refused` was executed. A debugger that steps does not see it: the signal comes first.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static volatile char selector;
static volatile int handled, seen;

static void handler(int number, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	(void)number;
	/* For the return from here, too. */
	selector = 0;
	handled += info->si_syscall == SYS_getppid;
	seen += !!(regs[REG_EFL] & 0x100) + !!(regs[REG_R11] & 0x100);
	regs[REG_RAX] = 42;
}

static long __attribute__((noinline)) call(void)
{
	long result = SYS_getppid;

	__asm__ volatile(".globl refused\n"
			 "refused: syscall"
			 : "+a"(result)
			 :
			 : "rcx", "r11", "memory");
	return result;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	long sum = 0;

	if (sigaction(SIGSYS, &action, NULL))
		return 1;
	if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector))
		return 77; /* The kernel has no such thing. */
	for (int i = 0; i < 20; i++) {
		selector = 1;
		sum += call();
	}
	printf("%d\n", handled);
	return sum != 20 * 42 || seen;
}
