/* The table of the world's GPUs, which all ranks share, and what follows from it: the device that a
 * rank takes where none is named, and whether NCCL can serve a group. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agreement/mailbox.h"
#include "backends/nccl/nccl_calls.h"
#include "group/gpu_choice.h"
#include "group/gpus.h"
#include "group/groups.h"
#include "memory/device.h"
#include "recorder/recording.h"

/* ---- the table ---- */

struct dtr__gpus {
    int size;
    bool alike; /* no rank can use CUDA, all for the same reason: one entry says it of all */
    dtr__gpu_rank rank[]; /* by world rank, or that one */
};

static const dtr__gpu_rank *entry_of(const dtr__gpus *t, int world_rank) {
    return &t->rank[t->alike ? 0 : world_rank];
}

static uint64_t hash(uint64_t h, const char *text) {
    for (; *text != '\0'; text++) {
        h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
    }
    return h;
}

/* Containers of one machine have one boot identifier and may see one GPU. */
static uint64_t own_host(const dtr_world *world) {
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f != NULL) {
        if (fgets(boot, sizeof boot, f) == NULL) {
            boot[0] = '\0';
        }
        (void)fclose(f);
    }
    return hash(UINT64_C(14695981039346656037), boot[0] != '\0' ? boot : world->host);
}

/* Whether NCCL may make windows that ranks share, as far as its settings say. Without, and across
 * nodes, a window is a local registration, and NCCL does not say so. */
static bool may_share_windows(void) {
    static const char *const needed[] = { "NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE" };
    const char *p2p = getenv("NCCL_P2P_DISABLE");
    bool may = p2p == NULL || atoi(p2p) == 0;
    for (int i = 0; i < 2; i++) {
        const char *v = getenv(needed[i]);
        may = may && (v == NULL || v[0] == '\0' || atoi(v) != 0);
    }
    return may;
}

static void describe_own(const dtr_world *world, dtr__gpu_rank *own) {
    const dtr__cuda *cuda = dtr__cuda_get();
    const char *id = getenv("NCCL_HOSTID"), *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    own->host = own_host(world);
    own->named = DTR__NO_GPU;
    own->usable = cuda->state == DTR__CUDA_OK;
    if (!own->usable) {
        snprintf(own->why, sizeof own->why, "%s", dtr__cuda_state_name(cuda->state));
        return;
    }
    const dtr__nccl_library *l = dtr__nccl_get();
    own->nccl = l->ops != NULL ? l->version : 0;
    own->devices = cuda->count;
    own->nccl_id = id != NULL && id[0] != '\0' ? hash(1, id) : 0;
    own->several = several != NULL && strcmp(several, "1") == 0 && l->version >= 23003;
    own->windows = dtr__opt_number(&world->options, DTR__OPT_NCCL_REGISTER) != 0 &&
                   l->ops != NULL && l->ops->windows() && may_share_windows();
    snprintf(own->why, sizeof own->why, "%.*s", (int)sizeof own->why - 1, l->reason);
    dtr__pci pci[DTR__GPUS] = { { 0 } };
    int n = dtr__gpus_listed(own);
    for (int i = 0; i < n; i++) {
        dtr__device_facts facts;
        if (cuda->ops->facts(i, &facts) == 0) {
            memcpy(own->uuid[i], facts.uuid, DTR__GPU_UUID);
            pci[i] = facts.pci;
        }
    }
    own->named = !world->bound                    ? DTR__ANY_DEVICE
                 : world->device.type == DTR_CUDA ? world->device.index
                                                  : DTR__NO_GPU;
    dtr__gpu_affinity_read(pci, n, own->distance);
}

static void choose_default(dtr_world *world, const dtr__gpus *t) {
    const dtr__gpu_rank *own = entry_of(t, world->rank);
    if (world->bound || own->usable == 0) {
        return;
    }
    const int choice = dtr__gpu_choose(t->rank, t->size, world->rank);
    world->device = (dtr_device){ DTR_CUDA, choice };
    if (own->distance[choice] != DTR__DISTANCE_UNKNOWN) {
        DTR_INFO(world, "device cuda:%d, %d steps from this rank's cores", choice,
                 own->distance[choice]);
    }
}

static const char *version_text(int version, char text[16]) {
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

/* What a report about a GPU begins with, in the log and in the recording. */
static void note_versions(const dtr_world *world) {
    const dtr__cuda *cuda = dtr__cuda_get();
    const dtr__nccl_library *l = dtr__nccl_get();
    dtr__device_facts facts = { 0 };
    char line[320], driver[16], runtime[16], toolkit[16], found[16], built[16], nccl[64];
    if (cuda->ops == NULL || world->device.type != DTR_CUDA ||
        cuda->ops->facts(world->device.index, &facts) != 0) {
        return;
    }
    snprintf(nccl, sizeof nccl, "no NCCL");
    if (l->ops != NULL) {
        snprintf(nccl, sizeof nccl, "NCCL %s (built with %s)",
                 dtr__nccl_version_text(l->version, found),
                 dtr__nccl_version_text(l->ops->built, built));
    }
    snprintf(line, sizeof line,
             "GPU=cuda:%d %s, capability %d.%d, driver %s, CUDA %s (built with %s), %s",
             world->device.index, facts.name, facts.major, facts.minor,
             version_text(cuda->driver, driver), version_text(cuda->runtime, runtime),
             version_text(cuda->ops->toolkit, toolkit), nccl);
    dtr__rec_add_setting(world, line);
    DTR_INFO(world, "%s", line + strlen("GPU="));
}

/* Whether none can use CUDA and all say the same of it: then nobody needs to know more. */
static dtr_status find_alike(const dtr_world *world, const dtr__gpu_rank *own, bool *alike) {
    const uint64_t why = hash(1, own->why);
    const uint64_t mine[3] = { why, ~why, own->usable == 0 };
    uint64_t least[3] = { 0 };
    DTR_TRY(dtr__exchange_min(dtr__members_of(world), mine, least, 3));
    *alike = least[2] != 0 && least[0] == ~least[1];
    return DTR_OK;
}

dtr_status dtr__gpus_open(dtr_world *world, dtr__gpus **gpus) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    dtr__gpu_rank own = { 0 };
    bool alike = false;
    describe_own(world, &own);
    DTR_TRY(find_alike(world, &own, &alike));
    const size_t n = alike ? 1 : (size_t)world->size;
    dtr__gpus *t = calloc(1, sizeof *t + n * sizeof t->rank[0]);
    dtr_status s =
        t == NULL ? DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the GPUs of %d ranks", world->size)
                  : DTR_OK;
    s = dtr__agree_status(dtr__members_of(world), s, "world creation");
    if (s == DTR_OK && t != NULL) {
        t->size = world->size;
        t->alike = alike;
        t->rank[0] = own;
    }
    if (s == DTR_OK && t != NULL && !alike) {
        s = dtr__exchange_allgather(dtr__members_of(world), &own, t->rank, sizeof own);
    }
    if (s < 0 || t == NULL) {
        free(t);
        return s;
    }
    choose_default(world, t);
    note_versions(world);
    *gpus = t;
    return DTR_OK;
}

bool dtr__gpus_all_named(const dtr__gpus *gpus) {
    bool all = true;
    for (int r = 0; r < gpus->size; r++) {
        all = all && entry_of(gpus, r)->named >= 0;
    }
    return all;
}

void dtr__gpus_free(dtr__gpus *gpus) {
    free(gpus);
}

/* ---- a group ---- */

static const dtr__gpu_rank *member(const dtr_group *g, int rank) {
    return entry_of(g->world->groups->gpus, g->world_ranks[rank]);
}

/* False: NCCL cannot serve the group whatever its devices, for `why`. */
static bool have_nccl(const dtr_group *g, char *why, size_t cap) {
    char a[16], b[16];
    for (int r = 0; r < g->size; r++) {
        const dtr__gpu_rank *m = member(g, r);
        if (m->nccl == 0) {
            snprintf(why, cap, "NCCL is not available on rank %d (world %d): %s", r,
                     g->world_ranks[r], m->why);
            return false;
        }
        if (m->nccl != member(g, 0)->nccl) {
            snprintf(why, cap,
                     "the ranks have different versions of NCCL: rank 0 has %s, rank %d %s",
                     dtr__nccl_version_text(member(g, 0)->nccl, a), r,
                     dtr__nccl_version_text(m->nccl, b));
            return false;
        }
    }
    return true;
}

bool dtr__gpus_windows_wanted(const dtr_group *g) {
    bool all = true;
    for (int r = 0; r < g->size && all; r++) {
        const dtr__gpu_rank *m = member(g, r), *first = member(g, 0);
        all = m->windows != 0 && m->host == first->host && m->nccl_id == first->nccl_id;
    }
    return all;
}

/* The device a rank is going to use; -1: not known before it does. */
static int expected_device(const dtr_group *g, const dtr__gpu_rank *own) {
    return g->device.type == DTR_CUDA ? g->device.index : own->devices == 1 ? 0 : -1;
}

/* Members whose GPU the one at `first` uses too, and which. */
static void name_shared(const dtr__gpu_seat *seat, int n, int first, const int *devices,
                        bool allowed, char *why, size_t cap) {
    const dtr__gpu_seat *s = &seat[first];
    size_t at = (size_t)snprintf(why, cap, "ranks %d", s->rank);
    for (int j = first + 1; j < n && dtr__gpu_one_seat(s, &seat[j]); j++) {
        if (!allowed || !dtr__gpu_wanted_by_user(s->of, seat[j].of)) {
            at += at < cap ? (size_t)snprintf(why + at, cap - at, ", %d", seat[j].rank) : 0;
        }
    }
    at = at < cap ? at : cap - 1;
    snprintf(why + at, cap - at,
             " share one GPU (GPU-%02x%02x%02x%02x, cuda:%d of rank %d); give each rank a "
             "GPU of its own, for example by CUDA_VISIBLE_DEVICES",
             s->uuid[0], s->uuid[1], s->uuid[2], s->uuid[3], devices[s->rank], s->rank);
}

/* True: members share a GPU; `why` names them and it. */
static bool shared_gpu(const dtr_group *g, const int *devices, dtr__gpu_seat *seat, char *why,
                       size_t cap) {
    const bool allowed = g->backends.device_named != NULL;
    int n = 0;
    for (int r = 0; r < g->size; r++) {
        const dtr__gpu_rank *m = member(g, r);
        if (devices[r] >= 0 && devices[r] < DTR__GPUS) {
            seat[n++] = (dtr__gpu_seat){ .of = m, .uuid = m->uuid[devices[r]], .rank = r };
        }
    }
    dtr__gpu_seats_sort(seat, n);
    const int first = dtr__gpu_first_shared(seat, n, allowed);
    if (first >= 0) {
        name_shared(seat, n, first, devices, allowed, why, cap);
    }
    return first >= 0;
}

/* Whether members share a GPU; `why` names them and it. */
static dtr_status find_shared(dtr_group *g, char *why, size_t cap, bool *shared) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    int own = expected_device(g, member(g, g->rank));
    int *devices = malloc((size_t)g->size * sizeof *devices);
    dtr__gpu_seat *seat = malloc((size_t)g->size * sizeof *seat);
    dtr_status s = DTR_OK;
    if (devices == NULL || seat == NULL) {
        s = DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the devices of %d ranks", g->size);
    }
    dtr__mpi_lock(g->world);
    s = dtr__agree_status(dtr__members_of_group(g), s, "setting up NCCL");
    if (s == DTR_OK && devices != NULL) {
        s = dtr__exchange_allgather(dtr__members_of_group(g), &own, devices, sizeof own);
    }
    dtr__mpi_unlock(g->world);
    *shared =
        s == DTR_OK && devices != NULL && seat != NULL && shared_gpu(g, devices, seat, why, cap);
    free(devices);
    free(seat);
    return s;
}

dtr_status dtr__gpus_serve_nccl(dtr_group *g, char *why, size_t cap, bool *serve) {
    bool shared = false;
    *serve = have_nccl(g, why, cap);
    if (*serve && g->size > 1) {
        DTR_TRY(find_shared(g, why, cap, &shared));
        *serve = !shared;
    }
    /* One rank takes copies on a stream, and not NCCL itself. */
    *serve = *serve || (g->size == 1 && g->backends.device_named == NULL);
    return DTR_OK;
}

bool dtr__gpus_usable(const dtr_group *g) {
    return member(g, g->rank)->usable != 0;
}
