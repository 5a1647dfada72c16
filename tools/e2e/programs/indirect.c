// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Jumps that memory and registers decide: an interpreter with computed gotos, tail calls, calls deeper than what a return
 * stack holds, returns that go elsewhere, LOOP and JRCXZ. */
#include <stdio.h>

static unsigned interpret(const unsigned char *code, unsigned x)
{
	static void *const labels[] = { &&add, &&mul, &&xor, &&jump, &&end };

#define NEXT goto *labels[*code++]
	NEXT;
add:	x += 3; NEXT;
mul:	x *= 5; NEXT;
xor:	x ^= x >> 3; NEXT;
jump:	if (x & 1) code++; NEXT;
end:	return x;
}

typedef unsigned (*step)(unsigned, int);
static unsigned odd(unsigned x, int n);
static step volatile steps[2];

static unsigned even(unsigned x, int n)
{
	return n ? steps[n & 1](x + 2, n - 1) : x;
}

static unsigned odd(unsigned x, int n)
{
	return n ? steps[n & 1](x * 3, n - 1) : x;
}

__attribute__((noinline)) static unsigned deep(unsigned n)
{
	return n ? deep(n - 1) * 2 + 1 : 0;
}

static unsigned loops(unsigned n)
{
	unsigned long count = n, sum = 0;

	asm volatile("1: jrcxz 2f\n\t"
		     "add $2, %1\n\t"
		     "loop 1b\n\t"
		     "2: call 3f\n\t"
		     /* A return that goes on behind itself. */
		     "3: lea 4f(%%rip), %%rdx\n\t"
		     "mov %%rdx, (%%rsp)\n\t"
		     "ret\n\t"
		     "int3\n\t"
		     "4: notrack jmp *5f(%%rip)\n\t"
		     "int3\n\t"
		     ".pushsection .data\n\t"
		     "5: .quad 6f\n\t"
		     ".popsection\n\t"
		     "6:"
		     : "+c"(count), "+r"(sum) : : "rdx", "memory", "cc");
	return sum;
}

int main(void)
{
	static const unsigned char code[] = { 0, 1, 2, 3, 0, 1, 2, 2, 3, 1, 0, 4 };
	unsigned sum = 0;

	steps[0] = even;
	steps[1] = odd;
	for (unsigned i = 0; i < 40; i++)
		sum += interpret(code, i) + even(i, 30) + deep(i * 5) + loops(i);
	printf("%u\n", sum);
	return 0;
}
