// SPDX-License-Identifier: GPL-2.0
/*
 * Interpretation of user code: whether it is possible, and access to its
 * memory.
 */

#include "helpers.h"

#include <linux/entry-common.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/thread_info.h>
#include <linux/uaccess.h>
#include <asm/cpufeature.h>
#include <asm/debugreg.h>
#include <asm/fsgsbase.h>
#include <asm/hypervisor.h>
#include <asm/prctl.h>

/*
 * Whether the next instructions of the task with this frame can be
 * interpreted. The task is in a trap after an instruction, and interrupts are
 * off. All of this must hold:
 *
 * - It is the current task, in 64-bit code of the kernel's segment.
 * - No work is pending before its return to user mode, and no debugger steps it.
 * - Its instructions have no other effects than the interpreter gives them: there
 *   are no watchpoints on this CPU, no alignment checks, no shadow stack and no
 *   probes.
 */
bool rust_stepping_can_interpret(struct pt_regs *regs)
{
	if (task_pt_regs(current) != regs || regs->cs != __USER_CS)
		return false;
	if (regs->flags & X86_EFLAGS_AC || hw_breakpoint_active())
		return false;
	if (read_thread_flags() & (EXIT_TO_USER_MODE_WORK | _TIF_FORCED_TF |
				   _TIF_BLOCKSTEP))
		return false;
#ifdef CONFIG_X86_USER_SHADOW_STACK
	if (current->thread.features & ARCH_SHSTK_SHSTK)
		return false;
#endif
	return !rust_stepping_has_probe_state();
}

/* Between these two, an access to user memory that needs a page fault fails. */
void rust_stepping_access_begin(void)
{
	pagefault_disable();
}

void rust_stepping_access_end(void)
{
	pagefault_enable();
}

/*
 * Reads a number by one access. An address outside of user space faults: it is
 * masked to an address that is never mapped.
 */
#define RUST_STEPPING_LOAD(bytes, type)					\
struct rust_stepping_loaded rust_stepping_load_##bytes(unsigned long from) \
{									\
	const type __user *src = (const type __user *)from;		\
	type value;							\
									\
	src = masked_user_access_begin(src);				\
	unsafe_get_user(value, src, fault);				\
	user_access_end();						\
	return (struct rust_stepping_loaded){ value, true };		\
fault:									\
	user_access_end();						\
	return (struct rust_stepping_loaded){ 0, false };		\
}

RUST_STEPPING_LOAD(1, u8)
RUST_STEPPING_LOAD(2, u16)
RUST_STEPPING_LOAD(4, u32)
RUST_STEPPING_LOAD(8, u64)

/* Writes a number by one access; false if that faults. */
#define RUST_STEPPING_STORE(bytes, type)				\
bool rust_stepping_store_##bytes(unsigned long to, u64 value)		\
{									\
	type __user *dst = (type __user *)to;				\
									\
	dst = masked_user_access_begin(dst);				\
	unsafe_put_user((type)value, dst, fault);			\
	user_access_end();						\
	return true;							\
fault:									\
	user_access_end();						\
	return false;							\
}

RUST_STEPPING_STORE(1, u8)
RUST_STEPPING_STORE(2, u16)
RUST_STEPPING_STORE(4, u32)
RUST_STEPPING_STORE(8, u64)

/* Writes a number by one locked access, if memory holds the old one. */
#define RUST_STEPPING_REPLACE(bytes, type)				\
struct rust_stepping_loaded						\
rust_stepping_replace_##bytes(unsigned long at, u64 old, u64 new)	\
{									\
	type __user *dst = (type __user *)at;				\
	type expected = (type)old;					\
	bool replaced;							\
									\
	dst = masked_user_access_begin(dst);				\
	replaced = unsafe_try_cmpxchg_user(dst, &expected, (type)new,	\
					   fault);			\
	user_access_end();						\
	return (struct rust_stepping_loaded){ replaced, true };		\
fault:									\
	user_access_end();						\
	return (struct rust_stepping_loaded){ 0, false };		\
}

RUST_STEPPING_REPLACE(1, u8)
RUST_STEPPING_REPLACE(2, u16)
RUST_STEPPING_REPLACE(4, u32)
RUST_STEPPING_REPLACE(8, u64)

/*
 * Finds the page at this address. Returns false if user code may not execute
 * it. Interrupts are off, so that the page tables stay. Only the NX flag of
 * the last entry is checked: with page table isolation, the first entry has
 * the flag in the kernel's copy.
 */
static bool find_code(unsigned long at, unsigned long *pfn)
{
	const unsigned long wanted = _PAGE_PRESENT | _PAGE_USER;
	unsigned long flags;
	p4d_t *p4d, p4d_now;
	pud_t *pud, pud_now;
	pmd_t *pmd, pmd_now;
	pgd_t *pgd, pgd_now;
	pte_t pte_now;

	if (!current->mm || at >= TASK_SIZE_MAX)
		return false;
	pgd = pgd_offset(current->mm, at);
	pgd_now = READ_ONCE(*pgd);
	if (pgd_none(pgd_now) || pgd_bad(pgd_now))
		return false;
	p4d = p4d_offset(pgd, at);
	p4d_now = READ_ONCE(*p4d);
	if (!p4d_present(p4d_now) || p4d_bad(p4d_now))
		return false;
	pud = pud_offset(p4d, at);
	pud_now = READ_ONCE(*pud);
	if (!pud_present(pud_now))
		return false;
	if (pud_leaf(pud_now)) {
		flags = pud_flags(pud_now);
		*pfn = pud_pfn(pud_now) + ((at & ~PUD_MASK) >> PAGE_SHIFT);
		goto found;
	}
	pmd = pmd_offset(pud, at);
	pmd_now = READ_ONCE(*pmd);
	if (!pmd_present(pmd_now))
		return false;
	if (pmd_leaf(pmd_now)) {
		flags = pmd_flags(pmd_now);
		*pfn = pmd_pfn(pmd_now) + ((at & ~PMD_MASK) >> PAGE_SHIFT);
		goto found;
	}
	pte_now = READ_ONCE(*pte_offset_kernel(&pmd_now, at));
	flags = pte_flags(pte_now);
	*pfn = pte_pfn(pte_now);
found:
	return (flags & (wanted | _PAGE_NX)) == wanted;
}

/*
 * Whether another CPU can revoke the permission while this one has interrupts
 * off. Otherwise it waits for an interrupt on this CPU. It does not wait with
 * INVLPGB. Nor does it wait for a virtual CPU that does not run: the
 * hypervisor flushes that CPU before it runs again.
 */
static bool flushes_without_interrupt(void)
{
	return cpu_feature_enabled(X86_FEATURE_INVLPGB) ||
	       !hypervisor_is_type(X86_HYPER_NATIVE);
}

/*
 * Whether the page belongs to the executable file of the current task, so that
 * it cannot be written. The kernel refuses to open that file for writing. It
 * also refuses to give the task another executable file while this one is
 * mapped. A file that was not opened by a path, such as a memfd, is excluded:
 * it may have been opened for writing before.
 */
static bool is_program(struct folio *folio)
{
	struct address_space *mapping = READ_ONCE(folio->mapping);
	struct file *program;
	bool is;

	if (folio_test_anon(folio) || !mapping || !mapping->host)
		return false;
	if (mapping->host->i_sb->s_flags & (SB_KERNMOUNT | SB_NOUSER))
		return false;
	rcu_read_lock();
	program = rcu_dereference(current->mm->exe_file);
	is = program && !FMODE_FSNOTIFY_HSM(program->f_mode) &&
	     file_inode(program) == mapping->host &&
	     atomic_read(&mapping->host->i_writecount) < 0;
	rcu_read_unlock();
	return is;
}

/*
 * Whether the current task may execute code in the page at this address.
 * Interrupts are off. *stays: this does not change while they are off, as
 * another CPU that changes the page tables waits for this one. *settled: while
 * they are off, the page cannot be written either.
 */
bool rust_stepping_can_execute(unsigned long at, bool *stays, bool *settled)
{
	unsigned long pfn;

	*settled = false;
	*stays = !flushes_without_interrupt();
	if (!find_code(at, &pfn))
		return false;
	if (*stays && pfn_valid(pfn))
		*settled = is_program(page_folio(pfn_to_page(pfn)));
	return true;
}

/*
 * Whether no file has the code in the page at this address, which the current
 * task has just read: the page is anonymous, or belongs to a file without a
 * name. Also true for a page that another thread has just unmapped: then no
 * file is known. As in GUP-fast, the reference is valid only if the page is
 * still mapped after it was taken. An inode is freed after an RCU grace
 * period, which cannot end while interrupts are off.
 */
bool rust_stepping_is_generated(unsigned long at)
{
	struct address_space *mapping;
	bool is_generated = true;
	struct folio *folio;
	unsigned long flags;
	unsigned long pfn, now;

	local_irq_save(flags);
	if (!find_code(at, &pfn) || !pfn_valid(pfn))
		goto out;
	folio = page_folio(pfn_to_page(pfn));
	if (!folio_try_get(folio))
		goto out;
	if (find_code(at, &now) && now == pfn &&
	    page_folio(pfn_to_page(pfn)) == folio && !folio_test_anon(folio)) {
		mapping = READ_ONCE(folio->mapping);
		is_generated = folio_test_swapbacked(folio) &&
			       (!mapping || !mapping->host ||
				!mapping->host->i_nlink);
	}
	folio_put(folio);
out:
	local_irq_restore(flags);
	return is_generated;
}

/* The number of the current task's address space. It is never reused. */
unsigned long long rust_stepping_space(void)
{
	return current->mm ? current->mm->context.ctx_id : 0;
}

/*
 * The number of TLB flushes of the current task's address space. A CPU
 * increments it, in inc_mm_tlb_gen(), before it waits for the CPUs that use
 * the address space.
 */
u64 rust_stepping_generation(void)
{
	return current->mm ? atomic64_read(&current->mm->context.tlb_gen) : 0;
}

/* Reads @words words of text; false if an access faults. */
bool rust_stepping_text(unsigned long from, u64 *to, unsigned int words)
{
	const u64 __user *src = (const u64 __user *)from;
	unsigned int i;
	u64 value;

	if (!user_access_begin(src, words * sizeof(*src)))
		return false;
	for (i = 0; i < words; i++) {
		unsafe_get_user(value, src + i, fault);
		to[i] = value;
	}
	user_access_end();
	return true;
fault:
	user_access_end();
	return false;
}

/*
 * Whether the text at @at is these @count words, of which there is at least
 * one. In the first and in the last word only the bits of the masks are
 * compared.
 */
bool rust_stepping_has_text(unsigned long at, const u64 *words,
			    unsigned int count, u64 first, u64 last)
{
	const u64 __user *src = (const u64 __user *)at;
	const u64 *end = words + count - 1;
	u64 differs, value, next;

	src = masked_user_access_begin(src);
	unsafe_get_user(value, src, fault);
	value = (value ^ *words) & first;
	differs = 0;
	/* Two words in each round. */
	while (words + 2 <= end) {
		differs |= value;
		unsafe_get_user(value, src + 1, fault);
		unsafe_get_user(next, src + 2, fault);
		differs |= value ^ words[1];
		value = next ^ words[2];
		src += 2;
		words += 2;
	}
	if (words != end) {
		differs |= value;
		unsafe_get_user(value, src + 1, fault);
		value ^= words[1];
	}
	user_access_end();
	return !(differs | (value & last));
fault:
	user_access_end();
	return false;
}

/* The base of fs in the current task's user code. Interrupts are off. */
unsigned long rust_stepping_fs_base(void)
{
	return x86_fsbase_read_cpu();
}

bool rust_stepping_has(enum rust_stepping_feature feature)
{
	switch (feature) {
	case RUST_STEPPING_POPCNT:
		return boot_cpu_has(X86_FEATURE_POPCNT);
	case RUST_STEPPING_BMI1:
		return boot_cpu_has(X86_FEATURE_BMI1);
	case RUST_STEPPING_BMI2:
		return boot_cpu_has(X86_FEATURE_BMI2);
	case RUST_STEPPING_MOVBE:
		return boot_cpu_has(X86_FEATURE_MOVBE);
	}
	return false;
}
