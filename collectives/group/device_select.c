/* The choice between the backends that serve buffers on a device. All ranks choose alike, because
 * they know the same of the world's GPUs, of the group and of the call. */
#include "group/device_select.h"
#include "core/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/nccl/nccl_calls.h"
#include "backends/stage/stage.h"
#include "engine/engine.h"
#include "group/gpus.h"
#include "group/groups.h"
#include "memory/device.h"

struct dtr__devices {
    char reason[400]; /* the first that does not serve the group cannot; "": all can */
    pthread_mutex_t lock;
    const char *warned[8]; /* reasons that have been reported; lock */
};

/* ---- a group ---- */

static dtr_status open_backend(dtr_group *g, const dtr__backend *b) {
    int i = g->backends.served;
    DTR_TRY(b->open(g, &g->backends.state[i]));
    g->backends.table[i] = b;
    g->backends.served++;
    return DTR_OK;
}

/* All members ask, and get one answer. */
static dtr_status ask(dtr_group *g, const dtr__known_backend *k, char *why, size_t cap,
                      bool *serves) {
    const char *reason = "";
    if (k->serves != NULL) {
        return k->serves(g, why, cap, serves);
    }
    *serves = k->backend->score(g, NULL, &reason) > 0;
    snprintf(why, cap, "%s", *serves ? "" : reason);
    return DTR_OK;
}

static dtr_status open_candidate(dtr_group *g, const dtr__known_backend *k) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    const dtr__backend *named = g->backends.device_named;
    char why[sizeof g->devices->reason] = "";
    bool serves = false;
    if (named != NULL && named != k->backend) {
        return DTR_OK;
    }
    DTR_TRY(ask(g, k, why, sizeof why, &serves));
    if (g->devices->reason[0] == '\0') {
        memcpy(g->devices->reason, why, sizeof why);
    }
    DTR_REQUIRE(serves || named == NULL, &ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": %s cannot serve this group: %s, or ask for cuda:stage; a "
                "backend named explicitly never falls back",
                g->backends.asked, k->name, why);
    return dtr__gpus_usable(g) && serves ? open_backend(g, k->backend) : DTR_OK;
}

dtr_status dtr__devices_open(dtr_group *g) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    g->backends.served = g->backends.n;
    if (!g->backends.takes_devices) {
        return DTR_OK;
    }
    g->devices = calloc(1, sizeof *g->devices);
    dtr_status s = DTR_OK;
    if (g->devices == NULL) {
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the devices of group '%s'", g->name);
    }
    pthread_mutex_init(&g->devices->lock, NULL);
    const dtr__known_backend *k;
    for (int i = 0; s == DTR_OK && (k = dtr__select_at(i)) != NULL; i++) {
        s = k->device == DTR_CUDA ? open_candidate(g, k) : DTR_OK;
    }
    return s;
}

void dtr__devices_close(dtr_group *g) {
    while (g->backends.served > g->backends.n) {
        int i = --g->backends.served;
        g->backends.table[i]->close(g, g->backends.state[i]);
        g->backends.state[i] = NULL;
    }
    if (g->devices != NULL) {
        pthread_mutex_destroy(&g->devices->lock);
        free(g->devices);
        g->devices = NULL;
    }
}

/* ---- a call ---- */

/* -1: none of the group's candidates takes it. `why`: the reason that the first of them gives. */
static int choose(const dtr_group *g, const dtr__call *c, const char **why) {
    int best = -1, best_score = 0;
    *why = g->backends.device_named == NULL ? g->devices->reason : "";
    for (int i = g->backends.n; i < g->backends.served; i++) {
        const char *reason = "";
        int score = g->backends.table[i]->score(g, c, &reason);
        *why = score == 0 && i == g->backends.n ? reason : *why;
        if (score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

/* One warning for each group and reason, of its first rank. */
static void warn(dtr_group *g, const dtr__call *c, const char *why) {
    struct dtr__devices *d = g->devices;
    enum { MOST = sizeof d->warned / sizeof d->warned[0] };
    if (g->rank != 0 || why[0] == '\0') {
        return;
    }
    int i = 0;
    pthread_mutex_lock(&d->lock);
    while (i < MOST && d->warned[i] != NULL && d->warned[i] != why) {
        i++;
    }
    bool first = i < MOST && d->warned[i] == NULL;
    if (first) {
        d->warned[i] = why;
    }
    pthread_mutex_unlock(&d->lock);
    if (first) {
        DTR_WARN(g->world,
                 "group '%s': buffers of %s on cuda:%d travel through host memory, because %s; a "
                 "backend text with cuda:stage asks for that and ends this warning",
                 g->name, dtr__kind_name(c->kind), c->device.index, why);
    }
}

dtr_status dtr__device_select_again(dtr_group *g, const dtr__call *c, int *backend) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    const char *why = "";
    *backend = choose(g, c, &why);
    const dtr__backend *named = g->backends.device_named;
    DTR_REQUIRE(*backend >= 0 || named == NULL || named == &dtr__backend_stage ||
                    (dtr__backend_stage.kinds >> c->kind & 1) == 0,
                &ctx, DTR_ERR_UNSUPPORTED,
                "%s %s %s on group '%s': %s was named and cannot serve it: %s; cuda:auto or "
                "cuda:stage can",
                dtr__kind_name(c->kind), dtr_dtype_name(c->dtype),
                dtr__kind_reduces(c->kind) ? dtr__op_name(c->op) : "", g->name, named->name, why);
    DTR_REQUIRE(*backend >= 0, &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': no backend takes buffers on a device for it; copy them to host "
                "memory",
                dtr__kind_name(c->kind), g->name);
    if (g->backends.table[*backend]->launch == NULL && named == NULL) {
        warn(g, c, why);
    }
    return DTR_OK;
}

static dtr_status check_capture(const dtr_group *g, const dtr__call *c, bool in_scope,
                                const dtr__backend *b) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    DTR_REQUIRE(!in_scope, &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': its stream captures a graph, which takes calls one by one and "
                "no coalescing scope",
                dtr__kind_name(c->kind), g->name);
    DTR_REQUIRE(b->launch != NULL, &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': its stream captures a graph, and the operation would travel "
                "through host memory, which no graph can hold; call it outside the capture",
                dtr__kind_name(c->kind), g->name);
    return DTR_OK;
}

dtr_status dtr__device_select(dtr_group *g, dtr__call *c, const dtr__request *r, bool in_scope,
                              int *backend, bool *captured) {
    const char *why;
    DTR_TRY(dtr__nccl_capture_poll(g, c, captured));
    *backend = choose(g, c, &why);
    if (*backend < 0 || (g->backends.table[*backend]->launch == NULL && !*captured)) {
        return dtr__device_select_again(g, c, backend);
    }
    const dtr__backend *b = g->backends.table[*backend];
    DTR_TRY(b->check != NULL ? b->check(g, c) : DTR_OK);
    DTR_TRY(*captured ? check_capture(g, c, in_scope, b) : DTR_OK);
    if (b->launch != NULL && (r->options == NULL || r->options->timeout_s <= 0)) {
        c->timeout_s = g->timeout_cuda_s;
    }
    return DTR_OK;
}

const char *dtr__device_backend(const dtr_group *g, const dtr__call *c, const char **why) {
    *why = "";
    if (!g->backends.takes_devices || dtr__cuda_get()->state != DTR__CUDA_OK) {
        return "";
    }
    int i = choose(g, c, why);
    const dtr__backend *b = i >= 0 ? g->backends.table[i] : &dtr__backend_stage;
    *why = b->launch != NULL ? "" : *why;
    return b->name;
}

/* ---- setting up ---- */

bool dtr__devices_eager(const dtr_group *g) {
    const char *why;
    return g->asked.bound && g->device.type == DTR_CUDA && g->backends.takes_devices &&
           strcmp(dtr__device_backend(g, NULL, &why), "nccl") == 0;
}

dtr_status dtr__device_windows(dtr_group *g, int device, void *const *blocks, size_t n,
                               const char **way) {
    const char *why;
    bool nccl = strcmp(dtr__device_backend(g, NULL, &why), "nccl") == 0;
    bool wanted = nccl && g->size > 1 && n > 0 && g->backends.windows;
    *way = "";
    DTR_TRY(wanted ? dtr_group_drain(g, -1) : DTR_OK); /* a communicator may have to go */
    return nccl ? dtr__nccl_windows(g, device, blocks, n, wanted, way) : DTR_OK;
}

size_t dtr__device_whole(const dtr_world *world, size_t nbytes) {
    return dtr__nccl_whole(world, nbytes);
}

/* Where operations go through the host they need memory there, and no other rank. */
static dtr_status get_ready(dtr_group *g, int device) {
    const char *why;
    DTR_TRY(dtr__nccl_ready(g, device));
    const bool stage = strcmp(dtr__device_backend(g, NULL, &why), "stage") == 0;
    for (int i = g->backends.n; i < g->backends.served && stage; i++) {
        if (g->backends.table[i] == &dtr__backend_stage) {
            return dtr__stage_ahead(g, g->backends.state[i], device);
        }
    }
    return DTR_OK;
}

static dtr_status group_connect(dtr_group *g, dtr_device device) {
    static const char entry[] = "dtr_group_connect";
    dtr_status s = dtr__group_check(g, entry);
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = g->world, .operation = entry, .group = g->name };
    DTR_TRY(dtr__device_check(device, entry));
    DTR_REQUIRE(!g->asked.bound || g->device.type != DTR_CUDA || device.type != DTR_CUDA ||
                    g->device.index == device.index,
                &ctx, DTR_ERR_DEVICE,
                "dtr_group_connect: device is cuda:%d, and group '%s' was made for cuda:%d",
                device.index, g->name, g->device.index);
    DTR_REQUIRE(!dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                "dtr_group_connect of group '%s' inside a completion callback would wait for other "
                "ranks; call it from the program's own thread",
                g->name);
    DTR_REQUIRE(
        atomic_load_explicit(&g->calls.scope, memory_order_acquire) == NULL, &ctx, DTR_ERR_STATE,
        "dtr_group_connect: a coalescing scope of group '%s' is open; end it first", g->name);
    dtr__notifier_visit(g->world);
    if (atomic_load(&g->status) != DTR_OK) {
        return dtr__group_broken(g);
    }
    return device.type == DTR_CUDA ? get_ready(g, device.index) : DTR_OK;
}

dtr_status dtr_group_connect(dtr_group *group, dtr_device device) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_connect", group->name,
                      group_connect(group, device));
}

/* ---- dtr-info --why ---- */

static int none(const char *status, const char *why) {
    printf("none is chosen: the call would be refused with %s: %s\n", status, why);
    return 1;
}

/* What NCCL would know of memory with the setting on. */
static void print_memory(const dtr__nccl_ops *ops) {
    printf("  memory with DTR_NCCL_REGISTER=1: %s\n",
           ops->windows()     ? "blocks are registered, buckets of DDP are windows of NCCL too"
           : ops->registers() ? "blocks are registered; windows need NCCL 2.27"
                              : "as without it, which needs NCCL 2.19");
}

int dtr__device_explain(dtr_group *g, const dtr__call *c, const char *wanted, bool one_gpu) {
    const dtr__nccl_library *l = dtr__nccl_get();
    const char *why = "";
    char text[DTR__CUDA_TEXT];
    bool stage = strcmp(wanted, "stage") == 0, nccl = strcmp(wanted, "nccl") == 0;
    bool copies = g->size == 1 && !stage && !nccl;
    if (dtr__cuda_get()->state != DTR__CUDA_OK) {
        return none("DTR_ERR_DEVICE", dtr__cuda_text(text));
    }
    const dtr__nccl_ops *ops = one_gpu && g->size > 1 ? NULL : l->ops;
    bool can = dtr__nccl_can(ops, g->size, copies, c, &why);
    if (ops == NULL && !copies) {
        why = l->ops != NULL ? "NCCL puts no two ranks on one GPU" : l->reason;
    }
    printf("  nccl   %s%s\n", can ? "can serve it" : "cannot: ", can ? "" : why);
    printf("  stage  can serve it, through host memory\n");
    if (can && !copies) {
        print_memory(l->ops);
    }
    if (nccl && !can) {
        return none("DTR_ERR_UNSUPPORTED", "nccl is named, and what is named never falls back");
    }
    printf("%s is chosen: %s\n", can && !stage ? "nccl" : "stage",
           stage || nccl ? "it is named"
           : !can        ? "nccl cannot; the group's first rank warns once"
           : copies      ? "one rank needs a copy on its stream, and not NCCL itself"
                         : "every rank has a GPU of its own, as far as is known here");
    return 0;
}
