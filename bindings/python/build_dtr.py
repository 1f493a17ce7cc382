"""Makes the extension module dtr._dtr from the headers of the installed C library.

The library is the one of pkg-config's dtr.pc, looked for below DTR_PREFIX first where that is set.
With DTR_NO_RPATH=1 the module does not name the library's folder, for packages of a system.
Its declarations are what the C compiler sees of <dtr/dtr.h>, so that no list is kept by hand; the
compiler then checks them once more against the headers.
"""
import glob
import os
import re
import shlex
import subprocess
import sys
import sysconfig

from cffi import FFI

# Macros of the headers; and the few functions of this module, at the end of SOURCE.
BY_HAND = """
#define DTR_ANY_SOURCE ...
#define DTR_PEER_NONE ...
#define DTR_VERSION ...

typedef struct pydtr_bell pydtr_bell;
pydtr_bell *pydtr_bell_new(void);
int pydtr_bell_fd(const pydtr_bell *bell);
dtr_status pydtr_bell_watch(pydtr_bell *bell, dtr_work *work);
void pydtr_bell_drop(pydtr_bell *bell);
dtr_status pydtr_world_from_comm(const void *comm, size_t size, const dtr_world_options *options, dtr_world **world);
void *pydtr_map_again(void *address, size_t nbytes);
void pydtr_unmap(void *address, size_t nbytes);
extern "Python" dtr_status pydtr_store_put(void *arg, const char *key, const void *value, size_t nbytes);
extern "Python" dtr_status pydtr_store_get(void *arg, const char *key, void *value, size_t cap, size_t *nbytes, double timeout_s);
"""

SOURCE = r"""
#define DTR_NO_CALL_SITE /* the call site is the line of the Python program, noted before each call */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <dtr/dtr.h>

/* Wakes the loop of asyncio: works that end ring it on whatever thread they end, without Python. It
 * goes with the last of its owners, who are the loop and each work that has yet to ring. */
typedef struct pydtr_bell {
    int fd;
    atomic_int owners;
} pydtr_bell;

static pydtr_bell *pydtr_bell_new(void) {
    pydtr_bell *bell = malloc(sizeof *bell);
    if (bell == NULL) {
        return NULL;
    }
    bell->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_init(&bell->owners, 1);
    if (bell->fd < 0) {
        free(bell);
        return NULL;
    }
    return bell;
}

static int pydtr_bell_fd(const pydtr_bell *bell) {
    return bell->fd;
}

static void pydtr_bell_drop(pydtr_bell *bell) {
    if (atomic_fetch_sub(&bell->owners, 1) == 1) {
        close(bell->fd);
        free(bell);
    }
}

static void ring(dtr_work *work, dtr_status status, void *arg) {
    pydtr_bell *bell = arg;
    int saved = errno;
    (void)work;
    (void)status;
    (void)!write(bell->fd, &(uint64_t){ 1 }, sizeof(uint64_t)); /* full: it rings already */
    pydtr_bell_drop(bell);
    errno = saved;
}

static dtr_status pydtr_bell_watch(pydtr_bell *bell, dtr_work *work) {
    atomic_fetch_add(&bell->owners, 1);
    dtr_status status = dtr_work_on_complete(work, ring, bell);
    if (DTR_FAILED(status)) {
        pydtr_bell_drop(bell);
    }
    return status;
}

/* An MPI_Comm is a pointer or an int, which mpi4py tells by its size; mpi.h is not needed for it. */
extern dtr_status dtr_world_create_from_comm();

static dtr_status pydtr_world_from_comm(const void *comm, size_t size,
                                        const dtr_world_options *options, dtr_world **world) {
    if (size == sizeof(int)) {
        int handle;
        memcpy(&handle, comm, sizeof handle);
        return ((dtr_status(*)(int, const dtr_world_options *, dtr_world **))
                    dtr_world_create_from_comm)(handle, options, world);
    }
    void *handle;
    memcpy(&handle, comm, sizeof handle);
    return ((dtr_status(*)(void *, const dtr_world_options *, dtr_world **))
                dtr_world_create_from_comm)(handle, options, world);
}

/* The pages of shared memory a second time, at an address of this module's own, which stays good
 * when the world unmaps the first; NULL with errno. */
static void *pydtr_map_again(void *address, size_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (uintptr_t)address % page;
    char *again = mremap((char *)address - skip, 0, skip + nbytes, MREMAP_MAYMOVE);
    return again == MAP_FAILED ? NULL : again + skip;
}

static void pydtr_unmap(void *address, size_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (uintptr_t)address % page;
    munmap((char *)address - skip, skip + nbytes);
}
"""


def pkg_config(prefix, *args):
    """What pkg-config says of the library, or None."""
    env = dict(os.environ)
    if prefix:
        found = glob.glob(os.path.join(prefix, "lib*", "pkgconfig")) + glob.glob(os.path.join(prefix, "lib", "*", "pkgconfig"))
        env["PKG_CONFIG_PATH"] = ":".join(found)
        env["PKG_CONFIG_LIBDIR"] = ""  # that one and no other
    try:
        done = subprocess.run(["pkg-config", *args, "dtr"], env=env, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_library():
    """Where the installed C library is: include and library folders, and its version."""
    prefix = os.environ.get("DTR_PREFIX", "")
    version = pkg_config(prefix, "--modversion")
    if version is None:
        where = ("below DTR_PREFIX=%s" % prefix if prefix else
                 "by pkg-config (PKG_CONFIG_PATH is '%s')" % os.environ.get("PKG_CONFIG_PATH", ""))
        sys.exit("\ndtr: the C library was not found %s: there is no dtr.pc, or no pkg-config.\n"
                 "Install the library first (cmake --install build/release --prefix DIR), then set DTR_PREFIX=DIR, "
                 "or PKG_CONFIG_PATH to the folder with dtr.pc.\n" % where)
    flags = shlex.split(pkg_config(prefix, "--cflags-only-I") or "")
    include = pkg_config(prefix, "--variable=includedir")
    return {"version": version, "libdir": pkg_config(prefix, "--variable=libdir"),
            "include": [flag[2:] for flag in flags] or [include]}


def declarations(include):
    """What the compiler sees of the library's own headers, as cffi reads it."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-E", "-DDTR_NO_CALL_SITE", "-DDTR_NO_DEPRECATED", "-x", "c", "-", *("-I" + folder for folder in include)]
    text = subprocess.run(command, input="#include <dtr/dtr.h>\n", check=True, capture_output=True, text=True).stdout
    ours, lines = False, []
    for line in text.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            ours = re.search(r"/dtr/[^/]+\.h$", marker.group(1)) is not None
        elif ours:
            lines.append(line)
    text = re.sub(r"__attribute__\s*\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)", "", "\n".join(lines))
    # Functions that are inline are not needed: a body ends at a brace in the first column.
    text = re.sub(r"^static inline .*?^\}", "", text, flags=re.M | re.S)
    return re.sub(r"^extern (?=dtr|const|void|int|bool|_Bool|size_t|double|uint)", "", text, flags=re.M)


def make():
    library = find_library()
    builder = FFI()
    folders = [] if os.environ.get("DTR_NO_RPATH") == "1" else [library["libdir"]]
    builder.cdef(declarations(library["include"]) + BY_HAND)
    builder.set_source("dtr._dtr", SOURCE, include_dirs=library["include"], library_dirs=[library["libdir"]], libraries=["dtr"],
                       runtime_library_dirs=folders, extra_compile_args=["-std=gnu11", "-O1", "-Wno-deprecated-declarations"])
    return builder


ffibuilder = make()
