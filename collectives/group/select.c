/* Which backends serve a group: the backend text ("cpu:mpi,cuda:auto"), the table of backends that
 * are built in, and the choice among them. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/hier/hier.h"
#include "backends/mpi/mpi.h"
#include "backends/nccl/nccl_calls.h"
#include "backends/self/self.h"
#include "backends/shm/shm.h"
#include "backends/stage/stage.h"
#include "backends/user/user_backend.h"
#include "core/call.h"
#include "group/gpus.h"
#include "group/groups.h"
#include "memory/device.h"

#ifdef DTR_HAVE_NCCL
enum { WITH_NCCL = true };
#else
enum { WITH_NCCL = false };
#endif

#ifdef DTR_HAVE_CUDA
enum { WITH_CUDA = true };
#else
enum { WITH_CUDA = false };
#endif

/* Of one device, the first that serves a group is asked first. */
static const dtr__known_backend known[] = {
    { "self", DTR_CPU, &dtr__backend_self, true, NULL },
    { "shm", DTR_CPU, &dtr__backend_shm, true, NULL },
    { "mpi", DTR_CPU, &dtr__backend_mpi, true, NULL },
    { "tcp", DTR_CPU, &dtr__backend_tcp, true, NULL },
    { "hier", DTR_CPU, &dtr__backend_hier, true, NULL },
    { "nccl", DTR_CUDA, &dtr__backend_nccl, WITH_NCCL, dtr__gpus_serve_nccl },
    { "stage", DTR_CUDA, &dtr__backend_stage, true, NULL },
};
enum { N_KNOWN = sizeof(known) / sizeof(known[0]) };

static const char *const device_names[DTR__DEVICE_TYPES] = {
    [DTR_CPU] = "cpu", [DTR_CUDA] = "cuda"
};

static int find_known(const char *name) {
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcasecmp(known[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

const dtr__known_backend *dtr__select_at(int i) {
    return i < N_KNOWN ? &known[i] : NULL;
}

/* ---- backends registered by the program ---- */

/* The world's lock is held. */
static const dtr__user_backend *find_registered(const dtr__groups *gs, const char *name) {
    const dtr__user_backend *b = gs->user_backends;
    while (b != NULL && strcasecmp(b->name, name) != 0) {
        b = b->next;
    }
    return b;
}

/* NULL: there is none of that name, in any case. They stay until the world ends. */
static const dtr__user_backend *registered(const dtr_world *world, const char *name) {
    const dtr__user_backend *b = NULL;
    if (world != NULL && world->groups != NULL) {
        pthread_mutex_lock(&world->groups->lock);
        b = find_registered(world->groups, name);
        pthread_mutex_unlock(&world->groups->lock);
    }
    return b;
}

void dtr__user_backends_free(dtr__user_backend *list) {
    while (list != NULL) {
        dtr__user_backend *next = list->next;
        free(list);
        list = next;
    }
}

dtr_status dtr_backend_register(dtr_world *world, const char *name, const dtr_backend_ops *ops,
                                uint32_t device_mask) {
    dtr__user_backend *b = NULL;
    DTR_TRY(dtr__world_check(world));
    DTR_TRY(dtr__user_backend_new(world, name, ops, device_mask, &b));
    dtr__groups *gs = world->groups;
    pthread_mutex_lock(&gs->lock);
    const bool exists = find_known(name) >= 0 || find_registered(gs, name) != NULL;
    if (!exists) {
        b->next = gs->user_backends;
        gs->user_backends = b;
    }
    pthread_mutex_unlock(&gs->lock);
    if (exists) {
        dtr__error_context ctx = { .world = world, .operation = "dtr_backend_register" };
        free(b);
        return DTR_FAIL(&ctx, DTR_ERR_STATE,
                        "dtr_backend_register: there is a backend \"%s\" already; names compare "
                        "without case",
                        name);
    }
    return DTR_OK;
}

bool dtr_backend_available(const dtr_world *world, const char *name) {
    if (name == NULL) {
        return false;
    }
    int i = find_known(name);
    if (i >= 0 && known[i].device == DTR_CUDA && !WITH_CUDA) {
        return false; /* stage is compiled in and would have no device to serve */
    }
    return i >= 0 ? known[i].in_build : registered(world, name) != NULL;
}

/* "self, mpi" - the names that would be accepted, for messages. */
static const char *list_available(const dtr_world *world, char *text, size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < N_KNOWN && at < cap; i++) {
        if (known[i].in_build) {
            at += (size_t)snprintf(text + at, cap - at, "%s%s", at > 0 ? ", " : "", known[i].name);
        }
    }
    if (world != NULL && world->groups != NULL) {
        pthread_mutex_lock(&world->groups->lock);
        for (const dtr__user_backend *b = world->groups->user_backends; b != NULL; b = b->next) {
            at = strlen(text);
            snprintf(text + at, cap - at, "%s%s", at > 0 ? ", " : "", b->name);
        }
        pthread_mutex_unlock(&world->groups->lock);
    }
    return text;
}

/* ---- syntax ---- */

static void copy_lower(char *to, const char *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = (char)tolower((unsigned char)from[i]);
    }
    to[n] = '\0';
}

static int device_of(const char *text, size_t n) {
    for (int d = 0; d < DTR__DEVICE_TYPES; d++) {
        if (strlen(device_names[d]) == n && strncasecmp(device_names[d], text, n) == 0) {
            return d;
        }
    }
    return -1;
}

#define BACKEND_HELP "; write NAME or device:NAME[,device:NAME] with devices cpu and cuda"

static dtr_status parse_name(const dtr__error_context *ctx, const char *text, const char *name,
                             size_t n, char *out) {
    DTR_REQUIRE(n > 0, ctx, DTR_ERR_ARG, "backend \"%s\": a backend name is empty" BACKEND_HELP,
                text);
    DTR_REQUIRE(n < DTR__BACKEND_NAME, ctx, DTR_ERR_ARG,
                "backend \"%s\": the name \"%.*s\" is longer than %d letters" BACKEND_HELP, text,
                (int)n, name, DTR__BACKEND_NAME - 1);
    copy_lower(out, name, n);
    return DTR_OK;
}

/* One "device:name" piece of a list. */
static dtr_status parse_piece(const dtr__error_context *ctx, const char *text, const char *piece,
                              size_t n, dtr__selection *out) {
    const char *colon = memchr(piece, ':', n);
    DTR_REQUIRE(colon != NULL, ctx, DTR_ERR_ARG,
                "backend \"%s\": \"%.*s\" has no device" BACKEND_HELP, text, (int)n, piece);
    size_t n_device = (size_t)(colon - piece), n_name = n - n_device - 1;
    DTR_REQUIRE(memchr(colon + 1, ':', n_name) == NULL, ctx, DTR_ERR_ARG,
                "backend \"%s\": \"%.*s\" has more than one colon" BACKEND_HELP, text, (int)n,
                piece);
    int d = device_of(piece, n_device);
    DTR_REQUIRE(d >= 0, ctx, DTR_ERR_ARG,
                "backend \"%s\": there is no device \"%.*s\"" BACKEND_HELP, text, (int)n_device,
                piece);
    DTR_REQUIRE(out->name[d][0] == '\0', ctx, DTR_ERR_ARG,
                "backend \"%s\": device %s is given twice", text, device_names[d]);
    return parse_name(ctx, text, colon + 1, n_name, out->name[d]);
}

/* A single name serves every device it can; an unknown one is left to the CPU, where the look-up
 * refuses it with the list of names. */
static dtr_status parse_single(const dtr__error_context *ctx, const char *text,
                               dtr__selection *out) {
    char name[DTR__BACKEND_NAME];
    DTR_TRY(parse_name(ctx, text, text, strlen(text), name));
    if (strcmp(name, "auto") == 0) {
        for (int d = 0; d < DTR__DEVICE_TYPES; d++) {
            memcpy(out->name[d], name, sizeof(name));
        }
        return DTR_OK;
    }
    int i = find_known(name);
    memcpy(out->name[i < 0 ? DTR_CPU : known[i].device], name, sizeof(name));
    return DTR_OK;
}

dtr_status dtr__select_parse(const dtr__error_context *ctx, const char *text, dtr__selection *out) {
    memset(out, 0, sizeof(*out));
    if (strpbrk(text, ":,") == NULL) {
        return parse_single(ctx, text, out);
    }
    for (const char *piece = text;;) {
        size_t n = strcspn(piece, ",");
        DTR_TRY(parse_piece(ctx, text, piece, n, out));
        if (piece[n] == '\0') {
            return DTR_OK;
        }
        piece += n + 1;
    }
}

/* ---- choice ---- */

static dtr_status find_custom(const dtr__error_context *ctx, const char *asked, dtr_device_type d,
                              const char *name, const dtr__backend **backend) {
    const dtr_world *world = ctx != NULL ? ctx->world : NULL;
    char names[256];
    const dtr__user_backend *b = registered(world, name);
    DTR_REQUIRE(b != NULL, ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": there is no backend \"%s\"; there are %s", asked, name,
                list_available(world, names, sizeof(names)));
    DTR_REQUIRE((b->mask & 1u << d) != 0, ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": %s was not registered for %s buffers", asked, name,
                device_names[d]);
    *backend = &b->backend;
    return DTR_OK;
}

static dtr_status find_named(const dtr__error_context *ctx, const char *asked, dtr_device_type d,
                             const char *name, const dtr__backend **backend) {
    char names[256];
    int i = find_known(name);
    if (i < 0) {
        return find_custom(ctx, asked, d, name, backend);
    }
    DTR_REQUIRE(known[i].device == d, ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": %s cannot serve %s buffers, only %s", asked, known[i].name,
                device_names[d], device_names[known[i].device]);
    DTR_REQUIRE(known[i].in_build, ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": %s is not part of this build; there are %s", asked, known[i].name,
                list_available(ctx != NULL ? ctx->world : NULL, names, sizeof(names)));
    *backend = known[i].backend;
    return DTR_OK;
}

void dtr__select_agreed_text(const dtr_world *world, const char *text, char *out, size_t cap) {
    dtr__selection sel;
    snprintf(out, cap, "%s", text);
    for (char *c = out; *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    if (dtr__select_parse(NULL, text, &sel) < 0) {
        return;
    }
    for (int d = 0; d < DTR__DEVICE_TYPES; d++) {
        const char *name = sel.name[d];
        size_t at = strlen(out);
        if (name[0] != '\0' && strcmp(name, "auto") != 0 && find_known(name) < 0) {
            bool there = registered(world, name) != NULL;
            snprintf(out + at, cap - at, " (%s%s registered)", name, there ? "" : " not");
        }
    }
}

dtr_status dtr__select_known(const dtr__error_context *ctx, const char *text) {
    dtr__selection sel;
    DTR_TRY(dtr__select_parse(ctx, text, &sel));
    for (int d = 0; d < DTR__DEVICE_TYPES; d++) {
        const dtr__backend *b = NULL;
        if (sel.name[d][0] != '\0' && strcmp(sel.name[d], "auto") != 0) {
            DTR_TRY(find_named(ctx, text, (dtr_device_type)d, sel.name[d], &b));
        }
    }
    return DTR_OK;
}

/* Every CPU backend that can serve the group, best first. */
static void choose_auto(dtr_group *g) {
    int score[DTR__MAX_BACKENDS];
    g->backends.n = 0;
    for (int i = 0; i < N_KNOWN; i++) {
        const dtr__backend *b = known[i].backend;
        int s = known[i].device != DTR_CPU ? 0 : b->score(g, NULL, NULL);
        if (s <= 0) {
            continue;
        }
        int at = g->backends.n++;
        for (; at > 0 && score[at - 1] < s; at--) {
            score[at] = score[at - 1];
            g->backends.table[at] = g->backends.table[at - 1];
        }
        score[at] = s;
        g->backends.table[at] = b;
    }
}

static dtr_status choose_cpu(const dtr__error_context *ctx, dtr_group *g, const char *name) {
    if (strcmp(name, "auto") == 0) {
        choose_auto(g);
        DTR_REQUIRE(g->backends.n > 0, ctx, DTR_ERR_UNSUPPORTED,
                    "backend \"%s\": no backend of this build can serve CPU buffers of a group of "
                    "%d ranks",
                    g->backends.asked, g->size);
        return DTR_OK;
    }
    const dtr__backend *b = NULL;
    const char *why = NULL;
    DTR_TRY(find_named(ctx, g->backends.asked, DTR_CPU, name, &b));
    DTR_REQUIRE(b->score(g, NULL, &why) > 0, ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": %s cannot serve this group: %s; a backend named explicitly never "
                "falls back, use cpu:auto",
                g->backends.asked, b->name, why != NULL ? why : "it gave no reason");
    const dtr__call message = { .kind = DTR__K_SEND };
    g->backends.table[0] = b;
    g->backends.n = 1;
    const dtr__backend *any = g->world->mpi.tcp != NULL ? &dtr__backend_tcp : &dtr__backend_mpi;
    if (b == &dtr__backend_shm && b->score(g, &message, &why) == 0 &&
        any->score(g, &message, &why) > 0) {
        g->backends.table[g->backends.n++] = any; /* for messages, which it has no memory for */
    }
    g->backends.named = true;
    return DTR_OK;
}

/* A registered backend that was asked for does not get device buffers yet. */
static dtr_status choose_cuda(const dtr__error_context *ctx, dtr_group *g, dtr__selection *sel) {
    const char *name = sel->name[DTR_CUDA];
    bool automatic = name[0] == '\0' || strcmp(name, "auto") == 0;
    int i = automatic ? -1 : find_known(name);
    g->backends.takes_devices = automatic || i >= 0;
    g->backends.device_named = i >= 0 ? known[i].backend : NULL;
    if (sel->name[DTR_CPU][0] != '\0') {
        return DTR_OK;
    }
    char why[DTR__CUDA_TEXT];
    DTR_REQUIRE(dtr__cuda_get()->state == DTR__CUDA_OK, ctx, DTR_ERR_UNSUPPORTED,
                "backend \"%s\": it names CUDA only, and there is no usable CUDA device (%s); add "
                "cpu:auto",
                g->backends.asked, dtr__cuda_text(why));
    memcpy(sel->name[DTR_CPU], "auto", sizeof "auto"); /* what moves the staged data */
    return DTR_OK;
}

dtr_status dtr__select_describe(dtr_group *group) {
    dtr__error_context ctx = { .world = group->world, .group = group->name };
    free(group->backends.chosen);
    if (asprintf(&group->backends.chosen, "cpu:%s", group->backends.table[0]->name) < 0) {
        group->backends.chosen = NULL;
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the name of a backend");
    }
    return DTR_OK;
}

dtr_status dtr__select(dtr_group *group) {
    dtr__error_context ctx = { .world = group->world, .group = group->name };
    dtr__selection sel;
    DTR_TRY(dtr__select_known(&ctx, group->backends.asked));
    DTR_TRY(dtr__select_parse(&ctx, group->backends.asked, &sel));
    DTR_TRY(choose_cuda(&ctx, group, &sel));
    DTR_TRY(choose_cpu(&ctx, group, sel.name[DTR_CPU]));
    return dtr__select_describe(group);
}
