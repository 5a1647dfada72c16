// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Opens or closes a window of the QEMU plugin in plugin/: record.rs has the instructions. OUTER and
 * INNER are addresses of functions, in hexadecimal, for what=interrupts.
 *
 *	mark begin [OUTER INNER]
 *	mark end
 */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	unsigned long long outer = 0, inner = 0;

	if (argc == 4) {
		outer = strtoull(argv[2], NULL, 16);
		inner = strtoull(argv[3], NULL, 16);
	}
	if ((argc == 2 || argc == 4) && !strcmp(argv[1], "begin"))
		__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x61757801" : : "D"(outer), "S"(inner));
	else if (argc == 2 && !strcmp(argv[1], "end"))
		__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x61757800");
	else
		return 2;
	return 0;
}
