// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Code in memory that can be executed and not read, where the processor has protection keys. */
#include <stdio.h>
#include <sys/mman.h>

unsigned long flags(void);
int fib(int);
extern char hidden[], hidden_end[];

__asm__(".text\n"
	".balign 4096\n"
	".globl hidden, hidden_end, flags, fib\n"
	"hidden:\n"
	"flags: pushf; pop %rax; ret\n"
	"fib:   mov %edi, %eax; cmp $2, %edi; jl 1f\n"
	"       push %rbx; push %rdi; dec %edi; call fib; mov %eax, %ebx\n"
	"       pop %rdi; sub $2, %edi; call fib; add %ebx, %eax; pop %rbx\n"
	"1:     ret\n"
	".balign 4096\n"
	"hidden_end:\n");

int main(void)
{
	int seen = 0, sum = 0;

	if (mprotect(hidden, hidden_end - hidden, PROT_EXEC)) {
		perror("mprotect");
		return 1;
	}
	for (int i = 0; i < 10; i++) {
		sum += fib(i);
		seen += !!(flags() & 0x100);
	}
	/* The same instructions, whether a debugger is seen or not. */
	printf("%d, trap flag %c\n", sum, 'n' + 11 * !!seen);
	return 0;
}
