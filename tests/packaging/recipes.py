"""The recipes for Spack and conda, as far as they can be judged where neither is: conda's by the parser of rattler-build, which
comes from PyPI into a folder; Spack's by running it against stand-ins for Spack's directives.

Usage: recipes.py SOURCE VENV
"""
import json
import os
import re
import subprocess
import sys
import types

SOURCE, VENV = sys.argv[1:3]
RATTLER = "py-rattler-build==0.73.0"
RENDER = """
import json, sys, rattler_build as r
recipe = r.Stage0Recipe.from_file(sys.argv[1])
variants = r.VariantConfig({"mpi": ["mpich", "openmpi"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]})
made = recipe.render(variants, r.RenderConfig(platform=r.PlatformConfig(target_platform="linux-64")))
print(json.dumps([variant.recipe.to_dict() for variant in made]))
"""


def text(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def fail(why):
    sys.exit("recipes: " + why)


def options():
    """The build options that the tree has."""
    found = set()
    for folder, _, names in os.walk(SOURCE):
        if re.match(r"(build|\.git)", os.path.relpath(folder, SOURCE)):
            continue
        for name in names:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                cmake = text(os.path.join(folder, name))
                found |= set(re.findall(r"\b(?:option\(|set\()(DTR_\w+) (?:\"|[\w;]+ CACHE)", cmake))
                found |= {"DTR_" + short for short in re.findall(r"dtr_(?:optional_package|find_optional)\((\w+) ", cmake)}
    return found


def check_options(where, names):
    unknown = {name for name in names if name.startswith("DTR_")} - options()
    if unknown or not names:
        fail("%s sets %s, which the build does not know" % (where, ", ".join(sorted(unknown)) or "nothing"))


class Spec:
    """The package with all its variants, or with none."""

    def __init__(self, on):
        self.on = on
        self.variants = {"cuda_arch": types.SimpleNamespace(value=("90",) if on else ("none",))}

    def __contains__(self, name):
        return self.on

    satisfies = __contains__

    def __getitem__(self, name):
        return types.SimpleNamespace(mpicc="/mpi/bin/mpicc", prefix="/" + name)


def spack():
    """Runs packaging/spack's package.py: its directives are recorded, its arguments compared with the build's options."""
    path = os.path.join(SOURCE, "packaging/spack/packages/dtr/package.py")
    seen = {"version": [], "variant": [], "depends_on": [], "conflicts": [], "license": [], "generator": []}

    class Package:
        @staticmethod
        def define(name, value):
            return "-D%s=%s" % (name, value)

        def define_from_variant(self, name, variant):
            variant == "cuda" or variant in seen["variant"] or fail("package.py asks for the variant %s, which it does not have" % variant)
            return "-D%s=%s" % (name, "+" + variant in self.spec)

    def directive(name):
        return lambda what, **more: seen[name].append(what)

    package = types.ModuleType("spack.package")
    for name in seen:
        setattr(package, name, directive(name))
    modules = {name: types.ModuleType(name) for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems")}
    modules["spack.package"] = package
    for system, name in (("cmake", "CMakePackage"), ("cuda", "CudaPackage")):
        module = types.ModuleType("spack_repo.builtin.build_systems." + system)
        setattr(module, name, type(name, (Package,) if system == "cmake" else (), {}))
        modules[module.__name__] = module
    sys.modules.update(modules)
    space = {}
    exec(compile(text("packaging/spack/packages/dtr/package.py"), path, "exec"), space)
    for on in (True, False):
        dtr = space["Dtr"]()
        dtr.spec = Spec(on)
        arguments = dtr.cmake_args()
        all(re.match(r"-D\w+=", argument) for argument in arguments) or fail("package.py: %s" % arguments)
        check_options("package.py", {re.match(r"-D(\w+)", argument).group(1) for argument in arguments})
    for needed in ("mpi@3.1:", "cmake@3.22:", "c"):
        needed in seen["depends_on"] or fail("package.py does not depend on %s" % needed)
    return "Spack: %d versions, %d dependencies" % (len(seen["version"]), len(seen["depends_on"]))


def conda():
    """Renders packaging/conda for both MPIs."""
    check_options("build.sh", set(re.findall(r"-D(\w+)=", text("packaging/conda/build.sh"))))
    subprocess.run(["bash", "-n", os.path.join(SOURCE, "packaging/conda/build.sh")], check=True)
    python = os.path.join(VENV, "bin", "python")
    if not os.path.exists(os.path.join(VENV, "ready")):
        for command in ([sys.executable, "-m", "venv", "--clear", VENV], [python, "-m", "pip", "--quiet", "install", RATTLER]):
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode != 0:
                return None
        open(os.path.join(VENV, "ready"), "w").close()
    made = subprocess.run([python, "-c", RENDER, os.path.join(SOURCE, "packaging/conda/recipe.yaml")], capture_output=True, text=True)
    if made.returncode != 0:
        fail("packaging/conda/recipe.yaml is not a recipe:\n" + made.stderr)
    recipes = json.loads(made.stdout)
    sorted(recipe["requirements"]["run"][0] for recipe in recipes) == ["mpich", "openmpi"] or fail("not one recipe for each MPI: %s" % made.stdout)
    for recipe in recipes:
        folder = os.path.join(SOURCE, "packaging/conda")
        os.path.exists(os.path.join(folder, recipe["build"]["script"])) or fail("no script %s" % recipe["build"]["script"])
        source = os.path.normpath(os.path.join(folder, recipe["source"][0]["path"]))
        for licence in recipe["about"]["license_file"]:
            os.path.exists(os.path.join(source, licence)) or fail("no %s in %s" % (licence, source))
    return "conda: rendered for %d MPIs by rattler-build" % len(recipes)


print(spack())
rendered = conda()
if rendered is None:
    print("skipped: %s cannot be had from PyPI here, so conda's recipe is not judged" % RATTLER)
    sys.exit(77)
print(rendered)
