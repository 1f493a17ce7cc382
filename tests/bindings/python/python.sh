#!/usr/bin/env bash
# python.sh CASE BUILD_DIR PYTHON, with CASE
#   install   makes a virtual environment and installs the package into it by pip, without the network
#   records   dtr-doctor names the line of the Python program
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
case=$1
build=$2
python=$3
prefix=$build/install-test/moved
scratch=$build/python-test

fail() {
    printf 'python test %s: %s\n' "$case" "$*" >&2
    exit 1
}

mkdir -p "$scratch"
cd "$scratch"
case $case in
    install)
        rm -rf "$scratch/venv" "$scratch/package"
        "$python" -m venv --system-site-packages "$scratch/venv"
        cp -r "$prefix/share/dtr/python" "$scratch/package" # bindings/python as installed; pip builds where the sources are
        pip=("$scratch/venv/bin/python" -m pip --disable-pip-version-check install --no-build-isolation --no-deps --no-index)
        # Without the library it says so, and how to name it.
        cd "$scratch/package"
        refused() { # refused TEXT VARIABLE=VALUE...
            if env "${@:2}" "$scratch/venv/bin/python" setup.py --version >"$scratch/refused.log" 2>&1; then
                fail "it was built without the library"
            fi
            grep -F "dtr: the C library was not found $1" "$scratch/refused.log" >/dev/null ||
                { cat "$scratch/refused.log"; fail "no message that the library is not there"; }
        }
        refused "by pkg-config" PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=/nonexistent
        refused "below DTR_PREFIX=/nonexistent" DTR_PREFIX=/nonexistent
        cd "$scratch"
        DTR_PREFIX=$prefix "${pip[@]}" "$scratch/package" >"$scratch/install.log" 2>&1 ||
            { cat "$scratch/install.log"; fail "pip failed"; }
        version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
        said=$("$scratch/venv/bin/python" -c 'import dtr; print(dtr.__version__, dtr.version(), dtr.__file__)')
        [ "${said% *}" = "$version $version" ] || fail "it says $said, want $version twice"
        [ -e "$(dirname "${said##* }")/py.typed" ] || fail "there is no py.typed in $said"
        echo "installed: $said"
        ;;
    records)
        rm -rf "$scratch/records"
        DTR_RECORDER_DIR=$scratch/records "$root/scripts/mpirun" --build "$build" -n 2 "$python" "$here/lost.py" || true
        [ -d "$scratch/records" ] || fail "there are no records"
        line=$(grep -n '# this line' "$here/lost.py" | cut -d: -f1)
        said=$("$prefix/bin/dtr-doctor" "$scratch/records" || true)
        printf '%s\n' "$said"
        grep -F "rank 0 (host" <<<"$said" | grep -F "never entered allreduce #1 f64 x 8 sum group 'world', called at lost.py:$line on rank 1" >/dev/null ||
            fail "dtr-doctor does not name lost.py:$line"
        ;;
    *) fail "no such case" ;;
esac
