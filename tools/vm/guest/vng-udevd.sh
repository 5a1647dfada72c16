#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# In place of udevd, under virtme-ng: names the ports that its init talks through. That is all it needs of udev, and the
# real one needs more of a kernel than the lean one has.
mkdir -p /dev/virtio-ports
for port in /sys/class/virtio-ports/*; do
	ln -sf "../${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"
done
