// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A page of code that is executed at two addresses, in turns: a machine that is emulated translates it once for both. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096

/* Sums the numbers up to one, the odd ones twice. Of no other code in its page. */
asm(".pushsection .twice, \"ax\", @progbits\n"
    ".balign 4096\n"
    "sums:\txor %eax, %eax\n"
    "1:\tadd %rdi, %rax\n"
    "\ttest $1, %dil\n"
    "\tjz 2f\n"
    "\tadd %rdi, %rax\n"
    "2:\tdec %rdi\n"
    "\tjnz 1b\n"
    "\tret\n"
    ".balign 4096\n"
    ".popsection");

extern unsigned long sums(unsigned long most);
extern const char __ehdr_start[];

int main(void)
{
	unsigned long (*others)(unsigned long most), sum = 0;
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	void *other = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (const char *)sums - __ehdr_start);

	if (other == MAP_FAILED || memcmp(other, (const void *)sums, PAGE)) {
		puts("the page cannot be mapped once more");
		return 1;
	}
	memcpy(&others, &other, sizeof(others));
	for (unsigned long i = 1; i <= 40; i++)
		sum += sums(i) + others(i + 1);
	printf("%lu\n", sum);
	return 0;
}
