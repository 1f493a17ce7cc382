# Copyright (c) 2026, The dtr developers
# SPDX-License-Identifier: BSD-3-Clause
"""The recipe for Spack 1.0 or newer; packaging/README.md says how it is used."""
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Dtr(CMakePackage, CudaPackage):
    """Distributed Tensor Runtime: process groups, typed asynchronous collectives, a small tensor and gradient averaging
    for C programs under mpirun."""

    git = "file:///usr/src/dtr"  # a clone of your own, or `spack develop --path CLONE dtr@0.2.0`
    license("BSD-3-Clause")

    version("main", branch="main")
    version("0.2.0", tag="v0.2.0")

    variant("hwloc", default=True, description="Bind the progress thread")
    variant("jansson", default=True, description="Read and write safetensors files and checkpoints")
    variant("nettle", default=True, description="Prove connections between nodes by HMAC")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")  # the compiler that nvcc calls
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3.1:")
    depends_on("hwloc@2:", when="+hwloc")
    depends_on("jansson", when="+jansson")
    depends_on("nettle", when="+nettle")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl@2.18:", when="+cuda")
    depends_on("python@3:", type="run")  # the scripts of share/dtr

    conflicts("platform=darwin", msg="dtr needs Linux")
    conflicts("platform=windows", msg="dtr needs Linux")
    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("BUILD_TESTING", False),
            self.define("DTR_DLPACK", False),
            self.define("DTR_BUILD_EXAMPLES", False),
            self.define_from_variant("DTR_HWLOC", "hwloc"),
            self.define_from_variant("DTR_JANSSON", "jansson"),
            self.define_from_variant("DTR_NETTLE", "nettle"),
            self.define_from_variant("DTR_CUDA", "cuda"),
            self.define("MPI_C_COMPILER", self.spec["mpi"].mpicc),
        ]
        if self.spec.satisfies("+cuda") and "none" not in self.spec.variants["cuda_arch"].value:
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
