#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash
#
# load NAME OPTION…: runs stress-ng with perf's counters. NAME.said gets its output and its exit status.
name=$1
shift
"$STRESS_NG" --perf --no-rand-seed --temp-path /tmp "$@" >"/out/$name.said" 2>&1
status=$?
echo "status $status" >>"/out/$name.said"
exit $status
