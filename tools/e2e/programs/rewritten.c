// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Code that is written over while it is run, in memory that no file has; between its calls, work with much trace. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static unsigned odd(unsigned n)
{
	return n * 3 + 1;
}

static unsigned even(unsigned n)
{
	return n / 2;
}

static unsigned (*const volatile steps[])(unsigned) = { even, odd };

int main(void)
{
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned sum = 0;

	if (code == MAP_FAILED)
		return 1;
	for (int i = 0; i < 30; i++) {
		/* Of changing length, so that branches are where plain instructions were. */
		unsigned char *at = code;

		for (int n = 0; n < i % 7; n++)
			*at++ = 0x90;
		*at++ = 0xb8;
		*at++ = i;
		*at++ = 0;
		*at++ = 0;
		*at++ = 0;
		memcpy(at, (unsigned char[]){ 0x85, 0xff, 0x75, 2, 0xff, 0xc0, 0xc3 }, 7);
		sum += ((unsigned (*)(unsigned))(void *)code)(i & 1);
		for (int n = 0; n < 200; n++)
			sum = steps[sum & 1](sum + n);
	}
	printf("%u\n", sum);
	return 0;
}
