// SPDX-License-Identifier: GPL-2.0
/*
 * Keeps registrations sound whatever their drivers do with them. It records
 * - which tasks run a callback: a registration that is dropped in a callback is
 *   unregistered later;
 * - all registrations: those that a module has left behind are unregistered
 *   before its text is freed.
 */

#include "helpers.h"

#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

static LIST_HEAD(inside);
static DEFINE_RAW_SPINLOCK(inside_lock);

/* Records that the current task calls a callback that may sleep. */
void rust_perf_enter_callback(struct rust_perf_callback *callback)
{
	unsigned long flags;

	callback->task = current;
	raw_spin_lock_irqsave(&inside_lock, flags);
	list_add(&callback->node, &inside);
	raw_spin_unlock_irqrestore(&inside_lock, flags);
}

void rust_perf_leave_callback(struct rust_perf_callback *callback)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&inside_lock, flags);
	list_del(&callback->node);
	raw_spin_unlock_irqrestore(&inside_lock, flags);
}

/* Whether the current task may sleep and does not run a callback. */
bool rust_perf_may_unregister(void)
{
	struct rust_perf_callback *callback;
	bool may = true;
	unsigned long flags;

	if (!rust_perf_may_sleep())
		return false;

	raw_spin_lock_irqsave(&inside_lock, flags);
	list_for_each_entry(callback, &inside, node) {
		if (callback->task == current) {
			may = false;
			break;
		}
	}
	raw_spin_unlock_irqrestore(&inside_lock, flags);
	return may;
}

static LIST_HEAD(registrations);
static DEFINE_MUTEX(registrations_lock);

void rust_perf_registry_add(struct rust_perf_registration *registration)
{
	mutex_lock(&registrations_lock);
	list_add(&registration->node, &registrations);
	mutex_unlock(&registrations_lock);
}

void rust_perf_registry_del(struct rust_perf_registration *registration)
{
	mutex_lock(&registrations_lock);
	/* module_going() may have removed it already. */
	list_del_init(&registration->node);
	mutex_unlock(&registrations_lock);
}

/* Claims the right to end the registration. Returns false if it is claimed already. */
bool rust_perf_registration_claim(struct rust_perf_registration *registration)
{
	return !atomic_xchg(&registration->ending, 1);
}

/*
 * The caller holds registrations_lock. While it is held, no registration on the
 * list is freed.
 */
static struct rust_perf_registration *left_behind(struct module *module)
{
	struct rust_perf_registration *registration;

	list_for_each_entry(registration, &registrations, node) {
		if (registration->later.module == module)
			return registration;
	}
	return NULL;
}

/*
 * Runs after the exit function of a module has returned, or its init function
 * has failed, and before its text is freed. A reference to the module does not
 * delay that any more. So this waits for each registration that another task
 * ends.
 *
 * A registration with a parent device is also a devres node of that device. If
 * the driver forgets the registration, the node stays on the device's list. The
 * registration is ended only once:
 * - The module's exit function unregisters its bus drivers. driver_detach()
 *   returns when all their devices are unbound and devres_release_all() has run
 *   for them. That has ended the registration and removed it from the list.
 * - If the registration is still on the list, the parent is still bound: the
 *   driver has forgotten its driver::Registration or faux::Registration too, or
 *   another module drives the parent. This function ends the registration. The
 *   devres node stays, with a release function in the text that is about to be
 *   freed. The kernel crate has this defect for each forgotten Devres on such a
 *   device.
 */
static int module_going(struct notifier_block *block, unsigned long state,
			void *data)
{
	struct rust_perf_registration *registration;
	struct module *module = data;

	if (state != MODULE_STATE_GOING)
		return NOTIFY_DONE;

	/* Registrations that were dropped where nothing may sleep are not left behind. */
	rust_perf_later_flush();
	mutex_lock(&registrations_lock);
	while ((registration = left_behind(module))) {
		if (rust_perf_registration_claim(registration)) {
			list_del_init(&registration->node);
			mutex_unlock(&registrations_lock);
			pr_warn("rust_perf: %s leaves a registered PMU behind: unregistering it\n",
				module->name);
			registration->end(registration);
		} else {
			/* A worker ends it, or another task does. */
			mutex_unlock(&registrations_lock);
			rust_perf_later_flush();
		}
		mutex_lock(&registrations_lock);
	}
	mutex_unlock(&registrations_lock);
	/* The module's NMI handlers may leave more to workers, which run its code. */
	rust_perf_nmi_module_going(module);
	rust_perf_later_flush();
	return NOTIFY_OK;
}

static struct notifier_block module_block = {
	.notifier_call = module_going,
};

int rust_perf_registry_init(void)
{
	int err;

	err = rust_perf_later_start();
	if (err)
		return err;

	err = register_module_notifier(&module_block);
	if (err)
		rust_perf_later_end();
	return err;
}

void rust_perf_registry_exit(void)
{
	unregister_module_notifier(&module_block);
	rust_perf_later_end();
}

static void end_later(struct rust_perf_later *later)
{
	struct rust_perf_registration *registration =
		container_of(later, struct rust_perf_registration, later);

	registration->end(registration);
}

void rust_perf_registration_init(struct rust_perf_registration *registration,
				 struct module *module,
				 void (*end)(struct rust_perf_registration *registration))
{
	INIT_LIST_HEAD(&registration->node);
	rust_perf_later_init(&registration->later, module, end_later);
	atomic_set(&registration->ending, 0);
	registration->end = end;
}

/*
 * Ends the registration in a worker, unless its end is claimed already.
 *
 * If the module is being unloaded, the caller is its exit function, or a
 * callback that end() waits for.
 */
void rust_perf_registration_end_later(struct rust_perf_registration *registration)
{
	if (rust_perf_registration_claim(registration))
		rust_perf_run_later(&registration->later);
}
