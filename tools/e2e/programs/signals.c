// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Handlers: plain, with SA_SIGINFO, on a stack of their own, nested, for a fault, and one that leaves by siglongjmp. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t seen, depth, flags_seen;
static sigjmp_buf back;
static char *page;

static void plain(int number)
{
	(void)number;
	seen++;
}

static void nested(int number, siginfo_t *info, void *context)
{
	ucontext_t *interrupted = context;

	/* Nobody traces us: the frame must not say so. */
	if (interrupted->uc_mcontext.gregs[REG_EFL] & 0x100)
		flags_seen++;
	seen += info->si_signo == number;
	if (depth++ < 3)
		raise(SIGUSR2);
}

static void fault(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	if (info->si_addr == page && seen % 2)
		siglongjmp(back, 1);
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
	seen++;
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_sigaction = handler;
	action.sa_flags = flags | SA_SIGINFO;
	sigaction(number, &action, NULL);
}

int main(void)
{
	static char own[64 * 1024];
	stack_t stack = { .ss_sp = own, .ss_size = sizeof(own) };

	signal(SIGUSR1, plain);
	sigaltstack(&stack, NULL);
	handle(SIGUSR2, nested, SA_ONSTACK | SA_NODEFER);
	handle(SIGSEGV, fault, SA_NODEFER);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (volatile int i = 0; i < 10; i++)
		raise(SIGUSR1);
	raise(SIGUSR2);
	/* Once on by mprotect, once out by siglongjmp. */
	for (volatile int i = 0; i < 4; i++) {
		mprotect(page, 4096, PROT_NONE);
		if (!sigsetjmp(back, 1))
			page[0] = 1;
		else
			seen++;
	}
	printf("%d %d %d\n", (int)seen, (int)depth, (int)flags_seen);
	return flags_seen != 0;
}
