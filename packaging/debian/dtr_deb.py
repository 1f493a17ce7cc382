"""What Debian expects of packages and CPack does not do, before and after it packs.

Usage: dtr_deb.py stage FOLDER VERSION MAINTAINER COMPONENT=PACKAGE...    FOLDER has a folder of each component
       dtr_deb.py finish FILE.deb...
       dtr_deb.py python PACKAGES                                     PACKAGES has what was made before
       dtr_deb.py can-python                                          status 0: this machine has what that takes

stage:
- manual pages of commands and completions go to the tools, whatever component installed them
- copyright and changelog.Debian.gz in share/doc/PACKAGE, from LICENSE and CHANGELOG.md; manual pages are compressed
- scripts start interpreters by their path; the static library loses its debug information, as the others have by then
- what lintian may overlook, from lintian/all and lintian/PACKAGE (a version in the name left out)
finish:
- libraries are made known by a trigger, not by scripts of the package
- libraries of several architectures may be installed side by side
python:
- python3-dtr, built by pip over the library and headers of the other packages, for the system's Python
"""
import datetime
import email.utils
import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OF_TOOLS = ("share/man/man1", "share/bash-completion", "share/zsh", "share/fish")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def compress(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text)


def files(folder):
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in sorted(names)]


def move(source, target):
    """Moves a tree into one that may be there already, and removes folders that are empty then."""
    for path in files(source):
        to = os.path.join(target, os.path.relpath(path, source))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.move(path, to)
    shutil.rmtree(source)
    while not os.listdir(os.path.dirname(source)):
        source = os.path.dirname(source)
        os.rmdir(source)


def copyright():
    _, owner, terms = read(os.path.join(ROOT, "LICENSE")).split("\n\n", 2)
    terms = "\n".join(" " + (line or ".") for line in terms.strip().splitlines())
    owner = re.sub(r"^Copyright \(c\) (\d+), ", r"\1 ", owner.strip())
    return ("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: dtr\n\n"
            "Files: *\nCopyright: %s\nLicense: BSD-3-Clause\n\nLicense: BSD-3-Clause\n%s\n" % (owner, terms))


def last_change():
    """When the tree last changed: SOURCE_DATE_EPOCH, the newest commit, or now."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        git = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True)
        epoch = git.stdout.strip() if git.returncode == 0 else ""
    return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch else datetime.datetime.now(datetime.timezone.utc)


def changelog(version, maintainer):
    """CHANGELOG.md in Debian's form. A section is "## VERSION - DATE", or "## VERSION (unreleased)", which gets the packages' version."""
    entries = []
    for section in re.split(r"^## ", read(os.path.join(ROOT, "CHANGELOG.md")), flags=re.M)[1:]:
        heading, body = section.split("\n", 1)
        named = re.match(r"\[?(\d+\.\d+\.\d+)\]?.*?(\d{4}-\d\d-\d\d)", heading)
        if named:
            number = named.group(1) + "-1"
            when = datetime.datetime.fromisoformat(named.group(2) + "T12:00:00+00:00")
        elif heading.endswith("(unreleased)"):
            if not body.strip():
                continue
            number, when = version, last_change()
        else:
            sys.exit('CHANGELOG.md: "## %s" is a version neither with its date nor with (unreleased)' % heading)
        text = ["dtr (%s) %s; urgency=medium" % (number, "unstable" if named else "UNRELEASED"), ""]
        for item in re.findall(r"^(?:### (.*)|- (.*(?:\n {2,}.*)*))$", body, flags=re.M):
            if item[0]:
                text.append("  [ %s ]" % item[0])
                continue
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(item[1].split()))
            plain = plain.replace("**", "").replace("`", "")
            text += textwrap.wrap(plain, 78, initial_indent="  * ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        entries.append("\n".join(text + ["", " -- %s  %s" % (maintainer, email.utils.format_datetime(when)), ""]))
    if not entries or version not in entries[0].split("\n", 1)[0]:
        sys.exit("the newest section of CHANGELOG.md is not that of %s" % version)
    return "\n".join(entries)


def prepare(usr, package, legal, changes):
    doc = os.path.join(usr, "share/doc", package)
    write(os.path.join(doc, "copyright"), legal)
    compress(os.path.join(doc, "changelog.Debian.gz"), changes.encode())
    lists = (os.path.join(HERE, "lintian", name) for name in ("all", re.sub(r"[\d.]+$", "", package)))
    overrides = "".join(read(path) for path in lists if os.path.exists(path))
    write(os.path.join(usr, "share/lintian/overrides", package), overrides.replace("@PACKAGE@", package))
    for path in files(usr):
        is_page = re.search(r"/share/man/man\d/", path) and not path.endswith(".gz")
        if os.path.islink(path):
            if is_page:
                os.symlink(os.readlink(path) + ".gz", path + ".gz")
                os.remove(path)
        elif is_page:
            with open(path, "rb") as page:
                compress(path + ".gz", page.read())
            os.remove(path)
        elif path.endswith(".a"):
            subprocess.run(["strip", "--strip-debug", "--enable-deterministic-archives", path], check=True)
        elif "/share/dtr/" in path:
            with open(path, "rb") as script:
                text = script.read()
            direct = re.sub(rb"\A#!/usr/bin/env python3\b", b"#!/usr/bin/python3", re.sub(rb"\A#!/usr/bin/env bash\b", b"#!/bin/bash", text))
            if direct != text:
                with open(path, "wb") as script:
                    script.write(direct)


def stage(folder, version, maintainer, *pairs):
    packages = dict(pair.split("=") for pair in pairs)
    usr = {component: os.path.join(folder, component, "usr") for component in packages}
    for component in packages:
        if not os.path.isdir(usr[component]):
            sys.exit("nothing is installed under /usr of the component %s" % component)
    for component in set(packages) - {"tools"}:
        for path in OF_TOOLS:
            if os.path.isdir(os.path.join(usr[component], path)):
                move(os.path.join(usr[component], path), os.path.join(usr["tools"], path))
    # The pages link to the licence; there it is the file that every package has.
    license = os.path.join(usr["development"], "share/doc/dtr/LICENSE")
    os.remove(license)
    os.symlink("../%s/copyright" % packages["development"], license)
    legal, changes = copyright(), changelog(version, maintainer)
    for component, package in packages.items():
        prepare(usr[component], package, legal, changes)


def finish(*packages):
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            tree = os.path.join(folder, "tree")
            subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
            control = os.path.join(tree, "DEBIAN")
            for script in ("postinst", "postrm"):
                if os.path.exists(os.path.join(control, script)):
                    os.remove(os.path.join(control, script))
            fields = read(os.path.join(control, "control"))
            if os.path.exists(os.path.join(control, "shlibs")):
                write(os.path.join(control, "triggers"), "activate-noawait ldconfig\n")
                fields += "Multi-Arch: same\n"
            write(os.path.join(control, "control"), re.sub(r"\n\s*\n", "\n", fields))
            subprocess.run(["dpkg-deb", "-Zxz", "--root-owner-group", "--build", tree, package], check=True, stdout=subprocess.DEVNULL)


PYTHON = """\
Package: python3-dtr
Source: dtr
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Section: python
Priority: optional
Depends: {library} (= {version}), python3 (>= 3.9~), python3-cffi-backend, python3-numpy, {libc}
Recommends: {recommends}
Suggests: python3-mpi4py
Installed-Size: {size}
Description: Distributed Tensor Runtime - package for Python
 dtr gives programs under mpirun process groups, typed asynchronous collectives,
 and gradient averaging beside the backward pass.
 .
 This package has the Python package dtr, which works on NumPy arrays and
 other objects of DLPack without copies.
"""
# Compiled files are made where they are used, and go with the package.
POSTINST = "#!/bin/sh\nset -e\nif command -v py3compile >/dev/null; then\n\tpy3compile -p python3-dtr\nfi\n"
PRERM = "#!/bin/sh\nset -e\nif command -v py3clean >/dev/null; then\n\tpy3clean -p python3-dtr\nfi\n"


def field(package, name):
    return subprocess.run(["dpkg-deb", "--field", package, name], check=True, capture_output=True, text=True).stdout.strip()


def build_python(system, folder, target):
    """What pip installs, without a path of libraries and in a copy: building leaves files beside the sources."""
    source = os.path.join(folder, "python")
    shutil.copytree(os.path.join(ROOT, "bindings/python"), source)
    subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile",
                    "--no-index", "--root-user-action=ignore", "--target", target, source], check=True,
                   env=dict(os.environ, DTR_PREFIX=os.path.join(system, "usr"), DTR_NO_RPATH="1", PYTHONPATH="", PYTHONHOME=""))
    for path in files(target):
        if re.search(r"\.dist-info/(RECORD|direct_url\.json|REQUESTED)$", path):
            os.remove(path)
        elif path.endswith(".so"):
            subprocess.run(["strip", "--strip-unneeded", path], check=True)


def needs_libc(module, folder):
    """The dependency on the C library, as dpkg-shlibdeps sees it."""
    write(os.path.join(folder, "debian/control"), "Source: dtr\n\nPackage: python3-dtr\nArchitecture: any\n")
    done = subprocess.run(["dpkg-shlibdeps", "-O", "--ignore-missing-info", "-l" + os.path.join(folder, "libraries"), "-e", module],
                          cwd=folder, capture_output=True, text=True, check=True)
    return re.search(r"libc6[^,\n]*", done.stdout).group(0)


def python(packages):
    (library,), (development,) = (glob.glob(os.path.join(packages, name)) for name in ("libdtr[0-9]*.deb", "libdtr-dev_*.deb"))
    with tempfile.TemporaryDirectory() as folder:
        system, tree = os.path.join(folder, "system"), os.path.join(folder, "tree")
        for package in (library, development):
            subprocess.run(["dpkg-deb", "--extract", package, system], check=True)
        target = os.path.join(tree, "usr/lib/python3/dist-packages")
        build_python(system, folder, target)
        os.makedirs(os.path.join(folder, "libraries"))
        for path in files(os.path.join(system, "usr/lib")):
            if re.search(r"/libdtr\.so\.", path):
                shutil.copy(path, os.path.join(folder, "libraries"), follow_symlinks=True)
        version, maintainer = field(library, "Version"), field(library, "Maintainer")
        prepare(os.path.join(tree, "usr"), "python3-dtr", copyright(), changelog(version, maintainer))
        module, = glob.glob(os.path.join(target, "dtr/_dtr.abi3.so")) # of no version of Python
        write(os.path.join(tree, "DEBIAN/control"), PYTHON.format(
            version=version, maintainer=maintainer, library=field(library, "Package"), architecture=field(library, "Architecture"),
            libc=needs_libc(module, folder), recommends=field(library, "Recommends"),
            size=sum(os.path.getsize(path) for path in files(os.path.join(tree, "usr"))) // 1024 + 1))
        sums = subprocess.run(["md5sum", *(os.path.relpath(path, tree) for path in files(os.path.join(tree, "usr")))], cwd=tree, check=True,
                              capture_output=True, text=True).stdout
        write(os.path.join(tree, "DEBIAN/md5sums"), sums)
        for name, text in (("postinst", POSTINST), ("prerm", PRERM)):
            write(os.path.join(tree, "DEBIAN", name), text)
            os.chmod(os.path.join(tree, "DEBIAN", name), 0o755)
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", tree], check=True)
        subprocess.run(["dpkg-deb", "-Zxz", "--root-owner-group", "--build", tree, packages], check=True, stdout=subprocess.DEVNULL)


def can_python():
    """Ends with status 0 where the system's Python has what building the package takes."""
    look = ("import importlib.util, os, sys, sysconfig; "
            "sys.exit(not all(map(importlib.util.find_spec, ('pip', 'setuptools', 'wheel', 'cffi'))) "
            "or not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))")
    sys.exit(subprocess.run(["/usr/bin/python3", "-c", look], stderr=subprocess.DEVNULL).returncode)


{"stage": stage, "finish": finish, "python": python, "can-python": can_python}[sys.argv[1]](*sys.argv[2:])
