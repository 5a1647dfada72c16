// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Processes that share, follow, debug and replace each other.
 */
#include "stress.h"
#include <cpuid.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/user.h>

static volatile long word;

/* The child has its parent's memory and stack, until it ends. */
static long borrowed_memory(void)
{
	volatile long sum = 0;

	for (volatile int i = 0; i < 30; i++) {
		int status;
		pid_t child = vfork();

		if (!child) {
			word = word + i;
			sum = mix(sum, word);
			_exit(i);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == i);
		sum = mix(sum, word);
	}
	return sum;
}

static int sharer(void *with)
{
	for (int i = 0; i < 500; i++)
		__atomic_add_fetch((long *)with, 1, __ATOMIC_SEQ_CST);
	return 7;
}

/* A process, no thread, with the same memory. */
static long shared_memory(void)
{
	unsigned char *stack = map(16, PROT_READ | PROT_WRITE);
	int status;
	pid_t child = clone(sharer, stack + 16 * PAGE, CLONE_VM | SIGCHLD, (void *)&word);

	CHECK(child > 0);
	sharer((void *)&word);
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
	return word;
}

static void *adds_one(void *with)
{
	__atomic_add_fetch(&word, 1, __ATOMIC_SEQ_CST);
	return with;
}

static long many_threads(void)
{
	for (int i = 0; i < 60; i++) {
		pthread_t threads[3];

		for (int j = 0; j < 3; j++)
			threads[j] = thread(adds_one, NULL);
		for (int j = 0; j < 3; j++)
			pthread_join(threads[j], NULL);
	}
	return word;
}

static void *executes(void *with)
{
	static char *const arguments[] = { "/proc/self/exe", "no such case", NULL };
	static char *const environment[] = { NULL };

	(void)with;
	execve("/proc/self/exe", arguments, environment);
	_exit(3);
}

static void *spins(void *with)
{
	while (word >= 0)
		word++;
	return with;
}

/* A thread replaces the program while another one runs. */
static long replaced_by_a_thread(void)
{
	int status;

	for (int i = 0; i < 3; i++) {
		pid_t child = fork();

		if (!child) {
			thread(spins, NULL);
			thread(executes, NULL);
			for (;;)
				pause();
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		word = mix(word, status);
	}
	return word;
}

static __attribute__((noinline)) void debuggee(void)
{
	ptrace(PTRACE_TRACEME, 0, 0, 0);
	raise(SIGSTOP);
	asm volatile("mov $0x1234567, %%ebx\n\t"
		     "mov $5, %%ecx\n"
		     "1: lea 3(%%rcx), %%rax\n\t"
		     "push %%rax\n\t"
		     "pushf\n\t"
		     "popf\n\t"
		     "pop %%rdx\n\t"
		     "dec %%ecx\n\t"
		     "jnz 1b\n\t"
		     "ud2"
		     : : : "rax", "rbx", "rcx", "rdx", "cc", "memory");
	_exit(4);
}

/* A debugger steps, and sees each register. */
static long stepped(void)
{
	struct user_regs_struct regs;
	int status;
	long sum = 0, steps = 0;
	pid_t child = fork();

	if (!child)
		debuggee();
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	/* Until the signal. */
	while (!ptrace(PTRACE_SINGLESTEP, child, 0, 0) && waitpid(child, &status, 0) == child && WIFSTOPPED(status) &&
	       WSTOPSIG(status) == SIGTRAP && steps < 100000) {
		CHECK(!ptrace(PTRACE_GETREGS, child, 0, &regs));
		if (regs.rbx != 0x1234567)
			continue;
		sum = mix(sum, regs.rcx + regs.rax + regs.rdx % 4096);
		sum = mix(sum, regs.eflags);
		steps++;
	}
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGILL);
	ptrace(PTRACE_KILL, child, 0, 0);
	waitpid(child, &status, 0);
	return mix(sum, steps);
}

/*
 * QEMU's emulated processor traps once more, in the kernel's handler, when a task with debug registers is stepped, by whomever:
 * the kernel does not survive it.
 */
static bool cannot_be_watched(void)
{
	unsigned int leaf, name[3];

	__cpuid(0x40000000, leaf, name[0], name[1], name[2]);
	return !memcmp(name, "TCGTCGTCGTCG", sizeof(name));
}

/* A debugger waits for a word to be written. */
static long watched_by_debugger(void)
{
	int status;
	long traps = 0;
	pid_t child;

	if (cannot_be_watched())
		return ABSENT;
	child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		for (int i = 0; i < 40; i++) {
			word = i;
			asm volatile("addq $1, %0" : "+m"(word));
		}
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	if (ptrace(PTRACE_POKEUSER, child, offsetof(struct user, u_debugreg[0]), &word) ||
	    ptrace(PTRACE_POKEUSER, child, offsetof(struct user, u_debugreg[7]), 0x90001ul)) {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		return ABSENT;
	}
	while (!ptrace(PTRACE_CONT, child, 0, 0) && waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
		long now = ptrace(PTRACE_PEEKDATA, child, &word, 0);

		CHECK(WSTOPSIG(status) == SIGTRAP);
		traps = mix(traps, now);
	}
	return mix(traps, status);
}

/* perf counts how often a word is written, and an instruction executed. */
static __attribute__((noinline)) long counted_here(long n)
{
	return n * 3;
}

static long count(int type, void *at, int length)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_BREAKPOINT,
		.size = sizeof(attr),
		.bp_type = type,
		.bp_addr = (unsigned long)at,
		.bp_len = length,
		.exclude_kernel = 1,
	};
	uint64_t hits;
	int event;

	if (cannot_be_watched())
		return ABSENT;
	event = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (event < 0)
		return ABSENT;
	for (int i = 0; i < 50; i++) {
		word = counted_here(i);
		asm volatile("incq %0" : "+m"(word));
	}
	CHECK(read(event, &hits, sizeof(hits)) == sizeof(hits));
	close(event);
	return hits;
}

static long watched_by_perf(void)
{
	return count(HW_BREAKPOINT_W, (void *)&word, HW_BREAKPOINT_LEN_8);
}

static long breakpoint_of_perf(void)
{
	return count(HW_BREAKPOINT_X, (void *)counted_here, sizeof(long));
}

/* Stopped and continued at any place. */
static long stopped_and_continued(void)
{
	int status;
	pid_t child = fork();

	if (!child) {
		long sum = 1;

		for (long i = 0; i < 60000; i++)
			sum = mix(sum, i);
		_exit(sum % 251);
	}
	for (int i = 0; i < 40; i++) {
		kill(child, SIGSTOP);
		usleep(100);
		kill(child, SIGCONT);
		usleep(100);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

/* From CPU to CPU. */
static long wandering(void)
{
	cpu_set_t all;
	long sum = 1;

	CHECK(!sched_getaffinity(0, sizeof(all), &all));
	for (int i = 0; i < 60; i++) {
		cpu_set_t one;
		int cpu = i % CPU_COUNT(&all);
		unsigned int here;

		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (!CPU_ISSET(cpu, &all) || sched_setaffinity(0, sizeof(one), &one))
			continue;
		/* By rseq, and by the processor. */
		CHECK(sched_getcpu() == cpu && !syscall(SYS_getcpu, &here, NULL, NULL) && here == (unsigned int)cpu);
		for (long j = 0; j < 300; j++)
			sum = mix(sum, j);
	}
	return sum;
}

/* What it uses is its own time, and not nothing. */
static long time_used(void)
{
	struct rusage usage;
	long spent;

	do {
		word++;
		CHECK(!getrusage(RUSAGE_SELF, &usage));
		spent = usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec;
	} while (spent < 8000 && word < 10000000);
	return spent >= 8000;
}

const struct stress task_cases[] = {
	{ "memory that is borrowed", borrowed_memory },
	{ "memory that is shared", shared_memory },
	{ "many threads", many_threads },
	{ "replaced by a thread", replaced_by_a_thread },
	{ "stepped by a debugger", stepped },
	{ "watched by a debugger", watched_by_debugger },
	{ "watched by perf", watched_by_perf },
	{ "breakpoint of perf's", breakpoint_of_perf },
	{ "stopped and continued", stopped_and_continued },
	{ "from CPU to CPU", wandering },
	{ "time that is used", time_used },
	{ NULL, NULL },
};
