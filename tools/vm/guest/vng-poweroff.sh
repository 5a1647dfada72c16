#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Under virtme-ng, whose init ends by it.
exec busybox poweroff "$@"
