#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=dash source=/dev/null
#
# Process 1 of the interactive guest: the build root under a layer of memory, with our modules loaded.

/bin/busybox mkdir -p /proc /sys /tmp /lower /upper /new
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /guest-modules/*.ko; do
	[ -e "$module" ] && insmod "$module"
done
auxload >/dev/hvc0 2>&1
mount -t virtiofs -o ro root /lower
mount -t tmpfs upper /upper
mkdir /upper/changes /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work overlay /new || exec sh </dev/hvc0 >/dev/hvc0 2>&1
mkdir -p /new/usr/local/bin
for program in auxrec auxe2e; do
	[ -e /bin/$program ] && cp /bin/$program /new/usr/local/bin/
done
cp -r /modules /new/modules
for applet in mount umount; do # which the build root has not
	ln -s /bin/busybox /new/usr/local/bin/$applet
done
# The build root's own mounts of these are another machine's.
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs tmp /new/tmp
mount -t debugfs debug /new/sys/kernel/debug
mount -t tracefs trace /new/sys/kernel/tracing
. /etc/environment
cat >/new/tmp/profile <<'END'
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PS1='guest:\w# '
cd /tmp
echo "Modules are in /modules and loaded; the checkout is $AUXPMU_CHECKOUT. Try: auxrec list"
END
TERM=${TERM:-linux} setsid -c chroot /new /bin/bash --rcfile /tmp/profile -i </dev/hvc0 >/dev/hvc0 2>&1
poweroff -f
