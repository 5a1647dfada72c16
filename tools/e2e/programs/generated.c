// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Code that is made at run time, and is in a file, so that a decoder can have it: argument 1 is the file's name. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned char *code;
	unsigned sum = 0;
	int file;

	if (argc < 2)
		return 1;
	file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0755);
	if (file < 0 || ftruncate(file, 4096))
		return 2;
	code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (code == MAP_FAILED)
		return 3;
	for (int i = 0; i < 16; i++) {
		/* mov eax, i; test edi, edi; je +5; add eax, i * 3; ret */
		unsigned char function[] = { 0xb8, i, 0, 0, 0, 0x85, 0xff, 0x74, 5, 0x05, i * 3, 0, 0, 0, 0xc3 };

		memcpy(code + 64 * i, function, sizeof(function));
	}
	munmap(code, 4096);
	code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
	for (int i = 0; i < 64; i++)
		sum += ((unsigned (*)(unsigned))(void *)(code + 64 * (i % 16)))(i & 4);
	printf("%u\n", sum);
	return 0;
}
