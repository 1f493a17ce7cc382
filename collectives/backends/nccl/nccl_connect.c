/* Making a communicator together with the ranks that share it: each notifies the first of them
 * that it has come; that one makes NCCL's identifier and sends it to all; NCCL is started, while
 * the caller goes on watching; and the first one collects the results and sends all the common one,
 * so that either all ranks have the communicator or none has. */
#include <stdio.h>
#include <string.h>

#include "core/team.h"
#include "engine/engine.h"
#include "nccl_agree.h"
#include "recorder/recording.h"

typedef dtr__nccl_outcome outcome;
typedef dtr__nccl_agreement agreement;

/* ---- waiting ---- */

/* "rank 1 (world 3), rank 2 (world 5)": who has not reported that it came. */
static int list_absent(const agreement *m, char *text, size_t cap) {
    enum { NAMED = 8 };
    int absent = 0;
    char here = 0;
    text[0] = '\0';
    for (int r = 1; r < m->comm->size; r++) {
        bool found = false;
        if (dtr__nccl_agreement_poll(m, "join", r, &here, 1, &found) == DTR_OK && !found &&
            absent++ < NAMED) {
            size_t at = strlen(text);
            int g = dtr__nccl_agreement_rank(m->comm, r);
            snprintf(text + at, cap - at, "%srank %d (world %d)", at > 0 ? ", " : "", g,
                     m->group->world_ranks[g]);
        }
    }
    return absent;
}

static dtr_status expired(const agreement *m) {
    char who[400];
    const dtr__nccl_comm *c = m->comm;
    dtr_group *g = m->group;
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    int first = dtr__nccl_agreement_rank(c, 0);
    if (c->rank != 0) {
        return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                        "group '%s': rank %d has not got the NCCL communicator for cuda:%d within "
                        "%g s: it waits for rank %d (world %d), which has not entered an operation "
                        "on CUDA buffers of the group, or waits for others itself",
                        g->name, g->rank, c->device, m->limit_s, first, g->world_ranks[first]);
    }
    int absent = list_absent(m, who, sizeof who);
    if (absent > 0) {
        return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                        "group '%s': %d of %d ranks have joined the NCCL communicator for cuda:%d "
                        "within %g s; it has not joined: %s",
                        g->name, c->size - absent, c->size, c->device, m->limit_s, who);
    }
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "group '%s': all %d ranks have come to the NCCL communicator for cuda:%d, but "
                    "ncclCommInitRankConfig has not joined them within %g s; NCCL_DEBUG=INFO shows "
                    "what it waits for",
                    g->name, c->size, c->device, m->limit_s);
}

/* ---- the steps ---- */

static dtr_status get_identifier(agreement *m, unsigned char id[DTR__NCCL_ID]) {
    dtr__nccl_comm *c = m->comm;
    char here = 1;
    if (c->rank != 0) {
        DTR_TRY(dtr__nccl_agreement_send(m, 0, "join", c->rank, &here, 1));
        return dtr__nccl_agreement_await(m, "id", 0, id, DTR__NCCL_ID);
    }
    for (int r = 1; r < c->size; r++) {
        DTR_TRY(dtr__nccl_agreement_await(m, "join", r, &here, 1));
    }
    int code = c->ops->unique_id(id);
    if (code != 0) {
        return dtr__nccl_failed(c, NULL, "ncclGetUniqueId", code);
    }
    return dtr__nccl_agreement_send_all(m, "id", id, DTR__NCCL_ID);
}

static int init(dtr__nccl_comm *c) {
    return c->ops->init(c->device, &c->handle, c->size, c->apart.id, c->rank, &c->apart.config);
}

static dtr_status start(agreement *m, outcome *o) {
    dtr__nccl_comm *c = m->comm;
    static const char function[] = "ncclCommInitRankConfig";
    c->apart.config = c->owner->config;
    int code = dtr__nccl_make_apart(c, NULL, init);
    DTR_TRY(dtr__nccl_agreement_settle(m, &code, o));
    if (o->refused) {
        return DTR_OK;
    }
    if (code == c->ops->invalid_usage && c->owner->automatic) {
        const char *text = c->ops->last_error(NULL);
        o->refused = 1;
        snprintf(o->text, sizeof o->text, "%s", text != NULL ? text : c->ops->error_text(code));
        return DTR_OK;
    }
    return code == 0 ? DTR_OK : dtr__nccl_failed(c, NULL, function, code);
}

/* Keys are those of the group, which makes one communicator for a pair and a device in its life. */
static void begin_key(const dtr__nccl_comm *c, char *key, size_t cap) {
    if (c->low < 0) {
        snprintf(key, cap, "nccl/%u/", c->number);
    } else {
        snprintf(key, cap, "nccl/%d-%d/%d/", c->low, c->high, c->device);
    }
}

/* What one rank has learnt about the devices holds for the group. */
static void give_way(dtr__nccl_comm *c, const outcome *o) {
    struct dtr__nccl *n = c->owner;
    dtr__nccl_abort(c);
    (void)dtr__nccl_ended(c, 1);
    snprintf(n->reason, sizeof n->reason, "NCCL does not take the devices of the ranks: %s",
             o->text);
    atomic_store_explicit(&n->refused, 1, memory_order_release);
}

double dtr__nccl_init_limit(const dtr_group *g) {
    const dtr__options *o = &g->world->options;
    bool set = o->value[DTR__OPT_NCCL_INIT_TIMEOUT].origin != DTR__FROM_DEFAULT;
    return set ? dtr__opt_seconds(o, DTR__OPT_NCCL_INIT_TIMEOUT) : g->timeout_cuda_s;
}

uint64_t dtr__nccl_record(const dtr_group *g, int device, const char *label) {
    dtr__record r = { .group = g->id,
                      .kind = DTR__K_CONNECT,
                      .device = (int16_t)device,
                      .root_or_peer = -1,
                      .tag = -1 };
    snprintf(r.label, sizeof r.label, "%s", label);
    return dtr__rec_begin(g->world, &r);
}

/* What the environment had for NCCL when the world was made, on one line. */
static const char *settings_of_nccl(const dtr_world *world, char *text, size_t cap) {
    const char *line = dtr__recorder_header(world)->settings;
    size_t at = 0;
    text[0] = '\0';
    while (*line != '\0') {
        int n = (int)strcspn(line, "\n");
        if (strncmp(line, "NCCL_", 5) == 0 && at < cap) {
            at +=
                (size_t)snprintf(text + at, cap - at, "%s%.*s", at == 0 ? "; set: " : " ", n, line);
        }
        line += n + (line[n] == '\n');
    }
    return text;
}

void dtr__nccl_log_made(const dtr__nccl_comm *c, const char *how, double exchange_s,
                        double start_s) {
    char version[16], set[600];
    DTR_INFO(c->group->world,
             "group '%s': NCCL %s communicator of %d ranks on cuda:%d by %s, %sblocking, this is "
             "rank %d; %.0f ms for the identifier, %.0f ms to start%s",
             c->group->name, dtr__nccl_version_text(dtr__nccl_get()->version, version), c->size,
             c->device, how, c->owner->config.blocking ? "" : "non-", c->rank, exchange_s * 1e3,
             start_s * 1e3, settings_of_nccl(c->group->world, set, sizeof set));
}

static dtr_status make(dtr__nccl_comm *c, uint64_t record, outcome *o) {
    dtr_group *g = c->group;
    agreement m = { .comm = c,
                    .group = g,
                    .worst = 1,
                    .began = dtr__now(),
                    .limit_s = dtr__nccl_init_limit(g),
                    .expired = expired };
    begin_key(c, m.prefix, sizeof m.prefix);
    DTR_TRY(get_identifier(&m, c->apart.id));
    double exchanged = dtr__now();
    dtr__rec_began(g->world, record, dtr__stamp_ns()); /* what came before is the exchange */
    DTR_TRY(start(&m, o));
    DTR_TRY(dtr__nccl_agreement_conclude(&m, o));
    if (!o->refused) {
        dtr__nccl_log_made(c, "init", exchanged - m.began, dtr__now() - exchanged);
    }
    return DTR_OK;
}

dtr_status dtr__nccl_connect_or_break(dtr__nccl_comm *c) {
    dtr_group *g = c->group;
    outcome o = { 0 };
    char label[40], key[DTR__KEY_SIZE];
    if (c->low < 0) {
        snprintf(label, sizeof label, "cuda:%d, %d ranks, init", c->device, c->size);
    } else {
        snprintf(label, sizeof label, "cuda:%d, ranks %d and %d", c->device, c->low, c->high);
    }
    uint64_t record = dtr__nccl_record(g, c->device, label);
    dtr_status s = make(c, record, &o);
    dtr__rec_mark(g->world, record, s < 0 || o.refused ? DTR__REC_FAILED : DTR__REC_FINISHED,
                  o.refused ? DTR_ERR_UNSUPPORTED : s);
    if (s < 0) {
        dtr__nccl_abort(c);
        dtr__group_break(g, s);
        return dtr__group_broken(g);
    }
    if (o.refused) {
        give_way(c, &o);
        return DTR_OK;
    }
    begin_key(c, key, sizeof key);
    dtr__key_value_forget(g, key); /* all have been read */
    c->ready = true;
    dtr__nccl_blocks_join(c);
    atomic_fetch_add(&g->count.comms_by_init, 1);
    return DTR_OK;
}

dtr_status dtr__nccl_renew(dtr__nccl_comm *c, dtr__nccl_comm **fresh) {
    struct dtr__nccl *n = c->owner;
    c->ready = false;
    pthread_mutex_lock(&n->lock);
    c->replaced = true;
    pthread_mutex_unlock(&n->lock);
    dtr__nccl_abort(c);
    (void)dtr__nccl_ended(c, 1);
    DTR_TRY(dtr__nccl_comm_of(n, c->device, -1, -1, fresh));
    return dtr__nccl_connect_or_break(*fresh);
}

dtr_status dtr__nccl_ready(dtr_group *g, int device) {
    dtr__nccl_comm *c = NULL;
    struct dtr__nccl *n = dtr__nccl_of(g);
    if (n == NULL || atomic_load_explicit(&n->refused, memory_order_acquire) != 0) {
        return DTR_OK;
    }
    DTR_TRY(dtr__nccl_take_turn(n));
    dtr_status s = dtr__nccl_comm_of(n, device, -1, -1, &c);
    if (s == DTR_OK && !c->ready) {
        s = dtr__nccl_connect_or_break(c);
    }
    pthread_mutex_unlock(&n->turn);
    return s;
}

dtr_status dtr__nccl_handle(dtr_group *g, int device, const char *entry, void **handle) {
    dtr__error_context ctx = { .world = g->world, .operation = entry, .group = g->name };
    struct dtr__nccl *n = dtr__nccl_of(g);
    const bool refused = n != NULL && atomic_load_explicit(&n->refused, memory_order_acquire) != 0;
    DTR_REQUIRE(n != NULL && n->ops != NULL && !n->copies && !refused, &ctx, DTR_ERR_UNSUPPORTED,
                "%s: NCCL does not serve group '%s'%s%s", entry, g->name, refused ? ": " : "",
                refused ? n->reason : "");
    DTR_TRY(dtr__nccl_take_turn(n));
    dtr__nccl_comm *c = dtr__nccl_comm_find(n, device, -1, -1);
    const bool ready = c != NULL && c->ready && dtr__nccl_enter(c);
    if (ready) {
        *handle = c->handle;
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&n->turn);
    DTR_REQUIRE(ready, &ctx, DTR_ERR_STATE,
                "%s: group '%s' has no communicator for cuda:%d yet; call dtr_group_connect on all "
                "members first",
                entry, g->name, device);
    return DTR_OK;
}
