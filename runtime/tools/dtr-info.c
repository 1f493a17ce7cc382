/* dtr-info: what this build of the library is, what it finds on this machine, and all settings. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <dtr/device.h>
#include <dtr/version.h>

#include "base/options.h"
#include "built_with.h"
#include "group/explain.h"
#include "memory/device.h"
#include "topology/cache.h"
#include "world/world.h"

static const char usage[] =
    "usage: dtr-info [--options | --why ... | --version | --help]\n"
    "\n"
    "  (nothing)   version, build and machine\n"
    "  --options   all settings: name, type, default, value now, who set it, meaning\n"
    "  --why CALL DTYPE SIZE [--op NAME] [--ranks N] [--nodes N] [--memory shared|plain|cuda]\n"
    "        [--one-gpu] [--deterministic]\n"
    "              which backend would serve a call of SIZE bytes, as: --why allreduce bf16 4MiB,\n"
    "              on 2 ranks of one node where not given, and why not the others; with --one-gpu\n"
    "              ranks share a GPU\n"
    "  --version   the version line alone\n"
    "  --help      this text\n"
    "\n"
    "Does not start MPI: it runs with or without mpirun, on any host.\n";

static void print_unknown(void *to, const char *name, const char *nearest) {
    fprintf(to, "%s is set but is no setting of this library; the nearest is %s\n", name, nearest);
}

static int print_options(void) {
    dtr__options o;
    if (dtr__options_read(&o) != DTR_OK) {
        fprintf(stderr, "dtr-info: %s\n", dtr_last_error_message());
        return 1;
    }
    dtr__options_print(&o, stdout);
    dtr__options_unknown(print_unknown, stdout);
    dtr__options_free(&o);
    return 0;
}

static void print_version(const char *what, int version) {
    printf(", %s %d.%d", what, version / 1000, version % 1000 / 10);
}

static void print_cuda(void) {
    const dtr__cuda *c = dtr__cuda_get();
    char text[DTR__CUDA_TEXT];
    printf("CUDA devices    %d (%s", c->count, dtr__cuda_text(text));
    if (c->runtime > 0) {
        print_version("runtime", c->runtime);
    }
    if (c->driver > 0) {
        print_version("driver", c->driver);
    }
    puts(")");
    for (int i = 0; i < c->count; i++) {
        dtr__device_facts f;
        int code = c->ops->facts(i, &f);
        if (code != 0) {
            printf("  cuda:%d        %s (CUDA error %d)\n", i, c->ops->error_text(code), code);
            continue;
        }
        printf("  cuda:%d        %s, %zu MiB, compute capability %d.%d, UUID ", i, f.name,
               f.nbytes >> 20, f.major, f.minor);
        for (size_t k = 0; k < sizeof f.uuid; k++) {
            printf("%02x", f.uuid[k]);
        }
        puts(dtr__cuda_has_code(c->ops->code, f.major, f.minor) ? "" : "; no code for it");
    }
}

static int print_facts(void) {
    cpu_set_t cpus;
    char huge[160];
    printf("%s\n", dtr_version_string());
    printf("built with\n%s", DTR_BUILT_WITH);
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        printf("CPUs            %d usable of %ld\n", CPU_COUNT(&cpus),
               sysconf(_SC_NPROCESSORS_ONLN));
    }
    printf("memory          %ld MiB\n",
           sysconf(_SC_PHYS_PAGES) / 1024 * sysconf(_SC_PAGESIZE) / 1024);
    printf("last cache      %zu KiB\n", dtr__last_cache() / 1024);
    dtr__huge_say(huge, sizeof huge);
    printf("huge pages      %s\n", huge);
    printf("CPU devices     %d\n", dtr_device_count(DTR_CPU));
    print_cuda();
    dtr__print_nccl();
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "--why") == 0) {
        return dtr__why(argc - 2, argv + 2);
    }
    if (argc > 2) {
        what = "?";
    }
    if (strcmp(what, "") == 0) {
        return print_facts();
    }
    if (strcmp(what, "--options") == 0) {
        return print_options();
    }
    if (strcmp(what, "--version") == 0) {
        printf("%s\n", dtr_version_string());
        return 0;
    }
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    fprintf(stderr, "dtr-info: cannot make sense of \"%s\"\n%s", argc > 2 ? argv[2] : what, usage);
    return 2;
}
