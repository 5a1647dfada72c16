// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Loops, recursion, calls by pointer, a jump table, sorting, printing: what most programs do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static unsigned fib(unsigned n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

static unsigned twice(unsigned x) { return 2 * x; }
static unsigned next(unsigned x) { return x + 1; }
static unsigned (*const functions[])(unsigned) = { twice, next, fib };

static unsigned choose(unsigned x)
{
	switch (x % 9) {
	case 0: return x + 3;
	case 1: return x * 5;
	case 2: return x ^ 0x55;
	case 3: return x / 3;
	case 4: return x << 2;
	case 5: return x - 7;
	case 6: return ~x;
	case 7: return x | 1;
	default: return 0;
	}
}

int main(void)
{
	int numbers[100];
	unsigned sum = 0, i;
	char text[64];

	for (i = 0; i < 100; i++)
		numbers[i] = (i * 7919) % 1009;
	qsort(numbers, 100, sizeof(*numbers), compare);
	for (i = 0; i < 60; i++)
		sum += functions[i % 3](i % 12) + choose(i);
	snprintf(text, sizeof(text), "%u %d %g", sum, numbers[50], sum / 7.0);
	printf("%s %zu\n", text, strlen(text));
	return 0;
}
