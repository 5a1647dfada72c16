// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory that comes when it is touched, has keys, is watched, or is nowhere.
 */
#include "stress.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

static sigjmp_buf back;
static long seen;

static void note(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	seen = mix(seen, signal * 64 + info->si_code);
	seen = mix(seen, regs[REG_ERR] * 64 + regs[REG_TRAPNO]);
	seen = mix(seen, (long)info->si_addr % (long)PAGE);
	siglongjmp(back, 1);
}

static void catch(void)
{
	stack_t stack = { .ss_sp = map(16, PROT_READ | PROT_WRITE), .ss_size = 16 * PAGE };

	CHECK(!sigaltstack(&stack, NULL));
	handle(SIGSEGV, note, SA_NODEFER | SA_ONSTACK);
	handle(SIGBUS, note, SA_NODEFER | SA_ONSTACK);
}

static __attribute__((noinline)) long deep(long n)
{
	volatile char space[3000];

	space[n % 3000] = n;
	return n ? deep(n - 1) + space[n % 3000] : 0;
}

static long stack_that_grows(void)
{
	return deep(1500);
}

static long stack_that_ends(void)
{
	catch();
	if (!sigsetjmp(back, 1))
		deep(1 << 20);
	/* How far it came depends on where it began; that it was the stack's end does not. */
	return seen != 0;
}

static long lazy_file(void)
{
	int file = memfd_create("lazy", 0);
	long sum = 0;

	CHECK(file >= 0);
	for (int i = 0; i < 64; i++) {
		char page[PAGE];

		memset(page, i, sizeof(page));
		CHECK(write(file, page, sizeof(page)) == (ssize_t)sizeof(page));
	}
	for (int round = 0; round < 3; round++) {
		unsigned char *at = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);

		CHECK(at != MAP_FAILED);
		for (long i = 0; i < 64; i++) {
			sum = mix(sum, at[(i * 37 % 64) * (long)PAGE + i]);
			at[i * (long)PAGE] += 1;
		}
		CHECK(!munmap(at, 64 * PAGE));
	}
	return sum;
}

static long file_that_shrinks(void)
{
	int file = memfd_create("short", 0);
	unsigned char *at;

	catch();
	CHECK(file >= 0 && !ftruncate(file, 2 * PAGE));
	at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(at != MAP_FAILED);
	for (volatile int i = 0; i < 20; i++) {
		CHECK(!ftruncate(file, i % 2 ? 2 * PAGE : PAGE));
		if (!sigsetjmp(back, 1)) {
			at[PAGE + i] += 1;
			seen = mix(seen, at[PAGE + i]);
		}
		/* Half of it is in the page that goes. */
		if (!sigsetjmp(back, 1))
			*(volatile uint64_t *)(at + PAGE - 3) = 0x1111111111111111ul * i;
		seen = mix(seen, at[PAGE - 1]);
	}
	return seen;
}

static long keys(void)
{
	int key = pkey_alloc(0, 0);
	volatile unsigned char *at = map(1, PROT_READ | PROT_WRITE);

	if (key < 0)
		return ABSENT;
	catch();
	CHECK(!pkey_mprotect((void *)at, PAGE, PROT_READ | PROT_WRITE, key));
	for (volatile int i = 0; i < 60; i++) {
		CHECK(!pkey_set(key, i % 3));
		if (!sigsetjmp(back, 1))
			seen = mix(seen, at[i]);
		CHECK(!pkey_set(key, i % 3));
		if (!sigsetjmp(back, 1))
			at[i] = i;
		/* A handler has rights of its own. */
		CHECK(!pkey_set(key, 0));
		seen = mix(seen, at[i]);
	}
	return seen;
}

static int faults;

static void *filler(void *with)
{
	struct uffd_msg message;
	char page[PAGE];

	(void)with;
	for (int i = 0; i < 32 && read(faults, &message, sizeof(message)) == sizeof(message); i++) {
		struct uffdio_copy copy = { .dst = message.arg.pagefault.address & -PAGE, .src = (unsigned long)page, .len = PAGE };

		memset(page, message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE ? 7 : 9, PAGE);
		usleep(100);
		CHECK(!ioctl(faults, UFFDIO_COPY, &copy));
	}
	return NULL;
}

/* Each page comes from another thread, when it is touched; by the kernel, too. */
static long filled_by_another(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	unsigned char *at = map(32, PROT_READ | PROT_WRITE);
	struct uffdio_register range = { { (unsigned long)at, 32 * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	pthread_t other;
	long sum = 0;
	int pipes[2];

	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0)
		return ABSENT;
	CHECK(!ioctl(faults, UFFDIO_API, &api) && !ioctl(faults, UFFDIO_REGISTER, &range) && !pipe(pipes));
	other = thread(filler, NULL);
	for (long i = 0; i < 32; i++) {
		unsigned char *page = at + i * PAGE;

		switch (i % 4) {
		case 0:
			sum = mix(sum, page[i]);
			break;
		case 1:
			asm volatile("addl $5, %0" : "+m"(*(int *)(page + i)));
			break;
		case 2:
			asm volatile("push %%rbp\n\tmov %%rsp, %%rbp\n\tmov %0, %%rsp\n\tpush $3\n\tmov %%rbp, %%rsp\n\tpop %%rbp"
				     : : "r"(page + 64) : "memory");
			break;
		default:
			CHECK(write(pipes[1], page, 8) == 8);
			break;
		}
		sum = mix(sum, page[i] + page[60]);
	}
	pthread_join(other, NULL);
	return sum;
}

/* A checkpoint of pages while the program goes on: each is kept as it was when all were protected, at the first store to it. */
#define KEPT 16

static unsigned char *kept;

static void *keeper(void *with)
{
	unsigned char *from = with;

	for (int i = 0; i < 6 * KEPT; i++) {
		struct uffd_msg message;
		struct uffdio_writeprotect free = { .range.len = PAGE };
		unsigned long offset;

		CHECK(read(faults, &message, sizeof(message)) == sizeof(message));
		CHECK(message.event == UFFD_EVENT_PAGEFAULT);
		CHECK(message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP);
		offset = (message.arg.pagefault.address - (unsigned long)from) & -PAGE;
		memcpy(kept + offset, from + offset, PAGE);
		free.range.start = (unsigned long)from + offset;
		CHECK(!ioctl(faults, UFFDIO_WRITEPROTECT, &free));
	}
	return NULL;
}

static long checkpoints(void)
{
	unsigned char *at = map(KEPT, PROT_READ | PROT_WRITE), *was = map(KEPT, PROT_READ | PROT_WRITE);
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
	struct uffdio_register range = {
		.range = { (unsigned long)at, KEPT * PAGE },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};
	struct uffdio_writeprotect protect = { .range = range.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	pthread_t other;
	long sum = 0;
	int pipes[2];

	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api))
		return ABSENT;
	kept = map(KEPT, PROT_READ | PROT_WRITE);
	for (unsigned long i = 0; i < KEPT * PAGE; i++)
		at[i] = i * 11;
	CHECK(!ioctl(faults, UFFDIO_REGISTER, &range) && !pipe(pipes));
	other = thread(keeper, at);
	for (int round = 0; round < 6; round++) {
		memcpy(was, at, KEPT * PAGE);
		CHECK(!ioctl(faults, UFFDIO_WRITEPROTECT, &protect));
		for (long i = 0; i < KEPT; i++) {
			unsigned char *page = at + i * PAGE, *end = page + 100;
			long count = 40, value = i;

			switch ((i + round) % 6) {
			case 0:
				page[i] += round;
				break;
			case 1:
				asm volatile("addl $5, %0" : "+m"(*(int *)(page + i)));
				break;
			case 2:
				asm volatile("rep stosb" : "+D"(end), "+c"(count) : "a"(round) : "memory");
				break;
			case 3:
				asm volatile("movq %0, %%xmm1\n\tmovups %%xmm1, (%1)"
					     : : "r"(i + round), "r"(page + 32) : "xmm1", "memory");
				break;
			case 4:
				asm volatile("lock xaddq %0, (%1)" : "+r"(value) : "r"(page + 8) : "memory");
				break;
			default:
				CHECK(write(pipes[1], "checked", 7) == 7 && read(pipes[0], page + i, 7) == 7);
				break;
			}
		}
		CHECK(!memcmp(kept, was, KEPT * PAGE));
		for (unsigned long i = 0; i < KEPT * PAGE; i += 7)
			sum = mix(sum, at[i]);
	}
	pthread_join(other, NULL);
	return sum;
}

/* Where data segments begin. */
static long segments(void)
{
	unsigned char *at = map(1, PROT_READ | PROT_WRITE);
	long sum = 0;

	catch();
	for (long i = 0; i < (long)PAGE; i++)
		at[i] = i * 7;
	for (int i = 0; i < 200; i++) {
		long got;

		CHECK(!syscall(SYS_arch_prctl, ARCH_SET_GS, at + i));
		asm volatile("mov %%gs:8, %0" : "=r"(got));
		sum = mix(sum, got);
		asm volatile("mov %%gs:(%1,%2), %0" : "=r"(got) : "r"(-100l), "r"(108l));
		sum = mix(sum, got);
		/* A base in the data, and the address wraps. */
		asm volatile("mov %%gs:(%1), %0" : "=r"(got) : "r"(-(long)i));
		sum = mix(sum, got);
	}
	/* The address is right only with the base, or only without. */
	if (!sigsetjmp(back, 1))
		asm volatile("mov %%gs:(%0), %%rax" : : "r"(0x7ffffffff000l) : "rax");
	if (!sigsetjmp(back, 1))
		asm volatile("mov %%gs:(%0), %%rax" : : "r"(0x8000000000000000l) : "rax");
	return mix(sum, seen);
}

/* A store to two pages, of which one may not be written, changes neither. */
static long half_a_store(void)
{
	unsigned char *at = map(2, PROT_READ | PROT_WRITE);

	catch();
	CHECK(!mprotect(at + PAGE, PAGE, PROT_READ));
	for (volatile int i = 1; i < 8; i++) {
		if (!sigsetjmp(back, 1))
			*(volatile uint64_t *)(at + PAGE - i) = -1ul;
		if (!sigsetjmp(back, 1))
			asm volatile("addq $1, %0" : "+m"(*(uint64_t *)(at + PAGE - i)));
		if (!sigsetjmp(back, 1))
			asm volatile("movups %%xmm0, %0" : "=m"(*(__int128 *)(at + PAGE - 2 * i)));
		for (int j = 0; j < 16; j++)
			seen = mix(seen, at[PAGE - 1 - j]);
	}
	return seen;
}

static long copied_on_write(void)
{
	unsigned char *at = map(16, PROT_READ | PROT_WRITE);
	long sum = 0;

	memset(at, 1, 16 * PAGE);
	for (int i = 0; i < 6; i++) {
		int status;
		pid_t child = fork();

		for (int j = 0; j < 16; j++)
			at[j * PAGE + i] += child ? 1 : 2;
		if (!child) {
			for (long j = 0; j < 16; j++)
				sum = mix(sum, at[j * (long)PAGE + i]);
			_exit(sum % 251);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
		sum = mix(sum, WEXITSTATUS(status) + at[i]);
	}
	return sum;
}

/* Swaps pages under a reader with mremap(). */
static unsigned char *place;
static atomic_int done;

static void *swapper(void *with)
{
	unsigned char *one = map(1, PROT_READ | PROT_WRITE), *other = map(1, PROT_READ | PROT_WRITE);

	(void)with;
	memset(one, 0x11, PAGE);
	memset(other, 0x22, PAGE);
	for (int i = 0; i < 500; i++) {
		unsigned char *page = i % 2 ? one : other, *copy = map(1, PROT_READ | PROT_WRITE);

		memcpy(copy, page, PAGE);
		CHECK(mremap(copy, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
	}
	done = 1;
	return NULL;
}

static void retry(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	if (info->si_addr < (void *)place || info->si_addr >= (void *)(place + PAGE))
		_exit(2);
	sched_yield();
}

static long moved_by_another(void)
{
	pthread_t other;
	long wrong = 0;

	handle(SIGSEGV, retry, 0);
	place = map(1, PROT_READ | PROT_WRITE);
	memset(place, 0x11, PAGE);
	other = thread(swapper, NULL);
	while (!done) {
		uint64_t got = *(volatile uint64_t *)(place + 8);

		wrong += got != 0x1111111111111111 && got != 0x2222222222222222;
	}
	pthread_join(other, NULL);
	return wrong;
}

const struct stress memory_cases[] = {
	{ "stack that grows", stack_that_grows },
	{ "stack that ends", stack_that_ends },
	{ "file that is mapped lazily", lazy_file },
	{ "file that shrinks", file_that_shrinks },
	{ "protection keys", keys },
	{ "pages from userfaultfd", filled_by_another },
	{ "checkpoints by userfaultfd", checkpoints },
	{ "segments' bases", segments },
	{ "half a store", half_a_store },
	{ "pages copied on write", copied_on_write },
	{ "pages that another thread moves", moved_by_another },
	{ NULL, NULL },
};
