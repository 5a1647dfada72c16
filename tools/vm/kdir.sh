#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# kdir.sh FOLDER: whether modules in Rust can be built against this kernel, with the tools of this machine. Silent if so.
set -eu
kdir=$1
rustc=${RUSTC:-rustc}

die() {
	echo "error: $*" >&2
	exit 1
}

if [ ! -f "$kdir/.config" ] || [ ! -f "$kdir/Makefile" ]; then
	die "$kdir is no configured kernel: KDIR must name the folder that the kernel was built in (it holds .config and Makefile)."
fi
grep -q '^CONFIG_RUST=y' "$kdir/.config" ||
	die "the kernel in $kdir has no CONFIG_RUST=y: build one with it (see Documentation/rust/quick-start.rst of the kernel)."
release=$(cat "$kdir/include/config/kernel.release" 2>/dev/null || echo 0)
case $release in
[0-6].* | 7.[0-2] | 7.[0-2][!0-9]*)
	die "the kernel in $kdir is $release: the first whose kernel crate has what the framework builds on is 7.3." ;;
esac
[ -e "$kdir/rust/libkernel.rmeta" ] ||
	die "the kernel in $kdir has no Rust metadata (rust/libkernel.rmeta): run 'make prepare modules_prepare' there; packages of kernel headers seldom hold it."
want=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"$/\1/p' "$kdir/.config")
have=$("$rustc" --version 2>/dev/null) ||
	die "there is no $rustc: the kernel in $kdir wants '$want' (name it with RUSTC=)."
[ "$have" = "$want" ] ||
	die "the kernel in $kdir was built with '$want', but $rustc is '$have', and Rust metadata fits only its own compiler: put that one in PATH, or name it with RUSTC=."
