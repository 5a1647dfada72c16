// SPDX-License-Identifier: GPL-2.0
/*
 * c_broken: c_pattern with one of the defects that drivers have had, to show that tools/conform
 * finds it. The parameter is the name of a C_DEFECT() of c_pattern.c; without it there is none.
 */

#include <linux/moduleparam.h>
#include <linux/string.h>

static char *defect = "";
module_param(defect, charp, 0444);
MODULE_PARM_DESC(defect, "what is wrong: a name of C_DEFECT()");

#define C_DEFECT(name)		(!strcmp(defect, #name))

#include "c_pattern.c"
