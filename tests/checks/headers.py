"""Each public header compiles alone as C11 and as C++17, with neither MPI nor CUDA, and so do its _INIT macros. Constant data
needs no cast, and no public name is in the way of members of that name. Names of older versions still compile, with their old types,
and are not there with DTR_NO_DEPRECATED.

Usage: headers.py GENERATED_INCLUDE_DIR CC CXX MPI_INCLUDE_DIR...
Only dtr/mpi.h sees the MPI include folders. Both languages run with pedantic warnings as errors.
"""
import os
import re
import subprocess
import sys
import tempfile

from common import LAYERS, ROOT, prototypes, public_headers, read, tree_files, verdict

generated, cc, cxx, *mpi_folders = sys.argv[1:]
LANGUAGES = (("C11", [cc, "-x", "c", "-std=c11", "-Wstrict-prototypes"]), ("C++17", [cxx, "-x", "c++", "-std=c++17"]))
FLAGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-pedantic-errors", "-Wcast-qual", "-Werror", "-fsyntax-only", "-H"]
# NCC18: and nothing of NCCL.
FOREIGN = re.compile(r"^\.+ .*(?<!/dtr)/(mpi|cuda\w*|nccl)\.h$", re.M)

# A program that has constant data and every header; it needs no cast.
CONSTANT = """#include <dtr/dtr.h>
dtr_status constant(dtr_group *group, const double *data, double *sum, dtr_bytes *all);
dtr_status constant(dtr_group *group, const double *data, double *sum, dtr_bytes *all) {
    static const char text[] = "constant";
    dtr_status s = dtr_allgather_bytes(group, dtr_bytes_in(text, sizeof text), NULL, all);
    if (s < 0) return s;
    s = dtr_broadcast(group, dtr_cuda_in(data, 8, DTR_F64, 0), 0, NULL, NULL);
    return s < 0 ? s : dtr_allreduce(group, dtr_cpu_in(data, 8, DTR_F64), dtr_cpu(sum, 8, DTR_F64), DTR_SUM, NULL, NULL);
}
"""

# Names of older versions, all of dtr/deprecated.h, with the types that programs know.
OLD = """#include <dtr/dtr.h>
struct old {
    size_t (*print_plan)(const dtr_ddp *, char *, size_t);
    dtr_status (*norm2)(const dtr_tensor *, double *);
    void (*plan_free)(dtr_plan *);
    size_t (*n_buckets)(const dtr_plan *);
    size_t (*n_params)(const dtr_ddp_bucket *);
    size_t (*n_states)(const dtr_optim *);
    uint64_t (*size)(const dtr_sampler *);
};
struct old old(void);
struct old old(void) {
    struct old names = {
        dtr_ddp_print_plan,
        dtr_tensor_norm2,
        dtr_plan_free,
        dtr_plan_n_buckets,
        dtr_ddp_bucket_n_params,
        dtr_optim_n_states,
        dtr_sampler_size,
    };
    return names;
}
"""

OLD_PLACES = {"ddp/include/dtr/deprecated.h", "tests/mpi/deprecated.c", "tests/checks/headers.py", "CHANGELOG.md"}

# A class and a namespace of somebody else that have every public name, and pointers to functions.
MEMBERS = """#include <dtr/dtr.h>
struct solver {
%s
};
namespace other {
%s
}
int members(solver &s, dtr_group *group);
int members(solver &s, dtr_group *group) {
    dtr_status (*converted)(dtr_group *, const dtr_coll_options *, dtr_work **) = dtr_barrier;
    auto address = &dtr_barrier;
    auto copy = dtr_barrier;
    return s.all() + converted(group, nullptr, nullptr) + address(group, nullptr, nullptr) + copy(group, nullptr, nullptr) +
           ::dtr_barrier(group, nullptr, nullptr) + dtr_c::dtr_barrier(group, nullptr, nullptr);
}
"""

folders = [generated] + [os.path.join(ROOT, layer, "include") for layer in LAYERS]
problems = []
checked = 0

# dtr/dtr.h stands for all the others.
every = {"dtr/" + os.path.basename(path) for _, path in public_headers(generated)} - {"dtr/dtr.h", "dtr/mpi.h", "dtr/cuda.h"}
for name in sorted(every - set(re.findall(r"#include <(dtr/\w+\.h)>", read("ddp/include/dtr/dtr.h")))):
    problems.append("dtr/dtr.h does not include " + name)

with tempfile.TemporaryDirectory() as scratch:
    source = os.path.join(scratch, "alone")
    for layer, path in public_headers(generated):
        name = "dtr/" + os.path.basename(path)
        macros = re.findall(r"^#define (DTR_(\w+)_INIT)\b", read(path), flags=re.M)
        with open(source, "w", encoding="utf-8") as file:
            # Twice: the include guard counts too.
            file.write("#include <%s>\n#include <%s>\nint alone(void);\nint alone(void) {\n" % (name, name))
            for macro, stem in dict.fromkeys(macros):
                file.write("    dtr_%s %s = %s;\n" % (stem.lower(), stem.lower(), macro))
                file.write("    if (%s.struct_size != sizeof %s) return 1;\n" % (stem.lower(), stem.lower()))
            file.write("    return 0;\n}\n")
        for language, command in LANGUAGES:
            includes = ["-I" + folder for folder in folders]
            if name == "dtr/mpi.h":
                includes += ["-isystem" + folder for folder in mpi_folders]
            run = subprocess.run(command + FLAGS + includes + [source], capture_output=True, text=True)
            checked += 1
            if run.returncode != 0:
                errors = "\n".join(l for l in run.stderr.splitlines() if not re.match(r"\.+ ", l))
                problems.append("%s does not compile alone as %s:\n%s" % (name, language, errors))
            foreign = FOREIGN.search(run.stderr)
            if foreign and name not in ("dtr/mpi.h", "dtr/cuda.h"):
                problems.append("%s includes %s" % (name, foreign.group(0).split("/")[-1]))
    with open(source, "w", encoding="utf-8") as file:
        file.write(CONSTANT)
    for language, command in LANGUAGES:
        strict = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"] if language == "C++17" else []
        run = subprocess.run(command + FLAGS + strict + ["-I" + folder for folder in folders] + [source], capture_output=True, text=True)
        checked += 1
        if run.returncode != 0:
            problems.append("a program with constant data does not compile as %s:\n%s" % (language, run.stderr))

    text = read("ddp/include/dtr/deprecated.h")
    old = re.findall(r"^static inline [^;{]*?\b(dtr_\w+)\(", text, flags=re.M)
    told = re.findall(r"^/\*\* Use [^\n]*; removed in 1\.0\. \*/\nstatic inline [^;{]*?\b(dtr_\w+)\(", text, flags=re.M)
    problems += ["%s: nothing says what to use instead (\"/** Use ...; removed in 1.0. */\")" % name for name in old if name not in told]
    if sorted(old) != sorted(re.findall(r"^ {8}(dtr_\w+),", OLD, flags=re.M)) or not old:
        problems.append("dtr/deprecated.h has %s: name all of them in tests/checks/headers.py, OLD" % ", ".join(old))
    for path in tree_files(".c", ".h", ".cpp", ".in", ".py", ".md"):  # nothing here uses them any more
        if path not in OLD_PLACES:
            problems += ["%s uses %s, a name of older versions" % (path, name) for name in old if re.search(r"\b%s\b" % name, read(path))]
    own = "#define DTR_NO_DEPRECATED\n#include <dtr/dtr.h>\nenum own { %s };\n" % ", ".join(old)  # the program's own
    for program, what in ((OLD, "a program with names of older versions"), (own, "with DTR_NO_DEPRECATED, a program with these names")):
        with open(source, "w", encoding="utf-8") as file:
            file.write(program)
        for language, command in LANGUAGES:
            strict = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"] if language == "C++17" else ["-Wmissing-prototypes"]
            run = subprocess.run(command + FLAGS + strict + ["-Wconversion"] + ["-I" + folder for folder in folders] + [source],
                                 capture_output=True, text=True)
            checked += 1
            if run.returncode != 0:
                problems.append("%s does not compile as %s:\n%s" % (what, language, run.stderr))

    # Names of functions that note their caller: they are declared between the two marks, and named in both lists.
    names = []
    for layer, path in public_headers(generated):
        text = read(path)
        declared = {f.name for f in prototypes(path)}
        names += declared
        marked = set()
        for part in re.findall(r"^DTR_BEGIN_SITED$(.*?)^DTR_END_SITED$", text, flags=re.M | re.S):
            marked |= set(re.findall(r"\b(dtr_\w+)\s*\((?!\s*\*)", re.sub(r"/\*.*?\*/", "", part, flags=re.S)))
        macros = set(re.findall(r"^#define (dtr_\w+)\(", text, flags=re.M))
        objects = set(re.findall(r"^DTR_SITED\((dtr_\w+)\);$", text, flags=re.M))
        for name in sorted((marked | macros | objects) - (marked & macros & objects)):
            problems.append("%s: %s notes its caller in part only: declare it between DTR_BEGIN_SITED and DTR_END_SITED (%s), and "
                            "name it by #define and DTR_AT (%s) and by DTR_SITED (%s)"
                            % (path, name, name in marked, name in macros, name in objects))
    names.sort()
    with open(source, "w", encoding="utf-8") as file:
        file.write(MEMBERS % ("\n".join("    int %s(int x) { return x; }" % n for n in names) +
                              "\n    int barrier() { return 1; }\n    int all() { return barrier()" +
                              "".join(" + %s(1)" % n for n in names) + "; }",
                              "\n".join("int %s(int x);" % n for n in names)))
    for standard in ("c++11", "c++17"):
        run = subprocess.run([cxx, "-x", "c++", "-std=" + standard] + FLAGS + ["-I" + folder for folder in folders] + [source],
                             capture_output=True, text=True)
        checked += 1
        if run.returncode != 0:
            problems.append("members with the names of public functions do not compile as %s:\n%s" % (standard, run.stderr[:4000]))
    if len(names) < 200:
        problems.append("only %d public functions: is the check broken?" % len(names))
verdict(problems, "%d compilations of public headers alone, as C11 and as C++17" % checked)
