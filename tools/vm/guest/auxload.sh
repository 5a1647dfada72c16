#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# Loads our modules in their order.
while read -r module; do
	insmod "/modules/$module" || {
		echo "# cannot load $module"
		exit 1
	}
done </modules/order
