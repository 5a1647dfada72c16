// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A program that a debugger steps. Says how often the debugger saw it in front of the system call at `stepped`; that it stops for
 * anything else is an error.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

extern char stepped[];

static void fail(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

static void __attribute__((noinline)) step(void)
{
	long number = SYS_getppid;

	__asm__ volatile(".globl stepped\n"
			 "stepped: syscall"
			 : "+a"(number) : : "rcx", "r11", "memory");
}

int main(void)
{
	int status, seen = 0;
	pid_t child = fork();

	if (!child) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			fail("cannot be debugged");
		raise(SIGSTOP);
		for (int i = 0; i < 20; i++)
			step();
		/* From here on no debugger steps it. */
		raise(SIGSTOP);
		_exit(0);
	}

	if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
		fail("it does not stop");
	for (;;) {
		struct user_regs_struct regs;

		if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, 0) != child)
			fail("it cannot be stepped");
		if (!WIFSTOPPED(status))
			fail("it has ended");
		if (WSTOPSIG(status) == SIGSTOP)
			break;
		if (WSTOPSIG(status) != SIGTRAP)
			fail("it stops for something else");
		if (ptrace(PTRACE_GETREGS, child, 0, &regs))
			fail("it has no registers");
		seen += regs.rip == (unsigned long)stepped;
	}
	if (ptrace(PTRACE_CONT, child, 0, 0) || waitpid(child, &status, 0) != child ||
	    !WIFEXITED(status) || WEXITSTATUS(status))
		fail("it does not end");
	printf("%d\n", seen);
	return 0;
}
