#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# The demonstration: records a workload that runs on both processors, with the recorder stopped in the middle until the
# rings are full, then checks and draws what was recorded. Then a program whose every instruction is traced.
busy() {
	while ! [ -e /tmp/enough ]; do
		sha256sum /bin/busybox >/dev/null
	done
}

# Waits until the recording has so many bytes, or has ended.
recorded() {
	while kill -0 $recorder && [ "$(stat -c %s /tmp/perf.data 2>/dev/null || echo 0)" -lt "$1" ]; do
		usleep 50000
	done
}

lost() {
	cat /sys/kernel/debug/perf-pattern/lost_no_space
}

if [ "${1:-}" = work ]; then
	for cpu in 0 1; do
		taskset -p $((cpu + 1)) $$ >/dev/null
		busy &
	done
	wait
	exit
fi

auxload || exit 1
auxrec record -e pattern/rate=2048,seed=7/ -m 64K,256K -o /tmp/perf.data -- /bin/demo work &
recorder=$!
recorded 3000000
before=$(lost)
kill -STOP $recorder
while [ "$(lost)" = "$before" ]; do
	usleep 50000
done
kill -CONT $recorder
recorded 6000000
touch /tmp/enough
wait $recorder
status=$?
# 3 says that trace was lost, which is what the stop is for.
[ $status = 3 ] || {
	echo "auxrec record ended with status $status, not with 3"
	exit 1
}
auxrec check /tmp/perf.data || [ $? = 3 ] || exit 1
# Every byte, by what the tests know of the unit.
auxe2e check /tmp/perf.data >/out/check.txt 2>&1
status=$?
tail -n1 /out/check.txt
auxrec report /tmp/perf.data --svg /out/timeline.svg >/out/report.txt || exit 1
cp /tmp/perf.data /out/perf.data || exit 1
[ $status = 0 ] || [ $status = 3 ] || exit 1

# Every instruction of a program that is as Debian has built it.
# shellcheck disable=SC2016 # it is perl's
auxrec record -e soft_pt//u -m 64K,16M -o /out/perl.data -- /usr/bin/perl -e '
	my %count;
	$count{length($_)}++ for map { "x" x ($_ * 7 % 17) } 1 .. 1000;
	print "$_ $count{$_}\n" for sort { $count{$a} <=> $count{$b} or $a <=> $b } keys %count;
'
