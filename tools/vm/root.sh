#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the build root (a Debian system with every tool at a known version, in the cache) and runs commands in it.
# It needs mmdebstrap and user namespaces, or to be root; all that comes after it is Rust, see main.rs.
#
#   root.sh make         make the root if it is not there yet
#   root.sh run CMD…     make it, then run CMD in it, in the same directory
#   root.sh keep         in the root: keep the crates that this checkout has compiled, for new checkouts
#   root.sh path         print where it is
#   root.sh remove       remove the whole cache
set -euo pipefail

SUITE=trixie
MIRROR=${AUXPMU_MIRROR:-} # else the one that mmdebstrap knows; later the one that the root was made from
PACKAGES="ca-certificates rustc cargo rust-src rustfmt rust-clippy bindgen clang-19 lld-19 llvm-19 libclang-rt-19-dev
 gcc-14 gcc-14-x86-64-linux-gnu gcc make flex bison bc libelf-dev libssl-dev libdw-dev cpio kmod rsync python3-minimal
 xz-utils zstd dwarves busybox-static shellcheck git patch procps qemu-system-x86 qemu-system-data virtiofsd linux-perf
 e2fsprogs g++ gcc-multilib golang-go luajit sqlite3 gdb libipt-dev"
# What more programs to trace are made with, and what reads our files: no kernel is built anew for it.
PROGRAMS="ocaml pypy3 trace-cmd"
# These are too old in the suite itself: QEMU before 10.1 has no vfio-user-pci, and perf goes with the kernel.
BACKPORTS="qemu-* seabios linux-perf"
NEED_MIB=4000
DOWNLOAD_MIB=570

cache=${AUXPMU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/auxpmu}
checkout=$(cd "$(dirname "$0")/../.." && pwd -P)
hash=$(echo "$SUITE $PACKAGES $BACKPORTS 1" | sha256sum | cut -c1-12) # kernels are named by it, too
PACKAGES="$PACKAGES $PROGRAMS"
root=$cache/root-$hash-$(echo "$PROGRAMS" | sha256sum | cut -c1-6)
case ${RUNNER:-} in
"") ;;
viewers) # These are large, and only the viewers need them: they have a root of their own.
	extra="chromium-headless-shell npm python3-pip"
	PACKAGES="$PACKAGES $extra"
	root=$root-$RUNNER-$(echo "$extra" | sha256sum | cut -c1-6)
	;;
*)
	echo "auxvm: there is no build root RUNNER=$RUNNER; viewers is the only one of its own" >&2
	exit 2
	;;
esac

# What cargo has compiled here, and third-party crates that are kept. Their name is made of what they depend on: the
# compiler, the versions and the profiles.
compiled=$checkout/build/target
crates=$cache/crates-$(cat "$checkout"/tools/Cargo.{toml,lock} <(echo "$hash") | sha256sum | cut -c1-12)

die() {
	echo "error: $*" >&2
	exit 1
}

# As an ordinary user: become root of a new user namespace, with the IDs that /etc/subuid gives.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		unshare --user --map-root-user --map-auto -- "$@"
	fi
}

check_host() {
	[ "$(uname -m)" = x86_64 ] ||
		die "this machine is $(uname -m), but the build root, the kernels and the guests are x86_64: use an x86_64 machine."
	if ! command -v mmdebstrap >/dev/null || [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
		if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
			die "mmdebstrap, uidmap or debian-archive-keyring is missing: run 'apt-get install mmdebstrap uidmap debian-archive-keyring' as root."
		fi
		{ apt-get update && apt-get install -y --no-install-recommends mmdebstrap debian-archive-keyring; } >>"$log" 2>&1 ||
			failed "could not install mmdebstrap and debian-archive-keyring"
	fi
	as_root unshare --mount true 2>>"$log" ||
		die "this system does not let $(id -un) make namespaces: run as root (in a container: with CAP_SYS_ADMIN), or install uidmap, give $(id -un) a range in /etc/subuid and /etc/subgid, and allow unprivileged user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu)."
	local free
	free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
	[ "$free" -ge "$NEED_MIB" ] ||
		die "$cache has $free MiB free, and the build root needs $NEED_MIB: free some space, or set XDG_CACHE_HOME to a larger disk."
}

# failed WHAT: says why, as far as the log tells, and ends.
failed() {
	local why="see the log"
	if grep -q "No space left on device" "$log"; then
		why="the disk is full: free some space under $cache"
	elif grep -qE "Unable to locate package|no installation candidate|404  *Not Found" "$log"; then
		why="the archive lacks a package ($(grep -hoE "Unable to locate package .*|Package '?[^ ]+'? has no installation candidate|404  *Not Found.*" "$log" | head -n1)): set AUXPMU_MIRROR to a complete Debian mirror, or update auxpmu"
	elif grep -qE "resol|Failed to fetch|Could not connect|Cannot initiate|unreachable|timed out" "$log"; then
		why="cannot reach the package mirror${MIRROR:+ $MIRROR}: check the network and the proxy, or set AUXPMU_MIRROR"
	fi
	as_root rm -rf "$cache"/root-*.tmp
	die "$1: $why. The log is $log."
}

# Says each half minute how long it has taken; ends with its parent.
ticker() {
	while sleep 30 && kill -0 $$ 2>/dev/null; do echo "[${SECONDS} s] $1 …" >&2; done
}

make_root() {
	[ -e "$root" ] && return
	mkdir -p "$cache/logs" || die "cannot write $cache: set XDG_CACHE_HOME to a folder that you can write."
	(
		flock 9
		[ -e "$root" ] || make_root_locked # else another run made it meanwhile
	) 9>"$cache/root.lock"
}

make_root_locked() {
	log=$cache/logs/root.log
	: >"$log"
	check_host
	as_root rm -rf "$cache"/root-*.tmp # what an interrupted run left
	SECONDS=0
	echo "[0 s] making the build root: $DOWNLOAD_MIB MiB to download, about a minute on a fast line (log: $log)" >&2
	local tmp=$root.tmp hook proxy target tick
	# Debian's own backports go with the suite, whatever mirror mmdebstrap has written down for it.
	# shellcheck disable=SC2016 # mmdebstrap's shell is to expand $1
	hook='mkdir -p "$1/etc/apt/preferences.d"; printf "Package: %s\nPin: release n='$SUITE'-backports\nPin-Priority: 600\n" "'$BACKPORTS'" >"$1/etc/apt/preferences.d/backports"
		mirror=$(grep -hoE "https?://[^ ]+" "$1/etc/apt/sources.list" | head -n1)
		for suite in '"$SUITE $SUITE"'-backports; do
			echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
		done >"$1/etc/apt/sources.list"'
	proxy=$(apt-config dump 2>/dev/null | grep -E '^Acquire::https?::Proxy ' | head -n1 || true)
	target=$tmp
	[ "$(id -u)" = 0 ] || target=- # a tar stream: whose files they are is decided where it is unpacked
	set -- --variant=apt --components=main --setup-hook="$hook" \
		--aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' ${proxy:+--aptopt="$proxy"} \
		--include="$(xargs <<<"$PACKAGES" | tr ' ' ,)" "$SUITE" "$target" ${MIRROR:+"$MIRROR"}
	ticker "making the build root" 9>&- &
	tick=$!
	# shellcheck disable=SC2064
	trap "kill $tick 2>/dev/null || true" EXIT
	if [ "$target" = - ]; then
		mkdir -p "$tmp"
		mmdebstrap --mode=unshare "$@" 2>>"$log" 9>&- |
			as_root tar -x --numeric-owner --exclude='./dev/*' -C "$tmp" 2>>"$log" 9>&- || failed "could not make the build root"
	else
		mmdebstrap --mode=root "$@" >>"$log" 2>&1 9>&- || failed "could not make the build root"
	fi
	as_root ln -sf /run/resolv.conf /run/hosts "$tmp/etc/" # written anew by each run
	kill $tick 2>/dev/null || true
	mv -T "$tmp" "$root"
	echo "[${SECONDS} s] the build root is ready" >&2
}

# A checkout that has compiled nothing begins with the crates that another one has compiled.
take_crates() {
	[ ! -e "$compiled" ] && [ -d "$crates" ] || return 0
	mkdir -p "$checkout/build"
	(
		flock -s 9
		cp -a "$crates" "$compiled.$$.tmp" && mv -T "$compiled.$$.tmp" "$compiled"
	) 9>"$cache/crates.lock" 2>/dev/null || as_root rm -rf "$compiled.$$.tmp" # without them it only takes longer
}

# The workspace's own crates are left out, and programs.
keep_crates() {
	[ -d "$compiled" ] && [ ! -e "$crates" ] || return 0
	local rules=() member
	for member in $(awk '/^name = /{name = $3} /^source = /{name = ""} /^$/{if (name) print name; name = ""} END {if (name) print name}' "$checkout/tools/Cargo.lock" | tr -d '"'); do
		rules+=("--exclude=.fingerprint/$member-*" "--exclude=build/$member-*"
			"--exclude=deps/$(tr - _ <<<"$member")-*" "--exclude=deps/lib$(tr - _ <<<"$member")-*")
	done
	(
		flock 9
		find "$cache" -maxdepth 1 -name 'crates-*' -exec rm -rf {} + # of other versions, or interrupted
		if rsync -a --exclude=incremental/ "${rules[@]}" --include='*/' --include='deps/*.*' --include='.fingerprint/**' \
			--include='build/**' --include=.rustc_info.json --exclude='*' "$compiled/" "$crates.tmp"; then
			mv -T "$crates.tmp" "$crates"
		else
			rm -rf "$crates.tmp"
			echo "note: the compiled crates are not kept (is there room in $cache?): the next checkout compiles them anew" >&2
		fi
	) 9>"$cache/crates.lock"
}

# Inside the mount namespace: put the host's parts in place and go.
enter() {
	local d ca f
	for d in /proc /sys /dev; do mount --rbind "$d" "$root$d"; done
	mount -t tmpfs -o mode=1777 tmp "$root/tmp"
	mount -t tmpfs -o mode=755 run "$root/run"
	for d in "$cache" "$checkout"; do
		mkdir -p "$root$d"
		mount --rbind "$d" "$root$d"
	done
	for f in /etc/resolv.conf /etc/hosts; do
		[ ! -e "$f" ] || cat "$f" >"$root/run/${f##*/}"
	done
	for ca in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt; do
		if [ -f "$ca" ]; then # the host may trust more than Debian does, a company's proxy for one
			mount --bind "$ca" "$root/etc/ssl/certs/ca-certificates.crt"
			break
		fi
	done
	[ -n "$MIRROR" ] || MIRROR=$(grep -hoE 'https?://[^ ]+' "$root/etc/apt/sources.list" | head -n1)
	local keep=() v
	for v in $(compgen -e); do
		case $v in
		CI | KVER | KERNEL | RUNNER | TERM | AUXPMU_* | CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTRIES_* | CARGO_BUILD_JOBS | \
			PIP_* | NPM_CONFIG_* | npm_config_* | \
			http_proxy | https_proxy | no_proxy | all_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY | ALL_PROXY)
			[ -z "${!v}" ] || keep+=("$v=${!v}") # empty means unset
			;;
		esac
	done
	# shellcheck disable=SC2016 # the inner shell is to expand them
	exec env -i "${keep[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/lib/llvm-19/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt AUXPMU_CACHE="$cache" AUXPMU_CHECKOUT="$checkout" \
		AUXPMU_ROOT_HASH="$hash" AUXPMU_MIRROR="$MIRROR" \
		CARGO_HOME="$cache/cargo" CARGO_TARGET_DIR="$checkout/build/target" \
		chroot "$root" /bin/bash -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
}

case ${1:-} in
make) make_root ;;
keep) keep_crates ;;
path) echo "$root" ;;
remove) as_root rm -rf "$cache" ;;
run)
	make_root
	take_crates
	shift
	mkdir -p "$cache"
	if [ "$(id -u)" = 0 ]; then
		exec unshare --mount -- "$0" enter "$@"
	fi
	exec unshare --user --map-root-user --map-auto --mount -- "$0" enter "$@"
	;;
enter)
	shift
	enter "$@"
	;;
*) die "usage: ${0##*/} make | path | keep | remove | run COMMAND…" ;;
esac
