#!/usr/bin/env bash
# Installs the library, moves the tree (nothing in it may know where it was), and builds and runs programs against it.
#   install.sh BUILD_DIR CASE, with CASE setup, pkgconfig, pkgconfig-static or a value of CONSUMER in consumer/
# CC, CXX, MPICC and MPICXX come from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$1
case=$2
scratch=$build/install-test
prefix=$scratch/moved
dir=$scratch/$case

fail() {
    printf 'install test %s: %s\n' "$case" "$*" >&2
    exit 1
}

run_on_two() { # both ranks must say that they are one of two
    local out
    out=$("$root/scripts/mpirun" --build "$build" -n 2 timeout 300 "$@") || fail "the program failed: $out"
    printf '%s\n' "$out"
    [ "$(grep -c '^consumer: rank [01] of 2' <<<"$out")" -eq 2 ] || fail "two ranks should have reported"
}

cmake_project() {
    cmake -S "$here/consumer" -B "$dir" -DCONSUMER="$case" -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" -DMPI_C_COMPILER="$MPICC" -DMPI_CXX_COMPILER="$MPICXX" -DDTR_SOURCE="$root" \
        -DCMAKE_BUILD_TYPE= >"$dir.log" 2>&1 || { cat "$dir.log"; fail "configuring failed"; }
}

library_folder() { # where the .pc file lies
    dirname "$(find "$prefix" -name dtr.pc)"
}

rm -rf "$dir"
mkdir -p "$scratch"
case $case in
    setup)
        rm -rf "$prefix" "$scratch/prefix"
        cmake --install "$build" --prefix "$scratch/prefix" >"$dir.log"
        mv "$scratch/prefix" "$prefix"
        # Debug information may name source files; text files may not name any folder of this machine.
        if grep -rIl -e "$root" -e "$build" "$prefix"; then
            fail "the files above name the source or build folder"
        fi
        ;;
    pkgconfig)
        mkdir -p "$dir"
        PKG_CONFIG_PATH=$(library_folder)
        export PKG_CONFIG_PATH
        pkg-config --exists 'dtr >= 0.1' || fail "pkg-config does not find dtr"
        read -ra cflags <<<"$(pkg-config --cflags dtr)"
        read -ra libs <<<"$(pkg-config --libs dtr)"
        "$CC" -std=c11 "${cflags[@]}" "$here/consumer/sum.c" -o "$dir/consumer" "${libs[@]}"
        LD_LIBRARY_PATH=$(pkg-config --variable=libdir dtr) run_on_two "$dir/consumer"
        ;;
    pkgconfig-static)
        mkdir -p "$dir"
        PKG_CONFIG_PATH=$(library_folder)
        export PKG_CONFIG_PATH
        read -ra cflags <<<"$(pkg-config --cflags dtr)"
        read -ra libs <<<"$(pkg-config --libs --static dtr)"
        "$CC" -std=c11 "${cflags[@]}" "$here/consumer/sum.c" -o "$dir/consumer" "${libs[@]/#-ldtr/-l:libdtr.a}"
        if ldd "$dir/consumer" | grep libdtr; then fail "links the shared library"; fi
        run_on_two "$dir/consumer"
        ;;
    refused | subproject)
        cmake_project
        ;;
    *)
        cmake_project
        cmake --build "$dir" >>"$dir.log" 2>&1 || { cat "$dir.log"; fail "building failed"; }
        uses=$(ldd "$dir/consumer" | grep -c libdtr.so || true)
        case $case in
            static*) [ "$uses" -eq 0 ] || fail "links the shared library" ;;
            *) [ "$uses" -eq 1 ] || fail "does not link the shared library" ;;
        esac
        run_on_two "$dir/consumer"
        ;;
esac
if [ "$case" = setup ] && [ -x "$prefix/bin/dtr-info" ]; then
    "$prefix/bin/dtr-info" --help >/dev/null || fail "the installed dtr-info does not start"
fi
