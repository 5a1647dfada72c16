// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A program that ends by a fault: calls, returns, recursion, calls through pointers, a loop, and then a store through a null
 * pointer at `faulting`.
 */
static volatile unsigned int sum;

static unsigned int __attribute__((noinline)) twice(unsigned int n)
{
	return n * 2;
}

static unsigned int __attribute__((noinline)) plus(unsigned int n)
{
	return n + 3;
}

static unsigned int (*const volatile change[])(unsigned int) = { twice, plus };

static unsigned int __attribute__((noinline)) recurse(unsigned int n)
{
	if (n < 2)
		return n;
	return recurse(n - 1) + recurse(n - 2) + 1;
}

static void __attribute__((noinline)) store(unsigned int *to)
{
	__asm__ volatile(".globl faulting\n"
			 "faulting: movl $1, (%0)" : : "r"(to) : "memory");
}

int main(void)
{
	for (unsigned int i = 0; i < 40; i++) {
		sum += change[i & 1](i);
		sum += recurse(i % 7);
		if (i % 3 == 0)
			sum ^= 5;
	}
	store((unsigned int *)0);
	return 0;
}

void _start(void);

void _start(void)
{
	main();
}
