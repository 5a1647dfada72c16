// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A branch of each kind, and little else: no C library, whose start alone is a hundred thousand instructions. With THREADS it does its
 * work again in threads, one after the other.
 */
#include <linux/sched.h>
#include <stddef.h>
#include <sys/syscall.h>

#define STACK 16384

#if defined(THREADS)
#define ROUNDS 1
#elif !defined(ROUNDS)
#define ROUNDS 12
#endif

static unsigned int fib(unsigned int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

/* Deeper than the call chains that perf shows by default. */
__attribute__((noinline)) static unsigned int down(unsigned int n)
{
	unsigned int below = n ? down(n - 1) : 1;

	/* No loop instead of calls. */
	asm volatile("" : "+r"(below));
	return below * 3 + n;
}

__attribute__((noinline)) static unsigned int twice(unsigned int x) { return 2 * x; }
__attribute__((noinline)) static unsigned int next(unsigned int x) { return x + 1; }

static unsigned int (*const volatile functions[])(unsigned int) = { twice, next, fib };

__attribute__((noinline)) static unsigned int choose(unsigned int x)
{
	switch (x % 9) {
	case 0: return x + 3;
	case 1: return x * 5;
	case 2: return x ^ 0x55;
	case 3: return x / 3;
	case 4: return x << 2;
	case 5: return x - 7;
	case 6: return ~x;
	case 7: return next(x);
	default: return 0;
	}
}

__attribute__((noinline)) static long call(long number, long a, long b, long c)
{
	long result;

	asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

__attribute__((noinline)) unsigned int work(void)
{
	unsigned int sum = down(40);
	char from[64] = "some text", to[64];
	unsigned long len = sizeof(to);

	for (unsigned int i = 0; i < 40; i++) {
		sum += functions[i % 3](i % 9) + choose(i);
		if (i % 8 == 0)
			sum += call(SYS_getppid, 0, 0, 0) < 0;
	}
	asm volatile("rep movsb" : "+c"(len) : "S"(from), "D"(to) : "memory");
	return sum + to[3];
}

#ifdef THREADS
/* Returns when the thread has ended. */
static void run_thread(char *stack)
{
	long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_VFORK;

	asm volatile("syscall\n\t"
		     "test %%eax, %%eax\n\t"
		     "jnz 1f\n\t"
		     "call work\n\t"
		     "mov %[exit], %%eax\n\t"
		     "xor %%edi, %%edi\n\t"
		     "syscall\n"
		     "1:"
		     : "+a"((long){SYS_clone})
		     : "D"(flags), "S"(stack + STACK), "d"(0L), [exit] "i"(SYS_exit)
		     : "rcx", "r11", "r8", "r10", "memory");
}
#endif

__attribute__((used, noreturn)) static void run(void)
{
	unsigned int sum = 0;
	char text[12];
	int len = 0;

#ifdef THREADS
	static char stacks[3][STACK] __attribute__((aligned(16)));

	for (int i = 0; i < 3; i++)
		run_thread(stacks[i]);
#endif
	for (int i = 0; i < ROUNDS; i++)
		sum += work();
	for (int shift = 28; shift >= 0; shift -= 4)
		text[len++] = "0123456789abcdef"[sum >> shift & 15];
	text[len++] = '\n';
	call(SYS_write, 1, (long)text, len);
	call(SYS_exit_group, 0, 0, 0);
	__builtin_unreachable();
}

asm(".globl _start\n"
    ".type _start, @function\n"
    "_start:\n"
    "\txor %ebp, %ebp\n"
    "\tcall run\n"
    "\tud2\n"
    ".size _start, . - _start\n");
