// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that a driver allocates for an AUX area, charged to the user who maps
 * the area.
 */

#include "helpers.h"

#include <linux/capability.h>
#include <linux/cpumask.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>

/*
 * The default of perf_event_mlock_kb, in pages. The variable itself is private
 * to perf's core.
 */
#define MLOCK	((512 + (PAGE_SIZE / 1024)) >> (PAGE_SHIFT - 10))

struct rust_perf_charge {
	struct user_struct *user;
	struct mm_struct *mm;
	/* Pages charged to user->perf_mlock, and pages charged to mm->pinned_vm. */
	unsigned long locked;
	unsigned long pinned;
};

/*
 * Charges @pages pages as perf_mmap_calc_limits() and perf_mmap_account() do:
 * first to the user's allowance, the rest to RLIMIT_MEMLOCK. @ring is the number
 * of pages of the AUX area, which perf charges later. Each counter is raised
 * before it is compared, so that two threads together cannot exceed the limit.
 * Returns NULL for a kernel thread.
 */
struct rust_perf_charge *rust_perf_charge(unsigned long pages, unsigned long ring)
{
	unsigned long allowance = MLOCK * num_online_cpus();
	struct rust_perf_charge *charge;
	unsigned long before, free;
	u64 pinned;

	if (!current->mm)
		return NULL;

	charge = kzalloc(sizeof(*charge), GFP_KERNEL);
	if (!charge)
		return ERR_PTR(-ENOMEM);

	charge->user = get_uid(current_user());
	charge->mm = current->mm;
	mmgrab(charge->mm);

	before = atomic_long_add_return(pages, &charge->user->perf_mlock) - pages + ring;
	free = allowance > before ? allowance - before : 0;
	charge->locked = min(pages, free);
	charge->pinned = pages - charge->locked;
	atomic_long_sub(charge->pinned, &charge->user->perf_mlock);

	pinned = atomic64_add_return(charge->pinned, &charge->mm->pinned_vm);
	/* perf charges the part of the AUX area beyond the allowance to the same limit. */
	pinned += before > allowance ? min(before - allowance, ring) : 0;
	if (charge->pinned && pinned > rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT &&
	    !capable(CAP_IPC_LOCK)) {
		rust_perf_uncharge(charge);
		return ERR_PTR(-EPERM);
	}
	return charge;
}

/* May be called from any task. The task that was charged may have exited. */
void rust_perf_uncharge(struct rust_perf_charge *charge)
{
	if (!charge)
		return;

	atomic_long_sub(charge->locked, &charge->user->perf_mlock);
	atomic64_sub(charge->pinned, &charge->mm->pinned_vm);
	free_uid(charge->user);
	mmdrop(charge->mm);
	kfree(charge);
}
