#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# Process 1 of a guest: runs /etc/command with its output on the port "ktap", sends what lies in /out, and powers off.

/bin/busybox mkdir -p /proc /sys /tmp /run /out /root
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# What is installed keeps its path, which is below /tmp where the checkout is.
[ -n "$(ls -A /tmp)" ] || mount -t tmpfs tmp /tmp
mount -t tmpfs out /out
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t debugfs debug /sys/kernel/debug
[ -d /sys/kernel/tracing ] && mount -t tracefs trace /sys/kernel/tracing
ip link set lo up 2>/dev/null
# A kernel may have the ports in a module.
for module in /guest-modules/*.ko; do
	[ -e "$module" ] && insmod "$module"
done
# A guest that writes to a port before it is there would make a plain file.
for port in /dev/vport0p1 /dev/vport0p2; do
	tries=0
	until [ -c $port ] || [ $tries = 100 ]; do
		usleep 50000
		tries=$((tries + 1))
	done
	[ -c $port ] || echo "auxvm: $port is missing" >/dev/console
done
. /etc/environment
# The harness kills a guest whose command exceeds its time limit. Shortly before, this writes the state and the stack of each
# task to the console.
if [ -n "$AUXPMU_SOON" ]; then
	{
		read -r up _ </proc/uptime
		sleep $((AUXPMU_SOON - ${up%.*}))
		grep -s . /proc/[0-9]*/task/[0-9]*/stat /proc/[0-9]*/task/[0-9]*/stack
	} >/dev/console &
fi
echo "auxvm: guest is up" >/dev/console
sh /etc/command </dev/null >/dev/vport0p1 2>&1
echo $? >/out/.status
# Where the kernel looks for memory that nobody knows of any more: what is younger than five seconds it does not tell, and
# what it finds in one scan only it may have met on its way. It and lockdep give up when they have trouble of their own.
leaks=/sys/kernel/debug/kmemleak
if [ -e $leaks ]; then
	sleep 6
	{ echo scan >$leaks && echo scan >$leaks && cat $leaks; } >/dev/console || echo "BUG: kmemleak is off" >/dev/console
fi
if [ -e /proc/lockdep_stats ]; then
	grep -q 'debug_locks: *1$' /proc/lockdep_stats || echo "BUG: lockdep is off" >/dev/console
fi
off=/sys/kernel/debug/dma-api/disabled
if [ -e $off ]; then
	grep -q N $off || echo "BUG: the checks of the DMA API are off" >/dev/console
fi
met=/sys/module/tcg_int3/parameters/met
if [ -e $met ] && [ "$(cat $met)" != 0 ]; then
	echo "auxvm: $(cat $met) breakpoints met that were no longer there" >/dev/console
fi
# A tar that fails leaves a stream without the status, which the host takes as a failure.
tar -C /out -cf - . >/dev/vport0p2
sync
poweroff -f
