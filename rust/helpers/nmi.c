// SPDX-License-Identifier: GPL-2.0
/*
 * NMI handlers on x86. The kernel passes no private data to an NMI handler, so
 * one handler calls all of the framework's.
 */

#include "helpers.h"

#ifdef CONFIG_X86_LOCAL_APIC

#include <linux/mutex.h>
#include <linux/rculist.h>
#include <asm/apic.h>
#include <asm/nmi.h>

static LIST_HEAD(handlers);
static DEFINE_MUTEX(handlers_lock);

/* Runs under rcu_read_lock(). Returns the number of handlers that handled the NMI. */
static int local_nmi(unsigned int type, struct pt_regs *regs)
{
	struct rust_perf_nmi *nmi;
	int handled = NMI_DONE;

	list_for_each_entry_rcu(nmi, &handlers, node)
		handled += nmi->handle(nmi);
	return handled;
}

int rust_perf_nmi_add(struct rust_perf_nmi *nmi)
{
	int error = 0;

	mutex_lock(&handlers_lock);
	if (list_empty(&handlers))
		error = register_nmi_handler(NMI_LOCAL, local_nmi, 0, "rust_perf");
	if (!error) {
		nmi->added = true;
		list_add_rcu(&nmi->node, &handlers);
	}
	mutex_unlock(&handlers_lock);
	return error;
}

/* The owner and the module notifier may both remove a handler. */
static void remove(struct rust_perf_nmi *nmi)
{
	if (!nmi->added)
		return;
	nmi->added = false;
	list_del_rcu(&nmi->node);
	if (list_empty(&handlers))
		unregister_nmi_handler(NMI_LOCAL, "rust_perf");
}

/* When this returns, the handler does not run any more. */
void rust_perf_nmi_del(struct rust_perf_nmi *nmi)
{
	mutex_lock(&handlers_lock);
	remove(nmi);
	mutex_unlock(&handlers_lock);
	synchronize_rcu();
}

/* Removes the handlers that a module has left registered when its exit function returned. */
void rust_perf_nmi_module_going(struct module *module)
{
	struct rust_perf_nmi *nmi, *next;

	mutex_lock(&handlers_lock);
	list_for_each_entry_safe(nmi, next, &handlers, node) {
		if (nmi->module == module)
			remove(nmi);
	}
	mutex_unlock(&handlers_lock);
	synchronize_rcu();
}

#ifdef CONFIG_KUNIT
/* Sends an NMI to this CPU. */
void rust_perf_nmi_raise(void)
{
	preempt_disable();
	__apic_send_IPI_mask(cpumask_of(smp_processor_id()), NMI_VECTOR);
	preempt_enable();
}
#endif

#endif
