#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# Loads the modules, which runs their KUnit suites, and reports the results as one document. That insmod ends well says
# nothing about the cases; that a result line below follows says only that its suite was read to the end.
dir=/sys/kernel/debug/kunit
auxload || exit 1
set -- "$dir"/*/results
[ -e "$1" ] || set --
echo "KTAP version 1"
echo "1..$#"
n=0
for results; do
	n=$((n + 1))
	name=${results%/results}
	echo "  # Subtest: ${name##*/}"
	sed 's/^/  /' "$results"
	echo "ok $n - ${name##*/}"
done
