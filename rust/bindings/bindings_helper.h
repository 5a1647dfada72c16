/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The C headers that the framework needs and that the kernel's own bindings do
 * not cover.
 */

#include <linux/perf_event.h>

#include "../helpers/helpers.h"
