/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The C headers that this crate needs and that the kernel's own bindings do
 * not cover.
 */

#include "helpers.h"
