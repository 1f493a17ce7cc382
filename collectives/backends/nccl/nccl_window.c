/* Windows of NCCL (DTR_NCCL_REGISTER=1): memory that its kernels reach on every rank, each at the
 * same place of a block of its own. Making one is collective, so only memory that all members make
 * at the same place of the program can become one: the buckets of DDP. All of a set become windows
 * on all ranks, or none does; what NCCL has registered stays registered either way. */
#include <stdio.h>
#include <stdlib.h>

#include "core/team.h"
#include "engine/engine.h"
#include "nccl_agree.h"

/* Outcomes. DECLINED: no rank is waiting for another inside NCCL. FAILED: one may be, which only
 * the end of the communicator releases. */
enum { MADE, DECLINED, FAILED };

/* Where NCCL puts the windows of a set, perhaps late: kept as long as the communicator. */
typedef struct dtr__nccl_window_set {
    struct dtr__nccl_window_set *next;
    void *window[];
} window_set;

void dtr__nccl_window_sets_free(dtr__nccl_comm *c) {
    for (window_set *p = c->window_sets, *next; p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    c->window_sets = NULL;
}

static window_set *window_set_new(dtr__nccl_comm *c, size_t n) {
    window_set *p = calloc(1, sizeof *p + n * sizeof p->window[0]);
    if (p != NULL) {
        p->next = c->window_sets;
        c->window_sets = p;
    }
    return p;
}

/* ---- agreeing ---- */

static dtr_status expired(const dtr__nccl_agreement *m) {
    const dtr_group *g = m->group;
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "group '%s': not all ranks have made their gradient buckets on cuda:%d windows "
                    "of NCCL within %g s, says rank %d",
                    g->name, m->comm->device, m->limit_s, g->rank);
}

static dtr__nccl_agreement begin(dtr__nccl_comm *c) {
    dtr_group *g = c->group;
    dtr__nccl_agreement m = { .comm = c,
                              .group = g,
                              .worst = FAILED,
                              .began = dtr__now(),
                              .limit_s = dtr__nccl_init_limit(g),
                              .expired = expired };
    snprintf(m.prefix, sizeof m.prefix, "window/%u/%u/", c->number, c->agreements++);
    return m;
}

/* This rank's outcome becomes that of all. */
static dtr_status agree(dtr__nccl_agreement *m, dtr__nccl_outcome *o) {
    DTR_TRY(dtr__nccl_agreement_conclude(m, o));
    dtr__key_value_forget(m->group, m->prefix); /* nobody asks for it again */
    return DTR_OK;
}

/* ---- one set ---- */

static void judge(const dtr__nccl_comm *c, void *const *blocks, size_t n, const window_set *p,
                  dtr__nccl_outcome *o) {
    const char *why = blocks == NULL || p == NULL ? "out of memory" : NULL;
    for (size_t i = 0; i < n && why == NULL; i++) {
        size_t nbytes;
        if (!dtr__nccl_block_fits(c, blocks[i], &nbytes)) {
            why = "the memory is not from NCCL's allocator, which had none";
        }
    }
    if (why != NULL) {
        o->refused = DECLINED;
        snprintf(o->text, sizeof o->text, "on rank %d %s", c->group->rank, why);
    }
}

static void fail(const dtr__nccl_comm *c, int code, dtr__nccl_outcome *o) {
    const char *more = c->ops->last_error(NULL);
    o->refused = FAILED;
    snprintf(o->text, sizeof o->text,
             "on rank %d ncclCommWindowRegister returned NCCL error %d (%s)%s%.80s", c->group->rank,
             code, c->ops->error_text(code), more != NULL && more[0] != '\0' ? ": " : "",
             more != NULL ? more : "");
}

static int add_window(dtr__nccl_comm *c) {
    const dtr__nccl_apart *a = &c->apart;
    return DTR_INSIDE_AS("ncclCommWindowRegister",
                         c->ops->window_add(c->device, c->handle, a->block, a->nbytes, a->window));
}

/* The peers come with the same block of theirs. */
static dtr_status make_one(dtr__nccl_agreement *m, void *block, void **window,
                           dtr__nccl_outcome *o) {
    dtr__nccl_comm *c = m->comm;
    c->apart.block = block;
    c->apart.window = window;
    (void)dtr__nccl_block_fits(c, block, &c->apart.nbytes);
    int code = dtr__nccl_make_apart(c, NULL, add_window);
    DTR_TRY(dtr__nccl_agreement_settle(m, &code, o));
    if (o->refused == FAILED) {
        return DTR_OK;
    }
    if (code != 0) {
        fail(c, code, o);
    } else if (*window == NULL) {
        o->refused = DECLINED;
        snprintf(o->text, sizeof o->text, "NCCL has none on these devices, or with these settings");
    }
    return DTR_OK;
}

static dtr_status make(dtr__nccl_comm *c, void *const *blocks, size_t n, dtr__nccl_outcome *o) {
    window_set *p = window_set_new(c, n);
    dtr__nccl_agreement before = begin(c), after = begin(c);
    judge(c, blocks, n, p, o);
    DTR_TRY(agree(&before, o));
    if (o->refused != MADE) {
        return DTR_OK;
    }
    after.began = dtr__now();
    for (size_t i = 0; i < n && o->refused == MADE && p != NULL; i++) {
        DTR_TRY(make_one(&after, blocks[i], &p->window[i], o));
        if (o->refused == MADE && !dtr__nccl_block_window(c, blocks[i], p->window[i])) {
            o->refused = FAILED; /* it is there, and could not be removed before its memory */
            snprintf(o->text, sizeof o->text, "on rank %d out of memory", c->group->rank);
        }
    }
    return agree(&after, o);
}

/* ---- the calls ---- */

static void log_outcome(dtr_group *g, const dtr__nccl_comm *c, size_t n,
                        const dtr__nccl_outcome *o) {
    if (g->rank != 0) {
        return;
    }
    if (o->refused == MADE) {
        DTR_INFO(g->world, "group '%s': %zu buckets on cuda:%d are windows of NCCL on all ranks",
                 g->name, n, c->device);
    } else if (o->refused == DECLINED) {
        DTR_INFO(g->world, "group '%s': buckets on cuda:%d are not windows of NCCL: %s", g->name,
                 c->device, o->text);
    } else {
        DTR_WARN(g->world,
                 "group '%s': buckets on cuda:%d do not become windows of NCCL: %s; all ranks go "
                 "on without windows, over a new communicator",
                 g->name, c->device, o->text);
    }
}

static const char *way_of(dtr__nccl_comm *c, void *const *blocks, size_t n, bool windows) {
    bool all = n > 0 && blocks != NULL;
    for (size_t i = 0; i < n && all && !windows; i++) {
        all = dtr__nccl_block_registered(c, blocks[i]);
    }
    return windows ? DTR__NCCL_WAY_WINDOWS : all ? DTR__NCCL_WAY_REGISTERED : "";
}

/* The communicator that takes windows, ready; NULL: the devices were refused. turn held. */
static dtr_status ready_comm(dtr_group *g, int device, dtr__nccl_comm **c) {
    DTR_TRY(dtr__nccl_comm_of(dtr__nccl_of(g), device, -1, -1, c));
    DTR_TRY((*c)->ready ? DTR_OK : dtr__nccl_connect_or_break(*c));
    *c = (*c)->ready && !(*c)->local ? *c : NULL;
    return DTR_OK;
}

/* turn held */
static dtr_status make_or_break(dtr_group *g, int device, void *const *blocks, size_t n,
                                dtr__nccl_comm **comm, bool *made) {
    dtr__nccl_outcome o = { 0 };
    DTR_TRY(ready_comm(g, device, comm));
    if (*comm == NULL) {
        return DTR_OK;
    }
    dtr__nccl_blocks_poll(*comm);
    dtr_status s = make(*comm, blocks, n, &o);
    if (s < 0) {
        dtr__nccl_abort(*comm);
        dtr__group_break(g, s);
        return dtr__group_broken(g);
    }
    log_outcome(g, *comm, n, &o);
    *made = o.refused == MADE;
    (*comm)->owner->windowless = o.refused == FAILED;
    return o.refused == FAILED ? dtr__nccl_renew(*comm, comm) : DTR_OK;
}

dtr_status dtr__nccl_windows(dtr_group *g, int device, void *const *blocks, size_t n, bool wanted,
                             const char **way) {
    bool made = false;
    struct dtr__nccl *nccl = dtr__nccl_of(g);
    *way = "";
    if (nccl == NULL || nccl->copies) {
        return DTR_OK;
    }
    DTR_TRY(dtr__nccl_take_turn(nccl));
    dtr__nccl_comm *c = dtr__nccl_comm_find(nccl, device, -1, -1);
    dtr_status s =
        wanted && !nccl->windowless ? make_or_break(g, device, blocks, n, &c, &made) : DTR_OK;
    if (s == DTR_OK && c != NULL) {
        *way = way_of(c, blocks, n, made);
    }
    pthread_mutex_unlock(&nccl->turn);
    return s;
}

void dtr__nccl_memory_stats(const dtr_group *g, uint64_t *registered, uint64_t *windows) {
    struct dtr__nccl *n = dtr__nccl_of(g);
    if (n == NULL) {
        return;
    }
    pthread_mutex_lock(&n->lock);
    for (dtr__nccl_comm *c = n->comms; c != NULL; c = c->next) {
        dtr__nccl_blocks_count(c, registered, windows);
    }
    pthread_mutex_unlock(&n->lock);
}
