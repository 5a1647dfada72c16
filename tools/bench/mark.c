// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Opens or closes a window of the QEMU plugin in plugin/: record.rs has the instructions.
 *
 *	mark begin|end
 */
#include <string.h>

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "begin"))
		__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x61757801");
	else if (argc == 2 && !strcmp(argv[1], "end"))
		__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x61757800");
	else
		return 2;
	return 0;
}
