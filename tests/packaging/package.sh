#!/usr/bin/env bash
# Makes the packages of a build and looks at them.
#   package.sh BUILD_DIR CASE, with CASE as in CMakeLists.txt
# The packages have a build folder of their own beside BUILD_DIR, where a compiler cache finds the same paths.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$1
case=$2
made=$build-packages
scratch=$made/test
dir=$scratch/$case
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")

fail() {
    printf 'package test %s: %s\n' "$case" "$*" >&2
    exit 1
}

skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

needs() { # needs PACKAGE COMMAND...
    local package=$1 command
    shift
    for command in "$@"; do
        command -v "$command" >/dev/null || skip "there is no $command (Debian: $package)"
    done
}

unpacked() { # the packages, laid out in a folder as they would be in the system
    local package
    rm -rf "$dir"
    mkdir -p "$dir"
    for package in "$made"/packages/*.deb; do
        dpkg-deb --extract "$package" "$dir"
    done
}

consumer() { # consumer WAY: a foreign project built against the unpacked packages, on two ranks
    local libdir out
    unpacked
    cp -r "$here/consumer" "$scratch/$case/project"
    cp "$root/tests/install/consumer/sum.c" "$scratch/$case/project"
    libdir=$(dirname "$(find "$dir" -name libdtr.so)")
    PKG_CONFIG_PATH=$libdir/pkgconfig "$dir/project/build" "$1" >"$dir/log" 2>&1 || { tail -n 40 "$dir/log"; fail "the project was not built"; }
    out=$(LD_LIBRARY_PATH=$libdir "$root/scripts/mpirun" --build "$build" -n 2 timeout 300 "$dir/project/$1/consumer") || fail "the program failed: $out"
    printf '%s\n' "$out"
    [ "$(grep -c '^consumer: rank [01] of 2, sum 3$' <<<"$out")" -eq 2 ] || fail "two ranks should have said the sum"
}

contains() { # contains PACKAGE PATH...: it has these files or links
    local package=$1 path
    shift
    for path in "$@"; do
        grep -E "^$package .* \./usr/$path( -> .*)?\$" "$dir/all" >/dev/null || fail "$package has no $path"
    done
}

field() { # field PACKAGE FIELD
    dpkg-deb --field "$made/packages/$1"_*.deb "$2"
}

mkdir -p "$scratch"
case $case in
    setup)
        "$root/packaging/deb" --like "$build" --build "$made"
        for wrong in '--cuda maybe' '--mpi pvm' '--like /nowhere' '--maintainer nobody' '--maintainer' '--lint-only' '--colour'; do
            status=0
            read -ra words <<<"$wrong"
            "$root/packaging/deb" --build "$scratch/none" "${words[@]}" 2>"$scratch/message" || status=$?
            if [ $status -ne 2 ] || [ "$(wc -l <"$scratch/message")" -ne 1 ]; then
                fail "$wrong: status $status and $(cat "$scratch/message")"
            fi
            [ ! -e "$scratch/none" ] || fail "$wrong: something was written"
        done
        ;;
    deb_lintian)
        "$root/packaging/deb" --build "$made" --lint-only
        ;;
    deb_contents)
        rm -rf "$dir"
        mkdir -p "$dir"
        soversion=${version%.*}
        for package in "$made"/packages/*.deb; do
            dpkg-deb --contents "$package" | sed "s/^/$(dpkg-deb --field "$package" Package) /"
        done | grep -v '/$' >"$dir/all"
        sed 's/.* \.\//.\//; s/ -> .*//' "$dir/all" | sort | uniq -d >"$dir/twice"
        [ ! -s "$dir/twice" ] || fail "in two packages: $(cat "$dir/twice")"
        contains "libdtr$soversion" "lib/[^ ]*/libdtr\.so\.$soversion" "lib/[^ ]*/libdtr\.so\.$version"
        contains libdtr-dev 'lib/[^ ]*/libdtr\.so' 'lib/[^ ]*/libdtr\.a' 'lib/[^ ]*/pkgconfig/dtr\.pc' 'lib/[^ ]*/cmake/dtr/dtr-config\.cmake' \
            'include/dtr/dtr\.h' 'include/dtr/dtr\.hpp' 'include/dtr/version\.h' 'share/doc/dtr/docs/user-guide\.md' 'share/dtr/examples/01_hello\.c'
        contains dtr-tools bin/dtr-info bin/dtr-doctor bin/dtr-bench bin/dtr-ddp-bench bin/dtr-recorder-cost share/dtr/scripts/bench/sweep
        python=()
        if python3 -B "$root/packaging/debian/dtr_deb.py" can-python; then
            python=(python3-dtr)
            contains python3-dtr 'lib/python3/dist-packages/dtr/__init__\.py' 'lib/python3/dist-packages/dtr/_dtr\.abi3\.so' \
                'lib/python3/dist-packages/dtr-[^ ]*\.dist-info/METADATA'
            [[ $(field python3-dtr Depends) == *python3-cffi-backend*libc6* ]] || fail "python3-dtr needs: $(field python3-dtr Depends)"
        fi
        ! grep -v '^dtr-tools' "$dir/all" | grep -E 'usr/(bin|share/man/man1|share/bash-completion|share/zsh)/' || fail "these belong to dtr-tools"
        ! grep modulefiles "$dir/all" || fail "a module file is of no use in /usr"
        [[ $(field "libdtr$soversion" Depends) == *libc6*libjansson4* ]] || fail "shared libraries: $(field "libdtr$soversion" Depends)"
        for package in libdtr-dev dtr-tools "${python[@]}"; do
            [[ $(field "$package" Depends) == *"libdtr$soversion (= $(field "libdtr$soversion" Version))"* ]] || fail "$package takes any library"
        done
        [ "$(dpkg-deb --ctrl-tarfile "$made/packages/libdtr$soversion"_*.deb | tar -xO ./shlibs)" = \
            "libdtr $soversion libdtr$soversion (>= $(field "libdtr$soversion" Version))" ] || fail "shlibs"
        dpkg-deb --fsys-tarfile "$made"/packages/libdtr-dev_*.deb | tar -xO ./usr/share/doc/libdtr-dev/changelog.Debian.gz | zcat >"$dir/changelog"
        dpkg-parsechangelog -l "$dir/changelog" -S Version >"$dir/newest"
        [ "$(cat "$dir/newest")" = "$(field libdtr-dev Version)" ] || fail "the changelog begins with $(cat "$dir/newest")"
        ;;
    deb_installed)
        "$root/packaging/try" "$made/packages"
        ;;
    makefile)
        consumer make
        ;;
    autotools)
        needs autoconf autoconf
        needs automake automake
        consumer autotools
        ;;
    lmod)
        lmod=${LMOD_INIT:-/usr/share/lmod/lmod/init/bash}
        [ -f "$lmod" ] || skip "there is no $lmod (Debian: lmod)"
        rm -rf "$dir"
        cmake --install "$made" --prefix "$dir/at first" >"$dir.log"
        mv "$dir/at first" "$dir/moved here" # with a space, and it knows no place
        LMOD_INIT=$lmod bash --norc "$here/lmod.sh" "$dir/moved here" "$version"
        ;;
    recipes)
        python3 -B "$here/recipes.py" "$root" "$scratch/venv"
        ;;
    *) fail "what is that?" ;;
esac
