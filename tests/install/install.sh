#!/usr/bin/env bash
# Installs the library, moves the tree (nothing in it may know where it was), and builds and runs programs against it.
#   install.sh BUILD_DIR CASE, with CASE setup, bare, people, pkgconfig, pkgconfig-static, pkgconfig-fortran, fortran-source or a value
#   of CONSUMER in consumer/
# CC, CXX, FC, MPICC, MPICXX and GENERATOR come from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$1
case=$2
scratch=$build/install-test
prefix=$scratch/moved
dir=$scratch/$case

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
minor=${version%.*} # 0.2 of 0.2.0
soname=libdtr.so.${minor%%.*}
[ "${minor%%.*}" -ne 0 ] || soname=libdtr.so.$minor

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
        -DDTR_WANTED="$minor" -DCMAKE_Fortran_COMPILER="$FC" \
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
        [ -e "$(find "$prefix" -name "$soname")" ] || fail "there is no $soname"
        # Debug information may name source files; text files may not name any folder of this machine.
        if grep -rIl -e "$root" -e "$build" "$prefix"; then
            fail "the files above name the source or build folder"
        fi
        ;;
    pkgconfig)
        mkdir -p "$dir"
        PKG_CONFIG_PATH=$(library_folder)
        export PKG_CONFIG_PATH
        pkg-config --exists "dtr = $version" || fail "pkg-config does not find dtr $version"
        read -ra cflags <<<"$(pkg-config --cflags dtr)"
        read -ra libs <<<"$(pkg-config --libs dtr)"
        "$CC" -std=c11 "${cflags[@]}" "$here/consumer/sum.c" -o "$dir/consumer" "${libs[@]}"
        LD_LIBRARY_PATH=$(pkg-config --variable=libdir dtr) run_on_two "$dir/consumer"
        ;;
    pkgconfig-fortran)
        mkdir -p "$dir"
        PKG_CONFIG_PATH=$(library_folder)
        export PKG_CONFIG_PATH
        read -ra flags <<<"$(pkg-config --cflags --libs dtr-fortran)"
        "$FC" "$here/consumer/sum.f90" -o "$dir/consumer" "${flags[@]}" -Wl,-rpath,"$(pkg-config --variable=libdir dtr)"
        run_on_two "$dir/consumer"
        ;;
    fortran-source)
        # As bindings/fortran/README.md says for another compiler, which here is the same one.
        mkdir -p "$dir"
        cd "$dir"
        PKG_CONFIG_PATH=$(library_folder)
        export PKG_CONFIG_PATH
        read -ra cflags <<<"$(pkg-config --cflags dtr)"
        read -ra libs <<<"$(pkg-config --libs dtr)"
        "$FC" -c "$prefix/share/dtr/fortran/dtr.f90"
        "$MPICC" -c -D_GNU_SOURCE "${cflags[@]}" -I"$(dirname "$("$FC" -print-file-name=include/ISO_Fortran_binding.h)")" \
            "$prefix"/share/dtr/fortran/dtr_fortran*.c
        ar rcs libdtr_fortran.a ./*.o
        "$FC" "$here/consumer/sum.f90" libdtr_fortran.a -o consumer "${libs[@]}" -Wl,-rpath,"$(pkg-config --variable=libdir dtr)"
        run_on_two ./consumer
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
    bare)
        # Nothing that is optional, and nothing that only tests need: it builds, installs, and says what is missing.
        # Libraries are hidden with pkg-config's folders; -O0 because nothing is measured.
        export PKG_CONFIG_LIBDIR=/nonexistent
        cmake --preset release -S "$root" -B "$dir" -G "$GENERATOR" -DCMAKE_C_COMPILER="$CC" \
            -DMPI_C_COMPILER="$MPICC" -DDTR_CXX= -DDTR_CUDA=OFF -DDTR_FORTRAN=OFF -DDTR_DLPACK=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Doxygen=ON \
            -DCMAKE_C_FLAGS_RELWITHDEBINFO=-O0 >"$dir.log" 2>&1 || { cat "$dir.log"; fail "configuring failed"; }
        cmake --build "$dir" --parallel 2 >>"$dir.log" 2>&1 || { cat "$dir.log"; fail "building failed"; }
        cmake --install "$dir" --prefix "$dir/prefix" >>"$dir.log"
        "$dir/prefix/bin/dtr-info" >"$dir.info"
        for lost in 'hwloc +not found: no binding of the progress thread' 'jansson +not found: no safetensors files or checkpoints' \
            'ncurses +not found: no live view of dtr-top' 'openblas +not found: no fast matrix products' 'CUDA +off: no buffers in device memory' 'Fortran +off: no module' 'doxygen +not found: ' \
            'dlpack +off: no exchange' 'matplotlib +(not found: no pictures|[0-9]+\.)'; do
            grep -Eq -- "-- +$lost" "$dir.log" || fail "the summary lacks: $lost"
            grep -Eq "^ +$lost" "$dir.info" || fail "dtr-info lacks: $lost"
        done
        grep -q -- '--   tests            off, they need what was not found: libcheck (Debian: check), a C++ compiler' "$dir.log" ||
            fail "the summary does not say why there are no tests"
        for asked in HWLOC JANSSON OPENBLAS; do
            if cmake "$dir" "-DDTR_$asked=ON" >"$dir.log" 2>&1; then
                fail "DTR_$asked=ON was configured without the library"
            fi
            grep -q "DTR_$asked=ON: .* was not found" "$dir.log" || fail "DTR_$asked=ON: no message"
            cmake "$dir" "-DDTR_$asked=AUTO" >/dev/null 2>&1 || fail "DTR_$asked=AUTO was not configured"
        done
        rm -rf "$dir" # it is large
        ;;
    people)
        # What people use: programs that say what they are, guide, examples as they lie there, a script with its templates.
        for tool in dtr-info dtr-doctor dtr-top dtr-bench dtr-ddp-bench dtr-recorder-cost; do
            "$prefix/bin/$tool" --version | grep '^dtr [0-9]' >/dev/null || fail "$tool --version"
        done
        for file in docs/user-guide.md docs/measurements.md README.md CHANGELOG.md; do
            [ -s "$prefix/share/doc/dtr/$file" ] || fail "no $file"
        done
        links=0
        while IFS=: read -r page link; do
            links=$((links + 1))
            [ -e "$(dirname "$page")/$link" ] || fail "$page links to $link, which is not installed"
        done < <(grep -roE '\]\([^)# ]+' --include='*.md' "$prefix/share/doc/dtr" | grep -v '](https\?:' | sed 's/](//')
        [ $links -ge 50 ] || fail "only $links links in the installed pages"
        share=$prefix/share/dtr
        cmake -S "$share/examples" -B "$dir" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$CC" -DMPI_C_COMPILER="$MPICC" \
            >"$dir.log" 2>&1 || { cat "$dir.log"; fail "configuring the examples failed"; }
        cmake --build "$dir" --parallel 2 >>"$dir.log" 2>&1 || { cat "$dir.log"; fail "building the examples failed"; }
        "$root/scripts/mpirun" --build "$build" -n 2 "$dir/hello" | grep '^rank 1 of 2: 2 20 200 1' >/dev/null || fail "hello"
        [ -x "$dir/train_gpt" ] || fail "no train_gpt"
        MPIEXEC=$(sed -n "s/^DTR_MPIEXEC:[A-Z]*=//p" "$build/CMakeCache.txt") \
            "$share/scripts/bench/sweep" --ranks 1,2 --sizes 8 --rounds 1 --no-gauge --out "$dir/sweep" >"$dir.log" 2>&1 ||
            { cat "$dir.log"; fail "sweep"; }
        [ -s "$dir/sweep/sweep.csv" ] || fail "sweep wrote no figures"
        [ -x "$share/scripts/bench/launch/mpirun.sh" ] || fail "no launch templates"
        ;;
    refused | subproject)
        cmake_project
        ;;
    *)
        cmake_project
        cmake --build "$dir" >>"$dir.log" 2>&1 || { cat "$dir.log"; fail "building failed"; }
        uses=$(ldd "$dir/consumer" | grep -c 'libdtr\.so' || true)
        case $case in
            static*) [ "$uses" -eq 0 ] || fail "links the shared library" ;;
            *)
                [ "$uses" -eq 1 ] || fail "does not link the shared library"
                ldd "$dir/consumer" | grep -F "$soname =>" >/dev/null || fail "does not ask for $soname"
                ;;
        esac
        run_on_two "$dir/consumer"
        ;;
esac
if [ "$case" = setup ] && [ -x "$prefix/bin/dtr-info" ]; then
    "$prefix/bin/dtr-info" --help >/dev/null || fail "the installed dtr-info does not start"
fi
