// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Signals that come anywhere, and what their handlers change.
 */
#include "stress.h"
#include <fenv.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <xmmintrin.h>

static volatile long hits;
static sigjmp_buf back;

static void disturb(int signal, siginfo_t *info, void *context)
{
	double value = hits;

	(void)signal;
	(void)info;
	(void)context;
	/* What the program does not expect: all of it must come back. */
	asm volatile("pcmpeqd %%xmm0, %%xmm0\n\tpcmpeqd %%xmm7, %%xmm7\n\tcmp $3, %0" : : "r"(hits) : "xmm0", "xmm7", "cc");
	hits += value * 0 == 0;
}

static long compute(long rounds)
{
	double sum = 0;
	long result = 1;
	char from[100], to[100];

	for (long i = 0; i < rounds; i++) {
		result = mix(result, i * i % 977);
		sum += 1.0 / (double)(i + 1);
		memset(from, (int)i, sizeof(from));
		memcpy(to, from, sizeof(to));
		result = mix(result, to[i % 100]);
	}
	return mix(result, (long)(sum * 1e6));
}

/* Every 100 µs. */
static long signals_often(void)
{
	struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { 0 };
	long result;

	handle(SIGALRM, disturb, SA_RESTART);
	CHECK(!setitimer(ITIMER_REAL, &often, NULL));
	result = compute(3000);
	while (hits < 20)
		;
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	return result;
}

/* A timer of the program's own time goes on in a loop without a system call. */
static long time_of_its_own(void)
{
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } };

	handle(SIGVTALRM, disturb, 0);
	CHECK(!setitimer(ITIMER_VIRTUAL, &often, NULL));
	while (hits < 3)
		;
	return 3;
}

static atomic_int stop;

static void *sender(void *to)
{
	while (!stop) {
		pthread_kill(*(pthread_t *)to, SIGUSR1);
		usleep(50);
	}
	return NULL;
}

static long signals_from_a_thread(void)
{
	pthread_t self = pthread_self(), other;
	long result;

	handle(SIGUSR1, disturb, 0);
	other = thread(sender, &self);
	result = compute(3000);
	while (hits < 20)
		;
	stop = 1;
	pthread_join(other, NULL);
	return result;
}

/* A handler that changes the registers it returns to. */
static void changes(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	(void)signal;
	(void)info;
	regs[REG_RAX] = regs[REG_RAX] * 3 + 1;
	regs[REG_RIP] += 2;
	/* Carry and direction. */
	regs[REG_EFL] ^= 0x401;
}

static long changed_registers(void)
{
	long sum = 0;

	handle(SIGILL, changes, 0);
	for (long i = 0; i < 200; i++) {
		unsigned long flags, ax = i;

		asm volatile("ud2\n\tpushf\n\tpop %1\n\tcld" : "+a"(ax), "=r"(flags) : : "cc", "memory");
		sum = mix(sum, (long)ax);
		sum = mix(sum, flags & 0x400);
	}
	return sum;
}

static void leaves(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	hits = mix(hits, info->si_code);
	feclearexcept(FE_ALL_EXCEPT);
	siglongjmp(back, 1);
}

/* Floating point whose exceptions trap, and whose rounding changes. */
static long floating_point(void)
{
	static const int modes[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
	volatile double zero = 0, third = 3;
	volatile long sum = 0;

	handle(SIGFPE, leaves, SA_NODEFER);
	for (int i = 0; i < 40; i++) {
		double quotient;
		long bits;

		fesetround(modes[i % 4]);
		quotient = (i + 1) / third;
		memcpy(&bits, &quotient, 8);
		sum = mix(sum, bits & 0xffff);
		sum = mix(sum, fetestexcept(FE_INEXACT) != 0);
		feclearexcept(FE_ALL_EXCEPT);
	}
	fesetround(FE_TONEAREST);
	_mm_setcsr(0x1f80 & ~0x200); /* A division by 0 traps. */
	if (!sigsetjmp(back, 1))
		zero = 1 / zero;
	_mm_setcsr(0x1f80 & ~0x80); /* An invalid operation. */
	zero = 0;
	if (!sigsetjmp(back, 1))
		zero = zero / zero;
	_mm_setcsr(0x1f80);
	return mix(sum, hits);
}

static void noted(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	hits = mix(hits, signal * 64 + info->si_code);
	hits = mix(hits, info->si_syscall * 64 + info->si_errno);
	hits = mix(hits, regs[REG_RAX]);
	regs[REG_RAX] = 4321;
}

/* System calls that a filter refuses, answers, and turns into signals. */
static long filtered_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1234),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getuid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 77),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	handle(SIGSYS, noted, 0);
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return ABSENT;
	for (int i = 0; i < 50; i++) {
		long got;

		asm volatile("syscall" : "=a"(got) : "0"(SYS_getppid) : "rcx", "r11", "memory");
		hits = mix(hits, got);
		asm volatile("syscall" : "=a"(got) : "0"(SYS_getuid) : "rcx", "r11", "memory");
		hits = mix(hits, got);
	}
	return hits;
}

/* A program that reads the clock of its processor, until it may not. */
static long time_stamps(void)
{
	unsigned long last = 0;
	volatile long backwards = 0;

	for (int i = 0; i < 500; i++) {
		unsigned long now = __builtin_ia32_rdtsc();

		backwards += now < last;
		last = now;
	}
	handle(SIGSEGV, leaves, SA_NODEFER);
	CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0));
	if (!sigsetjmp(back, 1))
		hits = mix(hits, __builtin_ia32_rdtsc() != 0);
	CHECK(!prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0));
	return mix(hits, backwards);
}

/* Flags that only programs with such ideas set. */
static long odd_flags(void)
{
	long sum = 0;

	for (int i = 0; i < 100; i++) {
		unsigned long flags;

		/* ID, AC, DF, and all of arithmetic. */
		asm volatile("pushf\n\txorq %1, (%%rsp)\n\tpopf\n\tpushf\n\tpop %0\n\tpushf\n\tandq %2, (%%rsp)\n\tpopf"
			     : "=&r"(flags)
			     : "r"(i % 2 ? 0x200cd5ul : 0x8d5ul), "r"(~0x2404d5ul)
			     : "cc", "memory");
		sum = mix(sum, flags & 0x240cd5);
	}
	return sum;
}

const struct stress signal_cases[] = {
	{ "signals every 100 us", signals_often },
	{ "timer of its own time", time_of_its_own },
	{ "signals from a thread", signals_from_a_thread },
	{ "registers that a handler changes", changed_registers },
	{ "floating point", floating_point },
	{ "system calls that are filtered", filtered_calls },
	{ "time stamps", time_stamps },
	{ "odd flags", odd_flags },
	{ NULL, NULL },
};
