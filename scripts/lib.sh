# Shared by run, test and mpirun in this folder and by .ci/run: packages, configuring, building, launching.
# shellcheck shell=bash
# To be sourced under `set -euo pipefail`.

DTR_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
DTR_ME=${DTR_ME:-$(basename "$0")}

dtr_say() {
    printf '%s: %s\n' "$DTR_ME" "$*"
}

dtr_die() { # dtr_die STATUS TEXT...
    local status=$1
    shift
    printf '%s: %s\n' "$DTR_ME" "$*" >&2
    exit "$status"
}

# Value of an option that must have one: dtr_value "$1" "$#" "${2-}"
dtr_value() {
    [ "$2" -ge 2 ] || dtr_die 2 "$1 needs a value; see --help"
    printf '%s\n' "$3"
}

# ---- packages ----------------------------------------------------------------------------------

# What the build and the tests need, as Debian package:kind:name. A requirement is met when the command is in PATH or
# pkg-config knows the library, wherever it came from, or the system's Python finds the module, or the header or the file is there; the package name is only for installing.
DTR_NEEDS=(
    build-essential:command:c++
    cmake:command:cmake
    ninja-build:command:ninja
    pkgconf:command:pkg-config
    python3:command:python3
    check:library:check
    libhwloc-dev:library:hwloc
    nettle-dev:library:nettle
    libopenblas-dev:library:openblas
    libjansson-dev:library:jansson
    libdlpack-dev:header:dlpack/dlpack.h
    iproute2:command:ip
)
DTR_NEEDS_OPENMPI=(libopenmpi-dev:command:mpicc.openmpi:mpicc openmpi-bin:command:mpiexec.openmpi:mpiexec)
DTR_NEEDS_MPICH=(libmpich-dev:command:mpicc.mpich mpich:command:mpiexec.mpich)

dtr_have() { # dtr_have KIND NAME[:ALTERNATIVE]
    local kind=$1 name
    local -a names
    IFS=: read -ra names <<<"$2"
    for name in "${names[@]}"; do
        case $kind in
            command) command -v "$name" >/dev/null && return 0 ;;
            library) pkg-config --exists "$name" 2>/dev/null && return 0 ;;
            python) { [ ! -x /usr/bin/python3 ] || /usr/bin/python3 -c "import $name" 2>/dev/null; } && return 0 ;;
            file) [ -e "$name" ] && return 0 ;;
            header) { [ -f "/usr/include/$name" ] || [ -f "/usr/local/include/$name" ]; } && return 0 ;;
        esac
    done
    return 1
}

# Install what is missing of the given needs, or say what to type and exit 2.
dtr_require() {
    local need package kind name
    local PATH=$PATH:/usr/sbin:/sbin # where an ordinary user's does not lead
    local -a missing=() sudo=()
    for need in "$@"; do
        IFS=: read -r package kind name <<<"$need"
        dtr_have "$kind" "$name" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || dtr_die 2 "missing: ${missing[*]} (names of Debian's packages); install them" \
        "with this system's package manager and run again"
    if [ "$(id -u)" -ne 0 ]; then
        sudo=(sudo -n)
        sudo -n true 2>/dev/null || dtr_die 2 "missing packages; type: sudo apt-get install -y ${missing[*]}"
    fi
    dtr_say "installing ${missing[*]}"
    dtr_apt "${sudo[@]}"
}

# Shows how far apt-get is: it may take minutes and would print hundreds of lines.
dtr_apt_progress() {
    local line count=0
    while IFS= read -r line; do
        case $line in
            Get:* | 'Setting up '*)
                count=$((count + 1))
                [ $((count % 25)) -ne 0 ] || printf '    %s\n' "${line:0:100}"
                ;;
        esac
    done
}

# Installs `missing` of the caller. The package lists are fetched only when the first try fails.
dtr_apt() { # dtr_apt [sudo -n]
    local log
    local -a get=("$@" env DEBIAN_FRONTEND=noninteractive apt-get -q)
    local -a install=("${get[@]}" install -y --no-install-recommends "${missing[@]}")
    log=$(mktemp)
    if ! "${install[@]}" 2>&1 | tee "$log" | dtr_apt_progress; then
        "${get[@]}" update >/dev/null 2>&1 || true
        if ! "${install[@]}" 2>&1 | tee "$log" | dtr_apt_progress; then
            tail -n 15 "$log" >&2
            rm -f "$log"
            dtr_die 2 "apt-get could not install ${missing[*]}, see above. Without a network install these packages" \
                "from a local mirror or image and run again; nothing else is downloaded"
        fi
    fi
    rm -f "$log"
}

# Make a virtual environment with packages from PyPI in a cache folder where there is none yet, or end with 77 and the reason. Paths
# in it are its own, so it is made in place, and one that was not finished has no mark.
dtr_venv() { # dtr_venv FOLDER PACKAGE...
    local folder=$1 why
    shift
    [ ! -f "$folder/whole" ] || return 0
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    if ! why=$(python3 -m venv "$folder" 2>&1); then
        why="python3 -m venv fails (Debian package python3-venv)"
    elif why=$("$folder/bin/pip" install -q --no-cache-dir --disable-pip-version-check "$@" 2>&1); then
        touch "$folder/whole"
        return 0
    fi
    rm -rf "$folder"
    dtr_die 77 "skipped: no $*: $(tail -n 1 <<<"$why")"
}

# ---- configure and build ------------------------------------------------------------------------

# Build folder of a preset and an MPI: "default", "openmpi", "mpich", or one of scripts/testbed/mpi-venv ("openmpi-5").
dtr_build_dir() { # dtr_build_dir PRESET MPI
    case $2 in
        default) printf '%s\n' "$DTR_ROOT/build/$1" ;;
        *) printf '%s\n' "$DTR_ROOT/build/$1-$2" ;;
    esac
}

dtr_require_build() { # dtr_require_build MPI
    case $1 in
        default | openmpi) dtr_require "${DTR_NEEDS[@]}" "${DTR_NEEDS_OPENMPI[@]}" ;;
        mpich) dtr_require "${DTR_NEEDS[@]}" "${DTR_NEEDS_MPICH[@]}" ;;
        openmpi-[0-9]* | mpich-[0-9]* | impi-[0-9]*) dtr_require "${DTR_NEEDS[@]}"; "$DTR_ROOT/scripts/testbed/mpi-venv" "$1" >/dev/null || exit ;;
        *) dtr_die 2 "--mpi $1: expected openmpi or mpich, or one with a version: openmpi-5" ;;
    esac
}

# Configure once; afterwards CMake does so itself when a file has changed. Shows the summary only.
dtr_configure() { # dtr_configure PRESET MPI [-D...]
    local preset=$1 mpi=$2 dir log
    local -a flags=()
    shift 2
    grep -q "\"name\": \"$preset\", \"configurePreset\"" "$DTR_ROOT/CMakePresets.json" ||
        dtr_die 2 "no preset \"$preset\" in CMakePresets.json"
    dir=$(dtr_build_dir "$preset" "$mpi")
    if [ $# -eq 0 ] && { [ -f "$dir/build.ninja" ] || [ -f "$dir/Makefile" ]; }; then
        return 0 # a cache alone is what a failed configuration leaves behind
    fi
    if [ ! -f "$dir/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        flags+=(-G Ninja)
    fi
    case $mpi in
        default) ;;
        *-*) flags+=("$("$DTR_ROOT/scripts/testbed/mpi-venv" "$mpi")") ;;
        *) flags+=("-DMPI_EXECUTABLE_SUFFIX=.$mpi") ;;
    esac
    mkdir -p "$dir"
    log=$dir/configure.log
    dtr_say "configuring ${dir#"$DTR_ROOT"/}"
    if ! (cd "$DTR_ROOT" && cmake --preset "$preset" -B "$dir" "${flags[@]}" "$@") >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$dir/CMakeCache.txt"
        dtr_die 1 "configuring failed; the output above is kept in ${log#"$DTR_ROOT"/}"
    fi
    sed -n '/^-- dtr [0-9]/,/^-- $/s/^-- /    /p' "$log"
}

dtr_build() { # dtr_build DIR [TARGET...]
    local dir=$1
    local -a targets=()
    shift
    [ $# -eq 0 ] || targets=(--target "$@")
    dtr_say "building ${dir#"$DTR_ROOT"/}"
    cmake --build "$dir" --parallel "$(nproc)" "${targets[@]}" || dtr_die 1 "the build failed; see above"
}

dtr_cached() { # dtr_cached DIR VARIABLE: value in a CMake cache
    sed -n "s/^$2:[A-Z]*=//p" "$1/CMakeCache.txt"
}

# ---- launching ----------------------------------------------------------------------------------

# What scripts/mpi.env says, without overruling the user's own settings.
dtr_mpi_environment() {
    local line name
    while IFS= read -r line; do
        case $line in
            '' | '#'*) continue ;;
        esac
        name=${line%%=*}
        [ -n "${!name+set}" ] || export "${line?}"
    done <"$DTR_ROOT/scripts/mpi.env"
}

# Run a program on N ranks with the launcher of a build folder.
dtr_mpirun() { # dtr_mpirun DIR RANKS PROGRAM [ARGS...]
    local dir=$1 ranks=$2 launcher
    shift 2
    launcher=$(dtr_cached "$dir" DTR_MPIEXEC)
    (
        dtr_mpi_environment
        exec "${launcher:-mpiexec}" -n "$ranks" "$@"
    )
}
