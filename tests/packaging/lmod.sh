#!/usr/bin/env bash
# The module file under Lmod, in a shell of its own: lmod.sh PREFIX VERSION, with LMOD_INIT from the environment.
set -eo pipefail # Lmod's functions read variables that are not set
prefix=$1
version=$2
modules=$prefix/share/modulefiles

fail() {
    printf 'lmod: %s\n' "$*" >&2
    exit 1
}

cd "$prefix"
unset MANPATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH MODULEPATH
export LD_LIBRARY_PATH=/opt/other/lib PATH=/usr/local/bin:/usr/bin:/bin # Lmod drops what stands twice
# shellcheck source=/dev/null
. "$LMOD_INIT"
module use "$modules"
before=$(env | grep -E '^(PATH|MANPATH|PKG_CONFIG_PATH|CMAKE_PREFIX_PATH|LD_LIBRARY_PATH|DTR_[A-Z]*)=' | sort)

module load dtr
libdir=$(dirname "$(find "$prefix" -name libdtr.so)")
[ "$(command -v dtr-info)" = "$prefix/bin/dtr-info" ] || fail "PATH=$PATH"
[ -z "${MANPATH-}" ] || fail "MANPATH=$MANPATH hides the system's manual pages"
[ "$LD_LIBRARY_PATH" = "$libdir:/opt/other/lib" ] || fail "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
[ "$PKG_CONFIG_PATH" = "$libdir/pkgconfig" ] || fail "PKG_CONFIG_PATH=$PKG_CONFIG_PATH"
[ "$CMAKE_PREFIX_PATH" = "$prefix" ] || fail "CMAKE_PREFIX_PATH=$CMAKE_PREFIX_PATH"
[ "$(pkg-config --modversion dtr)" = "$version" ] || fail "pkg-config does not find dtr $version"
dtr-bench --version | grep "^dtr $version" >/dev/null || fail "dtr-bench does not start" # it needs the library
if command -v man >/dev/null; then
    mkdir -p share/man/man1
    echo '.TH dtr-try 1' >share/man/man1/dtr-try.1
    [ "$(man -w dtr-try)" = "$prefix/share/man/man1/dtr-try.1" ] || fail "man does not look in share/man"
fi
module list 2>&1 | grep "dtr/$version" >/dev/null || fail "not in the list"
module help dtr 2>&1 | grep 'Distributed Tensor Runtime' >/dev/null || fail "no help"
module whatis dtr 2>&1 | grep "Version: $version" >/dev/null || fail "no whatis"

# Another version takes the place of this one, or is refused where the site wants that.
cp "$modules/dtr/$version.lua" "$modules/dtr/0.0.1.lua"
if LMOD_DISABLE_SAME_NAME_AUTOSWAP=yes module load dtr/0.0.1 >refused 2>&1; then
    fail "a second version was loaded beside the first"
fi
[ -s refused ] || fail "refused without a word"
module unload dtr
after=$(env | grep -E '^(PATH|MANPATH|PKG_CONFIG_PATH|CMAKE_PREFIX_PATH|LD_LIBRARY_PATH|DTR_[A-Z]*)=' | sort)
[ "$before" = "$after" ] || fail "unloading left
$after
and before it was
$before"

# Where MANPATH is used, man needs it.
export MANPATH=/opt/other/man:
module load dtr
[[ $MANPATH == "$prefix/share/man:/opt/other/man:"* ]] || fail "MANPATH=$MANPATH"
module unload dtr
[[ $MANPATH == /opt/other/man:* ]] || fail "unloading left MANPATH=$MANPATH"

# Copied away, it says what to do.
mkdir -p elsewhere/dtr
cp "$modules/dtr/$version.lua" elsewhere/dtr
module unuse "$modules"
module use "$prefix/elsewhere"
if module load dtr >away 2>&1; then fail "a copy without an installation was loaded"; fi
tr '\n' ' ' <away | grep 'copied away from its installation' >/dev/null || fail "says: $(cat away)"
sed -i "s|^local prefix = .*|local prefix = \"$prefix\"|" elsewhere/dtr/*.lua
module load dtr
[ "$(command -v dtr-info)" = "$prefix/bin/dtr-info" ] || fail "the copy with a folder sets PATH=$PATH"
echo "lmod: loaded, refused beside another, unloaded without a trace; a copy names its folder"
