#!/usr/bin/env bash
# What conda's tools run: CMAKE_ARGS, PREFIX and CPU_COUNT are theirs.
set -euo pipefail
# shellcheck disable=SC2086,SC2154 # several arguments; set by the tool
cmake --preset release -B build-conda -G Ninja ${CMAKE_ARGS-} \
    -DCMAKE_INSTALL_PREFIX="$PREFIX" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH="$PREFIX" \
    -DBUILD_TESTING=OFF -DDTR_BUILD_EXAMPLES=OFF \
    -DDTR_CUDA=OFF -DDTR_DLPACK=OFF -DDTR_HWLOC=ON -DDTR_JANSSON=ON -DDTR_NETTLE=ON
cmake --build build-conda --parallel "${CPU_COUNT:-1}"
cmake --install build-conda
