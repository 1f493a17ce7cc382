"""The version of CMakeLists.txt stands alike wherever it is written: changelog, recipes, pages, names of packages.

Usage: versions.py
"""
import re

from common import read, verdict

problems = []
checked = 0


def wants(path, pattern, expected, why):
    """Every match's group 1 is `expected`, and there is one."""
    global checked
    found = re.findall(pattern, read(path), flags=re.M)
    if not found:
        problems.append("%s does not say %s (looked for %s)" % (path, why, pattern))
    for value in found:
        checked += 1
        if value != expected:
            problems.append("%s: %s is %s, but CMakeLists.txt says %s" % (path, why, value, expected))


version = re.search(r"^project\(dtr VERSION (\d+\.\d+\.\d+)", read("CMakeLists.txt"), flags=re.M).group(1)
major, minor, _ = version.split(".")
soversion = major if major != "0" else "0." + minor

# The newest section of the changelog is that of this version, with its date, or not released yet.
sections = re.findall(r"^## (.+)$", read("CHANGELOG.md"), flags=re.M)
newest = sections[0] if sections else "missing"
if not re.fullmatch(re.escape(version) + r" (?:\(unreleased\)|- \d{4}-\d\d-\d\d)", newest):
    problems.append('CHANGELOG.md: the newest section is "%s"; expected "%s (unreleased)" or "%s - DATE"' % (newest, version, version))
older = [re.match(r"\[?(\d+)\.(\d+)\.(\d+)\]?", section) for section in sections]
numbers = [tuple(int(part) for part in match.groups()) for match in older if match]
if numbers != sorted(set(numbers), reverse=True):
    problems.append("CHANGELOG.md: versions do not fall from section to section: %s" % numbers)
if numbers and numbers[0] > tuple(int(part) for part in version.split(".")):
    problems.append("CHANGELOG.md has %s, which is newer than %s" % (numbers[0], version))
if any(section.endswith("(unreleased)") for section in sections[1:]):
    problems.append("CHANGELOG.md: the section that is not released is not the newest")

wants("packaging/conda/recipe.yaml", r'^  version: "([^"]+)"', version, "the version")
wants("packaging/spack/packages/dtr/package.py", r'version\("(\d[^"]*)", tag="v', version, "the newest version")
wants("packaging/spack/packages/dtr/package.py", r'tag="v([^"]+)"', version, "the tag of the newest version")
wants("packaging/README.md", r"`dtr/(\d+\.\d+\.\d+)`", version, "the name of the module")
wants("packaging/README.md", r"`libdtr(\d[\d.]*\d)`", soversion, "the name of the package of the library")
wants("packaging/deb", r"libdtr(?:-cuda)?(\d[\d.]*\d)", soversion, "the name of the package of the library")
wants("docs/user-guide.md", r"libdtr\.so\.(\d[\d.]*\d)", soversion, "the name of the library")
wants("docs/abi.md", r"libdtr\.so\.(\d[\d.]*\d)", soversion, "the name of the library")
wants("CONTRIBUTING.md", r"libdtr\.so\.(\d[\d.]*\d)", soversion, "the name of the library")
wants("docs/release.md", r"v(\d+\.\d+\.\d+)", version, "the tag")
verdict(problems, "%d places agree on %s" % (checked, version))
