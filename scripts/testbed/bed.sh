# A bed of hosts out of network namespaces, joined by a switch: shared by run and slurm in this folder.
# shellcheck shell=bash
# To be sourced under `set -euo pipefail`; `here` is this folder. The script that sources it sets `hosts`, and may set `rate` and
# `ipv6`, before it calls bed_build.
# shellcheck source=scripts/lib.sh
. "$here/../lib.sh"

# Seen inside the beds only, so that all can have the same; a host's number is added.
SUBNET=10.77.0.
PREFIX=24
SKIP=77
rate=
ipv6=false

cannot() {
    printf '%s: skipped: %s\n' "$DTR_ME" "$*" >&2
    exit "$SKIP"
}

bed_can() { # end with the reason where no bed can be built
    local tool
    for tool in ip unshare taskset; do
        command -v "$tool" >/dev/null || cannot "no command $tool (Debian packages iproute2 and util-linux)"
    done
    [ -z "$rate" ] || command -v tc >/dev/null || cannot "no command tc (Debian package iproute2)"
    [ "$(id -u)" -eq 0 ] || cannot "hosts are network namespaces, which only root can make; this is $(id -un)"
    unshare --uts true 2>/dev/null || cannot "this machine does not allow host names of their own (unshare --uts)"
    if $ipv6 && [ "$(cat /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || echo 1)" -ne 0 ]; then
        cannot "this machine has no IPv6"
    fi
}

# Names end in our process number: beds can stand side by side, and one whose maker was killed can be told.
bed=dtr$$
switch=${bed}sw

host() { # host I: its name, from 1
    printf '%sh%s\n' "$bed" "$1"
}

bed_remove() { # bed_remove PREFIX
    local name
    for name in $(ip netns list 2>/dev/null | sed -n "s/^\($1\(sw\|h[0-9]*\)\)\( .*\)\?$/\1/p"); do
        ip netns del "$name" 2>/dev/null || true
    done
}

bed_remove_stale() {
    local maker
    for maker in $(ip netns list 2>/dev/null | sed -n 's/^dtr\([0-9]\+\)sw\( .*\)\?$/\1/p'); do
        kill -0 "$maker" 2>/dev/null || bed_remove "dtr$maker"
    done
}

bed_shape() { # bed_shape NAMESPACE INTERFACE
    [ -z "$rate" ] || tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst 256kb latency 100ms
}

bed_add_host() { # bed_add_host I
    local name
    local -a usable_at_once=()
    ! $ipv6 || usable_at_once=(nodad)
    name=$(host "$1")
    ip netns add "$name" && ip -n "$name" link set lo up &&
        ip -n "$switch" link add "port$1" type veth peer name eth0 netns "$name" &&
        ip -n "$switch" link set "port$1" master br0 up &&
        ip -n "$name" address add "$SUBNET$1/$PREFIX" dev eth0 "${usable_at_once[@]}" && ip -n "$name" link set eth0 up &&
        bed_shape "$switch" "port$1" && bed_shape "$name" eth0
}

bed_add_hosts() {
    local i
    ip netns add "$switch" && ip -n "$switch" link add br0 type bridge && ip -n "$switch" link set br0 up || return
    for ((i = 1; i <= hosts; i++)); do
        bed_add_host "$i" || return
    done
}

# The CPUs of this process as 0,1,2: `enter` wants them.
bed_cpus() {
    local cpus='' range
    local -a ranges
    IFS=, read -ra ranges < <(taskset -cp $$ | sed 's/.*: *//')
    for range in "${ranges[@]}"; do # as 0-3,8
        cpus+=${cpus:+,}$(seq -s, "${range%-*}" "${range#*-}")
    done
    printf '%s\n' "$cpus"
}

work= # a folder that goes with the bed
# shellcheck disable=SC2317 # called by trap
bed_finish() {
    local status=$?
    trap - EXIT INT TERM HUP
    bed_end || true
    bed_remove "$bed"
    rm -rf "$work"
    exit "$status"
}

# Build it, and remove it when this script ends or a signal comes, after its `bed_end`.
bed_build() {
    work=$(mktemp -d)
    trap bed_finish EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    bed_remove_stale
    bed_add_hosts 2>"$work/why" ||
        cannot "this machine does not let network namespaces be made: $(head -n 1 "$work/why")"
}
