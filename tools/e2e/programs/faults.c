// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Instructions that fault, in all ways: the handler sees the signal, the address, and the registers that
 * the processor leaves.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define PAGE 4096ul
#define AC 0x40000ul

/* Of four pages: read and written, without access, only read, and not there. */
static char *pages;
static sigjmp_buf back;
static unsigned long sum;

/* What is near the pages, as where it is in them. */
static long shown(unsigned long value)
{
	unsigned long at = value - (unsigned long)pages;

	return at < 8 * PAGE ? (long)at : (long)(value >> 60);
}

static void handler(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	unsigned char *at = (unsigned char *)regs[REG_RIP];
	/* The instruction, where it can be read: its place depends on the linker. */
	/* It checks the handler's accesses, too. */
	__builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~AC);
	int first = (unsigned long)at < 1ul << 46 && shown(regs[REG_RIP]) <= 8 ? at[0] : -1;

	printf("%d %d %ld insn %x rcx %ld rdi %ld rsi %ld rax %lx error %llx trap %lld\n", signal, info->si_code,
	       shown((unsigned long)info->si_addr), first, (long)regs[REG_RCX], shown(regs[REG_RDI]),
	       shown(regs[REG_RSI]), (unsigned long)shown(regs[REG_RAX]), regs[REG_ERR], regs[REG_TRAPNO]);
	siglongjmp(back, 1);
}

/* Executes `code` with these registers: it must fault, or it says so. */
#define FAULT(name, code, rdi, rsi, rcx, rax)						\
	do {										\
		printf("%s: ", name);							\
		if (!sigsetjmp(back, 1)) {						\
			unsigned long di = (unsigned long)(rdi), si = (unsigned long)(rsi);	\
			unsigned long cx = (rcx), ax = (unsigned long)(rax);			\
			asm volatile("mov %%rsp, %%rbx\n\t" code "\n\tmov %%rbx, %%rsp"		\
				     : "+D"(di), "+S"(si), "+c"(cx), "+a"(ax)			\
				     : : "rbx", "rdx", "r8", "r9", "memory", "cc", "xmm0");	\
			printf("no fault: %ld %ld %ld %lx\n", shown(di), shown(si), (long)cx, ax);	\
		}										\
	} while (0)

static void faults(void)
{
	char *none = pages + PAGE, *only = pages + 2 * PAGE, *away = pages + 3 * PAGE;
	unsigned long nowhere = 0x8000000000000000ul;

	FAULT("load", "mov (%%rdi), %%rax", none, 0, 1, 2);
	FAULT("load from where nothing is", "mov (%%rdi), %%rax", away, 0, 1, 2);
	FAULT("load from no address", "mov (%%rdi), %%rax", nowhere, 0, 1, 2);
	FAULT("load of the kernel's", "mov (%%rdi), %%rax", -4096ul, 0, 1, 2);
	FAULT("load from two pages", "mov (%%rdi), %%rax", none - 3, 0, 1, 2);
	FAULT("store", "mov %%rax, (%%rdi)", only, 0, 1, 2);
	FAULT("store to two pages", "mov %%rax, (%%rdi)", none - 3, 0, 1, -1ul);
	FAULT("add", "add %%rax, (%%rdi)", only, 0, 1, 2);
	FAULT("adc", "stc\n\tadc %%rax, (%%rdi)", only, 0, 1, 2);
	FAULT("add, 32 bits", "addl $5, (%%rdi)", only + 4, 0, 1, 2);
	FAULT("push", "mov %%rdi, %%rsp\n\tpush %%rax", only + 8, 0, 1, 2);
	FAULT("pop", "mov %%rdi, %%rsp\n\tpop %%rax", none, 0, 1, 2);
	FAULT("call", "mov %%rdi, %%rsp\n\tcall 1f\n1:", only + 8, 0, 1, 2);
	FAULT("return", "mov %%rdi, %%rsp\n\tret", none, 0, 1, 2);
	FAULT("leave", "push %%rbp\n\tmov %%rdi, %%rbp\n\tleave\n\tpop %%rbp", none, 0, 1, 2);
	FAULT("stos", "rep stosb", none - 100, 0, 300, 0x55);
	FAULT("stos, words", "rep stosq", none - 104, 0, 300, 0x55);
	FAULT("stos, downwards", "std\n\trep stosb", pages + 50, 0, 300, 0x55);
	asm volatile("cld");
	FAULT("movs", "rep movsb", none - 100, only, 300, 0);
	FAULT("movs from", "rep movsb", pages, away - 70, 300, 0);
	FAULT("jump to data", "jmp *%%rdi", pages, 0, 1, 2);
	FAULT("call of data", "call *%%rdi", pages + 1, 0, 1, 2);
	FAULT("return to data", "push %%rdi\n\tret", pages + 2, 0, 1, 2);
	FAULT("jump to nowhere", "jmp *%%rdi", nowhere, 0, 1, 2);
	FAULT("jump to what is away", "jmp *%%rdi", away, 0, 1, 2);
	FAULT("jump to the kernel", "jmp *%%rdi", -4096ul, 0, 1, 2);
	FAULT("jump through nothing", "jmp *(%%rdi)", away, 0, 1, 2);
	FAULT("division by 0", "xor %%edx, %%edx\n\tdiv %%rdi", 0, 0, 1, 2);
	FAULT("quotient too large", "mov $5, %%edx\n\tdiv %%rcx", 0, 0, 5, 2);
	FAULT("idiv", "cqo\n\tidiv %%rcx", 0, 0, -1ul, 1ul << 63);
	FAULT("vector, not aligned", "movaps (%%rdi), %%xmm0", pages + 8, 0, 1, 2);
	FAULT("vector", "movups (%%rdi), %%xmm0", none - 8, 0, 1, 2);
	FAULT("vector to", "movups %%xmm0, (%%rdi)", only, 0, 1, 2);
	FAULT("vector operand", "pxor (%%rdi), %%xmm0", pages + 4, 0, 1, 2);
	FAULT("alignment", "pushf\n\torl $0x40000, (%%rsp)\n\tpopf\n\tmov 1(%%rdi), %%eax", pages, 0, 1, 2);
	FAULT("undefined", "ud2", pages, 0, 1, 2);
	FAULT("lock", ".byte 0xf0, 0x48, 0x01, 0xc0", pages, 0, 1, 2);
	FAULT("long", ".fill 15, 1, 0x66\n\tnop", pages, 0, 1, 2);
	FAULT("hlt", "hlt", pages, 0, 1, 2);
	FAULT("into an instruction", "jmp 2f + 1\n2:\tmov $0x0b0f, %%eax", pages, 0, 1, 2);
	FAULT("none", "mov %%rax, (%%rdi)\n\tadd %%rax, (%%rdi)\n\tmov (%%rdi), %%rcx", pages + 64, 0, 1, 21);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
	stack_t stack = { .ss_size = 16 * PAGE };

	pages = mmap((void *)0x10000000, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack.ss_sp = mmap(NULL, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || stack.ss_sp == MAP_FAILED || sigaltstack(&stack, NULL))
		return 2;
	/* `ret`, if it is executed. */
	memset(pages, 0xc3, 3 * PAGE);
	mprotect(pages + PAGE, PAGE, PROT_NONE);
	mprotect(pages + 2 * PAGE, PAGE, PROT_READ);
	munmap(pages + 3 * PAGE, PAGE);
	for (int signal = 1; signal < 32; signal++)
		if (signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL)
			sigaction(signal, &action, NULL);
	faults();
	for (unsigned long i = 0; i < PAGE; i++)
		sum = sum * 31 + (unsigned char)pages[i];
	printf("%lx\n", sum);
	return 0;
}
