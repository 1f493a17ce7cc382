/* What ranks report of their GPUs, and what follows from it: the device that a rank takes where
 * none is named, and whether NCCL can serve a group. A rank keeps its own entry alone. */
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

/* ---- the world's ---- */

struct dtr__gpus {
    dtr__gpu_rank own;
    bool alike;     /* no rank can use CUDA, all for the same reason */
    bool all_named; /* every rank's options have a GPU */
};

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

/* What of the ranks of the world is so on all. Where none can use CUDA and all say the same of it,
 * nobody needs to know more. */
static dtr_status compare(const dtr_world *world, dtr__gpus *t) {
    const uint64_t why = hash(1, t->own.why);
    const uint64_t mine[] = { why, ~why, t->own.usable == 0, t->own.named >= 0 };
    uint64_t least[4] = { 0 };
    DTR_TRY(dtr__exchange_min(dtr__members_of(world), mine, least, 4));
    t->alike = least[2] != 0 && least[0] == ~least[1];
    t->all_named = least[3] != 0;
    return DTR_OK;
}

/* Ranks of which each has all of its host among them: those of its node, or, where containers of
 * one machine are nodes, all. */
static dtr_status find_neighbours(const dtr_world *world, uint64_t host, dtr__members *who) {
    const dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    const dtr__members all = dtr__members_of(world);
    uint64_t *hosts = malloc((size_t)all.size * sizeof *hosts);
    int n = 0, inside = 0;
    dtr_status s = hosts == NULL
                       ? DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for %d hosts of GPUs", all.size)
                       : DTR_OK;
    s = dtr__agree_status(all, s, "world creation");
    if (s == DTR_OK && hosts != NULL) {
        s = dtr__exchange_allgather(all, &host, hosts, sizeof host);
        for (int r = 0; s == DTR_OK && r < all.size; r++) {
            n += hosts[r] == host;
        }
    }
    free(hosts);
    DTR_TRY(s);
    DTR_TRY(dtr__exchange_min_of(all, n == world->local_size, &inside));
    *who = inside ? dtr__members_of_node(world) : all;
    return DTR_OK;
}

/* Ranks of a host choose in turn, so each has to know what the others have. */
static dtr_status choose_default(dtr_world *world, const dtr__gpu_rank *own) {
    const dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    dtr__members who;
    DTR_TRY(find_neighbours(world, own->host, &who));
    dtr__gpu_rank *rank = malloc((size_t)who.size * sizeof *rank);
    dtr_status s =
        rank == NULL ? DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the GPUs of %d ranks", who.size)
                     : DTR_OK;
    s = dtr__agree_status(dtr__members_of(world), s, "world creation");
    s = s == DTR_OK ? dtr__exchange_allgather(who, own, rank, sizeof *own) : s;
    if (s == DTR_OK && rank != NULL && !world->bound && own->usable != 0) {
        const int choice = dtr__gpu_choose(rank, who.size, who.rank);
        world->device = (dtr_device){ DTR_CUDA, choice };
        if (own->distance[choice] != DTR__DISTANCE_UNKNOWN) {
            DTR_INFO(world, "device cuda:%d, %d steps from this rank's cores", choice,
                     own->distance[choice]);
        }
    }
    free(rank);
    return s;
}

dtr_status dtr__gpus_open(dtr_world *world, dtr__gpus **gpus) {
    const dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    dtr__gpus *t = calloc(1, sizeof *t);
    dtr_status s =
        t == NULL ? DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for a rank's GPUs") : DTR_OK;
    s = dtr__agree_status(dtr__members_of(world), s, "world creation");
    if (s == DTR_OK && t != NULL) {
        describe_own(world, &t->own);
        s = compare(world, t);
        s = s == DTR_OK && !t->alike && !t->all_named ? choose_default(world, &t->own) : s;
    }
    if (s < 0) {
        free(t);
        return s;
    }
    note_versions(world);
    *gpus = t;
    return DTR_OK;
}

bool dtr__gpus_all_named(const dtr__gpus *gpus) {
    return gpus->all_named;
}

void dtr__gpus_free(dtr__gpus *gpus) {
    free(gpus);
}

/* ---- a group ---- */

static const dtr__gpu_rank *own_of(const dtr_group *g) {
    return &g->world->groups->gpus->own;
}

/* With the device that this rank is going to use; -1: not known before it does. */
static dtr__gpu_seat own_seat(const dtr_group *g) {
    const dtr__gpu_rank *own = own_of(g);
    dtr__gpu_seat s = { .host = own->host,
                        .nccl_id = own->nccl_id,
                        .nccl = own->nccl,
                        .several = own->several,
                        .windows = own->windows,
                        .rank = g->rank };
    s.device = g->device.type == DTR_CUDA ? g->device.index : own->devices == 1 ? 0 : -1;
    if (s.device >= DTR__GPUS) {
        s.device = -1;
    } else if (s.device >= 0) {
        memcpy(s.uuid, own->uuid[s.device], sizeof s.uuid);
    }
    return s;
}

static void say_lacking(const dtr_group *g, int rank, const char *text, char *why, size_t cap) {
    snprintf(why, cap, "NCCL is not available on rank %d (world %d): %s", rank,
             g->world_ranks[rank], text);
}

/* Whether all members have one NCCL; `why` not. */
static dtr_status have_nccl(const dtr_group *g, const dtr__gpu_seat *seat, char *why, size_t cap,
                            bool *have) {
    char a[16], b[16], text[sizeof own_of(g)->why];
    int r = 0;
    while (r < g->size && seat[r].nccl != 0 && seat[r].nccl == seat[0].nccl) {
        r++;
    }
    *have = r == g->size;
    if (!*have && seat[r].nccl == 0) {
        memcpy(text, own_of(g)->why, sizeof text);
        DTR_TRY(dtr__exchange_broadcast(dtr__members_of_group(g), text, sizeof text, r));
        say_lacking(g, r, text, why, cap);
    } else if (!*have) {
        snprintf(why, cap, "the ranks have different versions of NCCL: rank 0 has %s, rank %d %s",
                 dtr__nccl_version_text(seat[0].nccl, a), r,
                 dtr__nccl_version_text(seat[r].nccl, b));
    }
    return DTR_OK;
}

static bool want_windows(const dtr__gpu_seat *seat, int n) {
    bool all = true;
    for (int r = 0; r < n && all; r++) {
        all = seat[r].windows != 0 && seat[r].host == seat[0].host &&
              seat[r].nccl_id == seat[0].nccl_id;
    }
    return all;
}

/* Members whose GPU the one at `first` uses too, and which. */
static void name_shared(const dtr__gpu_seat *seat, int n, int first, bool allowed, char *why,
                        size_t cap) {
    const dtr__gpu_seat *s = &seat[first];
    size_t at = (size_t)snprintf(why, cap, "ranks %d", s->rank);
    for (int j = first + 1; j < n && dtr__gpu_one_seat(s, &seat[j]); j++) {
        if (!allowed || !dtr__gpu_wanted_by_user(s, &seat[j])) {
            at += at < cap ? (size_t)snprintf(why + at, cap - at, ", %d", seat[j].rank) : 0;
        }
    }
    at = at < cap ? at : cap - 1;
    snprintf(why + at, cap - at,
             " share one GPU (GPU-%02x%02x%02x%02x, cuda:%d of rank %d); give each rank a "
             "GPU of its own, for example by CUDA_VISIBLE_DEVICES",
             s->uuid[0], s->uuid[1], s->uuid[2], s->uuid[3], s->device, s->rank);
}

/* True: members share a GPU; `why` names them and it. The seats are in another order then. */
static bool shared_gpu(const dtr_group *g, dtr__gpu_seat *seat, char *why, size_t cap) {
    const bool allowed = g->backends.device_named != NULL;
    int n = 0;
    for (int r = 0; r < g->size; r++) {
        if (seat[r].device >= 0) {
            seat[n++] = seat[r];
        }
    }
    dtr__gpu_seats_sort(seat, n);
    const int first = dtr__gpu_first_shared(seat, n, allowed);
    if (first >= 0) {
        name_shared(seat, n, first, allowed, why, cap);
    }
    return first >= 0;
}

static dtr_status ask_members(dtr_group *g, char *why, size_t cap, bool *serve) {
    const dtr__error_context ctx = { .world = g->world, .group = g->name };
    const dtr__gpu_seat own = own_seat(g);
    dtr__gpu_seat *seat = malloc((size_t)g->size * sizeof *seat);
    dtr_status s = DTR_OK;
    if (seat == NULL) {
        s = DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the devices of %d ranks", g->size);
    }
    *serve = false;
    dtr__mpi_lock(g->world);
    s = dtr__agree_status(dtr__members_of_group(g), s, "setting up NCCL");
    if (s == DTR_OK && seat != NULL) {
        s = dtr__exchange_allgather(dtr__members_of_group(g), &own, seat, sizeof own);
        s = s == DTR_OK ? have_nccl(g, seat, why, cap, serve) : s;
    }
    dtr__mpi_unlock(g->world);
    if (s == DTR_OK && seat != NULL && *serve) {
        g->backends.windows = want_windows(seat, g->size);
        *serve = !shared_gpu(g, seat, why, cap);
    }
    free(seat);
    return s;
}

dtr_status dtr__gpus_serve_nccl(dtr_group *g, char *why, size_t cap, bool *serve) {
    const dtr__gpus *t = g->world->groups->gpus;
    if (g->size > 1 && !t->alike) {
        return ask_members(g, why, cap, serve);
    }
    *serve = t->own.nccl != 0;
    if (!*serve) {
        say_lacking(g, 0, t->own.why, why, cap);
    }
    /* One rank takes copies on a stream, and not NCCL itself. */
    *serve = *serve || (g->size == 1 && g->backends.device_named == NULL);
    return DTR_OK;
}

bool dtr__gpus_usable(const dtr_group *g) {
    return own_of(g)->usable != 0;
}
