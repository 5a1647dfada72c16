#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# Loads the driver of the template: it must be registered, and where the kernel has KUnit its suite must have run.
auxload || exit 1
results=/sys/kernel/debug/kunit/blink/results
n=1
[ ! -d /sys/kernel/debug/kunit ] || n=2
echo "KTAP version 1"
echo "1..$n"
if [ -d /sys/bus/event_source/devices/blink ]; then
	echo "ok 1 - registered"
else
	echo "not ok 1 - registered"
fi
if [ "$n" = 2 ]; then
	echo "  # Subtest: blink"
	sed 's/^/  /' "$results"
	echo "ok 2 - blink"
fi
