/* SPDX-License-Identifier: GPL-2.0 */
/* What Linux 6.1 lacks, for c_pattern.c. */
#ifndef C_OLD_H
#define C_OLD_H

#include <linux/hrtimer.h>
#include <linux/perf_event.h>
#include <linux/slab.h>
#include <linux/version.h>

/* Events cannot be paused. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define PERF_PMU_CAP_AUX_PAUSE	0
#define PERF_EF_PAUSE		0
#define PERF_EF_RESUME		0
#define c_aux_paused(event)	false
#else
#define c_aux_paused(event)	READ_ONCE((event)->hw.aux_paused)
#endif

/* perf_event_attr ends at sig_data: perf's core refuses what follows. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
#define c_config3(event)	0
#else
#define c_config3(event)	((event)->attr.config3)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*function)(struct hrtimer *timer),
				 clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = function;
}
#endif

#ifndef kzalloc_obj
#define kzalloc_obj(object)	kzalloc(sizeof(object), GFP_KERNEL)
#endif

#ifndef __counted_by
#define __counted_by(member)
#endif

#endif /* C_OLD_H */
