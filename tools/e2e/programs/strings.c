// SPDX-License-Identifier: GPL-2.0 OR MIT
/* String instructions with REP, of all kinds and many lengths, 0 too. */
#include <stdio.h>
#include <string.h>

int main(void)
{
	static char from[5000], to[5000];
	unsigned sum = 0;

	for (unsigned i = 0; i < sizeof(from); i++)
		from[i] = i * 31;
	for (unsigned long n = 0; n < 300; n = n * 2 + (n & 1) + 1) {
		unsigned long count = n;
		const char *source = from;
		char *target = to;

		asm volatile("rep movsb" : "+c"(count), "+S"(source), "+D"(target) : : "memory");
		count = n;
		asm volatile("rep stosq" : "+c"(count), "+D"(target) : "a"(n) : "memory");
		count = n + 1;
		source = from;
		target = to;
		asm volatile("repe cmpsb" : "+c"(count), "+S"(source), "+D"(target) : : "memory", "cc");
		sum += count;
		count = n;
		target = from;
		asm volatile("repne scasb" : "+c"(count), "+D"(target) : "a"(77) : "memory", "cc");
		sum += count;
		count = n;
		source = from;
		asm volatile("rep lodsw" : "+c"(count), "+S"(source) : : "rax", "memory");
		sum += to[n];
	}
	memcpy(to, from, sizeof(to));
	memset(from, 1, sizeof(from));
	printf("%u %d\n", sum, memcmp(from, to, sizeof(to)) != 0);
	return 0;
}
