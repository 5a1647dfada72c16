// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Work in rounds, each when it is asked for by a byte: 'w' for much of it, which fills a ring of some pages, others for a little.
 * A round is told of when it is done. No two rounds of much work take the same way.
 */
#include <stdio.h>
#include <unistd.h>

static unsigned state = 1;

static unsigned odd(unsigned n)
{
	return n * 3 + 1;
}

static unsigned even(unsigned n)
{
	return n / 2;
}

static unsigned (*const volatile steps[])(unsigned) = { even, odd, even, even, odd };

int main(void)
{
	unsigned sum = 0;
	char asked;

	while (read(0, &asked, 1) == 1) {
		for (int i = asked == 'w' ? 2500 : 5; i; i--) {
			state = state * 1664525 + 1013904223;
			sum = steps[(state >> 24) % 5](sum + i);
		}
		printf("%c %u\n", asked, sum);
		fflush(stdout);
	}
	return 0;
}
