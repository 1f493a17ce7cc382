"""Builds the extension module over an installed C library; the version is that library's."""
import os
import sys

from setuptools import setup

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from build_dtr import find_library  # noqa: E402

setup(version=find_library()["version"], cffi_modules=["build_dtr.py:ffibuilder"])
