/* Making a communicator together with the ranks that share it: everybody tells the first of them
 * that it has come; that one makes NCCL's identifier and gives it to all; NCCL is started, without
 * blocking; and the first one collects how it went and tells all, so that either all ranks have the
 * communicator or none has. */
#include <stdio.h>
#include <string.h>

#include "nccl/nccl_meeting.h"
#include "rt_recording.h"

typedef dtr__nccl_outcome outcome;
typedef dtr__nccl_meeting meeting;

/* ---- waiting ---- */

/* "rank 1 (world 3), rank 2 (world 5)": who has not told that it came. */
static int list_absent(const meeting *m, char *text, size_t cap) {
    enum { NAMED = 8 };
    int absent = 0;
    char here = 0;
    text[0] = '\0';
    for (int r = 1; r < m->comm->size; r++) {
        bool found = false;
        if (dtr__nccl_meeting_look(m, "join", r, &here, 1, &found) == DTR_OK && !found &&
            absent++ < NAMED) {
            size_t at = strlen(text);
            int g = dtr__nccl_meeting_rank(m->comm, r);
            snprintf(text + at, cap - at, "%srank %d (world %d)", at > 0 ? ", " : "", g,
                     m->group->world_ranks[g]);
        }
    }
    return absent;
}

static dtr_status expired(const meeting *m) {
    char who[400];
    const dtr__nccl_comm *c = m->comm;
    dtr_group *g = m->group;
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    int first = dtr__nccl_meeting_rank(c, 0);
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

static dtr_status get_identifier(meeting *m, unsigned char id[DTR__NCCL_ID]) {
    dtr__nccl_comm *c = m->comm;
    char here = 1;
    if (c->rank != 0) {
        DTR_TRY(dtr__nccl_meeting_tell(m, 0, "join", c->rank, &here, 1));
        return dtr__nccl_meeting_await(m, "id", 0, id, DTR__NCCL_ID);
    }
    for (int r = 1; r < c->size; r++) {
        DTR_TRY(dtr__nccl_meeting_await(m, "join", r, &here, 1));
    }
    int code = c->ops->unique_id(id);
    if (code != 0) {
        return dtr__nccl_failed(c, NULL, "ncclGetUniqueId", code);
    }
    return dtr__nccl_meeting_tell_all(m, "id", id, DTR__NCCL_ID);
}

static dtr_status start(meeting *m, const unsigned char *id, outcome *o) {
    dtr__nccl_comm *c = m->comm;
    dtr_group *g = m->group;
    static const char function[] = "ncclCommInitRankConfig";
    int busy = c->ops->in_progress();
    pthread_mutex_lock(&c->lock);
    int code = atomic_load(&c->aborted) == 0
                   ? c->ops->init(c->device, &c->handle, c->size, id, c->rank, &g->nccl->config)
                   : busy;
    pthread_mutex_unlock(&c->lock);
    while (code == busy) {
        DTR_TRY(dtr__nccl_meeting_seen(m, o));
        if (o->refused) {
            return DTR_OK;
        }
        if (!dtr__nccl_look(c, &code)) {
            return dtr__group_broken(m->group);
        }
        if (code == busy) { /* who is ready when looked at has not come too late */
            DTR_TRY(dtr__nccl_meeting_rest(m));
        }
    }
    if (code == c->ops->invalid_usage() && g->cuda_use == 'a') {
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

/* What one rank was told about the devices holds for the group. */
static void give_way(dtr__nccl_comm *c, const outcome *o) {
    struct dtr__nccl *n = c->group->nccl;
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

void dtr__nccl_tell(const dtr__nccl_comm *c, const char *how, double exchange_s, double start_s) {
    char version[16], set[600];
    DTR_INFO(c->group->world,
             "group '%s': NCCL %s communicator of %d ranks on cuda:%d by %s, non-blocking, this is "
             "rank %d; %.0f ms for the identifier, %.0f ms to start%s",
             c->group->name, dtr__nccl_version_text(dtr__nccl_get()->version, version), c->size,
             c->device, how, c->rank, exchange_s * 1e3, start_s * 1e3,
             settings_of_nccl(c->group->world, set, sizeof set));
}

static dtr_status make(dtr__nccl_comm *c, uint64_t record, outcome *o) {
    dtr_group *g = c->group;
    unsigned char id[DTR__NCCL_ID];
    meeting m = { .comm = c,
                  .group = g,
                  .worst = 1,
                  .began = dtr__now(),
                  .limit_s = dtr__nccl_init_limit(g),
                  .expired = expired };
    begin_key(c, m.prefix, sizeof m.prefix);
    DTR_TRY(get_identifier(&m, id));
    double exchanged = dtr__now();
    dtr__rec_began(g->world, record, dtr__stamp_ns()); /* what came before is the exchange */
    DTR_TRY(start(&m, id, o));
    DTR_TRY(dtr__nccl_meeting_agree(&m, o));
    if (!o->refused) {
        dtr__nccl_tell(c, "init", exchanged - m.began, dtr__now() - exchanged);
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
    dtr__exchange_forget(g, key); /* all have been read */
    c->ready = true;
    dtr__nccl_blocks_join(c);
    atomic_fetch_add(&g->comms_by_init, 1);
    return DTR_OK;
}

dtr_status dtr__nccl_renew(dtr__nccl_comm *c, dtr__nccl_comm **fresh) {
    struct dtr__nccl *n = c->group->nccl;
    c->ready = false;
    pthread_mutex_lock(&n->lock);
    c->replaced = true;
    pthread_mutex_unlock(&n->lock);
    dtr__nccl_abort(c);
    (void)dtr__nccl_ended(c, 1);
    DTR_TRY(dtr__nccl_comm_of(n, c->device, -1, -1, fresh));
    return dtr__nccl_connect_or_break(*fresh);
}

/* ---- on demand ---- */

bool dtr__nccl_eager(const dtr_group *g) {
    const char *why;
    return g->bound && g->device.type == DTR_CUDA && dtr__nccl_serves_group(g, &why);
}

dtr_status dtr__nccl_ready(dtr_group *g, int device) {
    dtr__nccl_comm *c = NULL;
    const char *why;
    if (!dtr__nccl_serves_group(g, &why)) {
        return DTR_OK;
    }
    DTR_TRY(dtr__nccl_take_turn(g));
    dtr_status s = dtr__nccl_comm_of(g->nccl, device, -1, -1, &c);
    if (s == DTR_OK && !c->ready) {
        s = dtr__nccl_connect_or_break(c);
    }
    pthread_mutex_unlock(&g->nccl->turn);
    return s;
}

static dtr_status group_connect(dtr_group *g, dtr_device device) {
    static const char entry[] = "dtr_group_connect";
    dtr_status s = dtr__group_check(g, entry);
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = g->world, .operation = entry, .group = g->name };
    DTR_TRY(dtr__device_check(device, entry));
    DTR_REQUIRE(!g->bound || g->device.type != DTR_CUDA || device.type != DTR_CUDA ||
                    g->device.index == device.index,
                &ctx, DTR_ERR_DEVICE,
                "dtr_group_connect: device is cuda:%d, and group '%s' was made for cuda:%d",
                device.index, g->name, g->device.index);
    DTR_REQUIRE(!dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                "dtr_group_connect of group '%s' inside a completion callback would wait for other "
                "ranks; call it from the program's own thread",
                g->name);
    DTR_REQUIRE(atomic_load_explicit(&g->scope, memory_order_acquire) == NULL, &ctx, DTR_ERR_STATE,
                "dtr_group_connect: a coalescing scope of group '%s' is open; end it first",
                g->name);
    dtr__notices_visit(g->world);
    if (atomic_load(&g->status) != DTR_OK) {
        return dtr__group_broken(g);
    }
    return device.type == DTR_CUDA ? dtr__nccl_ready(g, device.index) : DTR_OK;
}

dtr_status dtr_group_connect(dtr_group *group, dtr_device device) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_connect", group->name,
                      group_connect(group, device));
}
