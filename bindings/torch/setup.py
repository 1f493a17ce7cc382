"""Builds dtr_torch against the torch that is installed, and the library that DTR_PREFIX or pkg-config names."""
import os
import re
import subprocess
import sys

from setuptools import setup

try:
    from torch.utils import cpp_extension
except ImportError as error:
    sys.exit(f"dtr_torch: cannot import torch ({error}). It is built against the torch that is installed: install that "
             "first, then\n    pip install --no-build-isolation ./bindings/torch")


def first_folder(prefix, names, wanted):
    for name in names:
        if os.path.exists(os.path.join(prefix, name, wanted)):
            return os.path.join(prefix, name)
    sys.exit(f"dtr_torch: there is no {wanted} in {' or '.join(names)} of {prefix}, which DTR_PREFIX names; it is the folder "
             "given to cmake --install")


def pkg_config(what):
    answer = subprocess.run(["pkg-config", what, "dtr"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def find_library():
    """The folders of the library's headers and of libdtr.so."""
    prefix = os.environ.get("DTR_PREFIX")
    if prefix:
        return first_folder(prefix, ["include"], "dtr/dtr.h"), first_folder(prefix, ["lib", "lib64"], "libdtr.so")
    try:
        include, library = pkg_config("--variable=includedir"), pkg_config("--variable=libdir")
    except FileNotFoundError:
        include = library = None
    if not include or not library:
        sys.exit("dtr_torch: the library dtr was not found. Set DTR_PREFIX to the folder it is installed in, or "
                 "PKG_CONFIG_PATH to that of dtr.pc (and install pkg-config)")
    return os.path.realpath(include), os.path.realpath(library)


def version_of(include):
    with open(os.path.join(include, "dtr", "version.h"), encoding="utf-8") as source:
        text = source.read()
    return ".".join(re.search(rf"DTR_VERSION_{part}\s+(\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


INCLUDE, LIBRARY = find_library()
SOURCES = [f"csrc/{name}.cpp" for name in ("module", "process_group", "sparse", "tensors", "work", "world")]
HERE = os.path.dirname(os.path.abspath(__file__))

setup(
    name="dtr_torch",
    version=version_of(INCLUDE),
    description="A backend of torch.distributed over dtr, the Distributed Tensor Runtime",
    license="BSD-3-Clause",
    packages=["dtr_torch"],
    python_requires=">=3.9",
    ext_modules=[cpp_extension.CppExtension("dtr_torch._C", SOURCES, include_dirs=[INCLUDE, os.path.join(HERE, "csrc")],
                                            library_dirs=[LIBRARY], libraries=["dtr"],
                                            runtime_library_dirs=[LIBRARY],
                                            extra_compile_args=["-O2", "-g0"])],
    cmdclass={"build_ext": cpp_extension.BuildExtension},
)
