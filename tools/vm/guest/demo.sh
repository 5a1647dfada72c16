#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# The demonstration: records a workload that runs on both processors, with the recorder stopped for a while in the middle
# so that the rings fill, then checks and draws what was recorded. Then a program whose every instruction is traced.
busy() {
	end=$(($(date +%s) + 4))
	while [ "$(date +%s)" -lt $end ]; do
		sha256sum /bin/busybox >/dev/null
	done
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
sleep 2
kill -STOP $recorder
sleep 1
kill -CONT $recorder
wait $recorder
status=$?
# 3 says that trace was lost, which is what the stop is for.
[ $status = 3 ] || {
	echo "auxrec record ended with status $status, not with 3"
	exit 1
}
auxrec check /tmp/perf.data >/out/check.txt 2>&1
status=$?
cat /out/check.txt
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
