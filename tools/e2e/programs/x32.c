// SPDX-License-Identifier: GPL-2.0 OR MIT
/* An x32 program, without a C library, as there is none: system calls, handlers, calls by pointer, its own flags. */
#include <asm/unistd.h>

#define TRAP_FLAG 0x100
#define SIGUSR1 10
#define SA_RESTORER 0x04000000

/* As the kernel has it. */
struct action {
	void (*handler)(int, void *, void *);
	unsigned flags;
	void (*restorer)(void);
	unsigned mask[2];
};

/* Behind flags, a link and a stack of 32 bits each: the registers, of 64. */
struct context {
	unsigned head[6];
	unsigned long long registers[23];
};

#define FLAGS 17

static volatile unsigned seen, flags_seen;

static long call(long number, long a, long b, long c, long d)
{
	register long r10 asm("r10") = d;
	register unsigned long long r11 asm("r11");
	long long result = number;

	asm volatile("syscall" : "+a"(result), "=r"(r11) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "memory");
	/* Where the processor has left the flags. */
	flags_seen += (r11 & TRAP_FLAG) != 0;
	return result;
}

static void handler(int number, void *info, void *context)
{
	(void)info;
	seen += number;
	flags_seen += (((struct context *)context)->registers[FLAGS] & TRAP_FLAG) != 0;
}

asm("restorer: mov $0x40000201, %eax; syscall");
void restorer(void);

static unsigned twice(unsigned n)
{
	return n * 2;
}

static unsigned and_one(unsigned n)
{
	return n + 1;
}

static unsigned (*volatile const steps[])(unsigned) = { twice, and_one };

static unsigned __attribute__((noinline)) deep(unsigned n)
{
	return n ? deep(n - 1) + steps[n & 1](n) : 0;
}

static void number(unsigned n)
{
	char text[12];
	int at = sizeof(text);

	text[--at] = '\n';
	do {
		text[--at] = '0' + n % 10;
		n /= 10;
	} while (n);
	call(__NR_write, 1, (long)(text + at), sizeof(text) - at, 0);
}

static int work(void)
{
	static struct action action = { handler, SA_RESTORER, restorer, { 0, 0 } };
	unsigned long long flags;

	call(__NR_rt_sigaction, SIGUSR1, (long)&action, 0, 8);
	for (int i = 0; i < 20; i++)
		call(__NR_kill, call(__NR_getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
	asm volatile("pushf\n\tpop %0" : "=r"(flags));
	flags_seen += (flags & TRAP_FLAG) != 0;

	number(seen);
	number(deep(300));
	number(flags_seen != 0);
	return flags_seen != 0;
}

void start(void);
void start(void)
{
	call(__NR_exit, work(), 0, 0, 0);
}

asm(".globl _start\n_start: xor %ebp, %ebp; call start");
