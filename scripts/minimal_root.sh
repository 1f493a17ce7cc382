# A minimal Debian to try things in as on a machine with nothing installed: shared by fresh and packaging/try.
# shellcheck shell=bash
# To be sourced after lib.sh. The caller sets `cache`, the folder of what is kept between runs:
# shellcheck disable=SC2154

cannot() {
    dtr_say "skipped: $*"
    exit 77
}

minimal_check() { # ends the script with 77 where this machine does not allow it
    [ "$(id -u)" -eq 0 ] || cannot "changing the root needs root, and this is $(id -un)"
    command -v apt-get >/dev/null || cannot "this system has no apt"
    unshare --mount --pid --fork chroot / true 2>/dev/null || cannot "mount and process namespaces are not allowed here"
}

sources() { # the files that name this machine's apt sources
    find /etc/apt/sources.list /etc/apt/sources.list.d -type f \( -name '*.list' -o -name '*.sources' \) -size +0 2>/dev/null
}

# What apt has been told of the network here: proxies, limits, certificates. Its other settings are this machine's own.
network() {
    apt-config dump | grep -E '^Acquire::' | grep -Ev '^Acquire::(IndexTargets|Languages|GzipIndexes|CompressionTypes)'
}

take_over_apt() { # take_over_apt ROOT: names, keys, passwords and certificates as here
    local path
    for path in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/apt/auth.conf /etc/apt/auth.conf.d \
        /etc/apt/preferences.d /etc/apt/keyrings /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d /usr/share/keyrings \
        /etc/apt/sources.list /etc/apt/sources.list.d; do
        [ -e "$path" ] || continue
        mkdir -p "$1$(dirname "$path")"
        rm -rf "$1$path"
        cp -aL "$path" "$1$path"
    done
    cp "$cache/apt.conf" "$1/etc/apt/apt.conf.d/90host"
}

make_system() { # into $system
    local suite work
    local -a from
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME-}")
    [ -n "$suite" ] || dtr_die 2 "/etc/os-release has no VERSION_CODENAME: which Debian is this?"
    dtr_say "making a minimal $suite"
    mapfile -t from < <(sources)
    work=$(mktemp -d "$cache/making.XXXXXX")
    if command -v mmdebstrap >/dev/null; then
        mmdebstrap --quiet --variant=apt --aptopt="$cache/apt.conf" "$suite" "$work/root" "${from[@]}"
    else
        # shellcheck disable=SC2016 # apt's own names
        debootstrap --variant=minbase "$suite" "$work/root" \
            "$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Suite: $suite" | head -n 1)"
    fi >"$cache/make.log" 2>&1 || {
        tail -n 20 "$cache/make.log" >&2
        rm -rf "$work"
        dtr_die 2 "the minimal system could not be made, see above; the whole log is $cache/make.log"
    }
    take_over_apt "$work/root"
    rm -rf "$work/root/var/cache/apt/archives"/*.deb
    tar -C "$work/root" -cf "$work/system.tar" .
    mv "$work/system.tar" "$system"
    rm -rf "$work"
}

minimal_system() { # minimal_system yes|no: makes the system that runs begin with, where there is none, or again (yes)
    dtr_require mmdebstrap:command:mmdebstrap:debootstrap
    mkdir -p "$cache/archives/partial"
    exec 9>"$cache/lock"
    flock -n 9 || dtr_die 2 "another run uses $cache; give this one another --cache"
    system=$cache/system.tar
    network >"$cache/apt.conf" || true
    if [ "$1" = yes ] || [ ! -f "$system" ]; then
        make_system
    fi
}

minimal_root() { # unpacks the system into $root, which goes when the script ends, with an ordinary user `stranger`
    run=$(mktemp -d "$cache/run.XXXXXX")
    trap 'rm -rf --one-file-system "$run"' EXIT
    trap 'exit 130' INT TERM
    root=$run/root
    mkdir "$root"
    tar -C "$root" -xpf "$system"
    take_over_apt "$root"
    inside root useradd --create-home --shell /bin/bash stranger
}

# inside USER COMMAND...: in the system, with the usual mounts and a /dev/shm of its own. Mounts and processes belong to
# namespaces that end with the command.
inside() {
    local user=$1 home=/root
    [ "$user" = root ] || home=/home/$user
    shift
    # shellcheck disable=SC2016 # expanded inside
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        mount --bind "$1" "$1" # a root that is a mount, as the beds of several hosts want it
        mount -t proc proc "$1/proc"
        mount --rbind /sys "$1/sys"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
        mount --bind "$2" "$1/var/cache/apt/archives"
        root=$1
        shift 2
        exec chroot "$root" env -i "$@"' inside "$root" "$cache/archives" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" LANG=C.UTF-8 \
        http_proxy="${http_proxy-}" https_proxy="${https_proxy-}" no_proxy="${no_proxy-}" \
        setpriv --reuid="$user" --regid="$user" --init-groups "$@" </dev/null
}
