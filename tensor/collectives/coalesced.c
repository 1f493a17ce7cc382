/* Many tensors broadcast in few pieces. */
#include <stdlib.h>

#include "api/issue.h"
#include "base/dtype.h"
#include "collectives/coalesced.h"
#include "core/call_site.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "tensor_coll.h"

enum { IN_FLIGHT = 2 };
#define DEFAULT_PIECE ((size_t)250 << 20)

/* Tensors in the order of their pieces; piece k is order[start[k]] .. order[start[k + 1] - 1]. */
typedef struct pieces {
    dtr_tensor **order;
    size_t *start, n;
} pieces;

/* Work space of planning: of every dtype one open piece, a chain of list positions. */
typedef struct open_piece {
    size_t first, last, nbytes; /* first SIZE_MAX: empty */
} open_piece;

static void close_piece(pieces *p, open_piece *open, dtr_tensor *const *tensors,
                        const size_t *next) {
    size_t at = p->start[p->n];
    for (size_t i = open->first; i != SIZE_MAX; i = next[i]) {
        p->order[at++] = tensors[i];
    }
    p->start[++p->n] = at;
    *open = (open_piece){ SIZE_MAX, SIZE_MAX, 0 };
}

/* A tensor is added first, then its piece closes if it has reached the limit; pieces are in closing
 * order, those never closed follow in the order in which their dtypes came. */
static void plan(pieces *p, dtr_tensor *const *tensors, size_t n, size_t limit, size_t *next) {
    open_piece open[DTR__N_DTYPES];
    int seen[DTR__N_DTYPES], n_seen = 0;
    bool known[DTR__N_DTYPES] = { false };
    for (int d = 0; d < DTR__N_DTYPES; d++) {
        open[d] = (open_piece){ SIZE_MAX, SIZE_MAX, 0 };
    }
    for (size_t i = 0; i < n; i++) {
        const dtr_tensor *t = tensors[i];
        open_piece *o = &open[t->dtype];
        if (t->numel == 0) {
            continue;
        }
        if (!known[t->dtype]) {
            known[t->dtype] = true;
            seen[n_seen++] = (int)t->dtype;
        }
        *(o->first == SIZE_MAX ? &o->first : &next[o->last]) = i;
        o->last = i;
        next[i] = SIZE_MAX;
        o->nbytes += t->numel * dtr_dtype_size(t->dtype);
        if (o->nbytes >= limit) {
            close_piece(p, o, tensors, next);
        }
    }
    for (int k = 0; k < n_seen; k++) {
        if (open[seen[k]].first != SIZE_MAX) {
            close_piece(p, &open[seen[k]], tensors, next);
        }
    }
}

/* Issue piece after piece, at most IN_FLIGHT unfinished; all have ended on return. */
static dtr_status run(dtr__tensor_call *c, const pieces *p) {
    dtr_work *works[IN_FLIGHT] = { NULL };
    dtr_status s = DTR_OK;
    for (size_t k = 0; k < p->n && s == DTR_OK; k++) {
        dtr_work **slot = &works[k % IN_FLIGHT];
        s = dtr_work_wait(*slot, -1);
        (void)dtr_work_release(*slot);
        *slot = NULL;
        if (s == DTR_OK) {
            c->in.part = p->order + p->start[k];
            c->in.n = p->start[k + 1] - p->start[k];
            c->handed_over = false;
            s = dtr__tensor_coll(c, slot);
        }
    }
    const dtr_status failed = s;
    dtr__error_copy *first = s < 0 ? dtr__error_save() : NULL;
    for (int i = 0; i < IN_FLIGHT; i++) {
        DTR_KEEP_FIRST(s, dtr_work_wait(works[i], -1));
        (void)dtr_work_release(works[i]);
    }
    (void)dtr__error_put_back(first, failed); /* waits may have written over it */
    return s;
}

static dtr_status check(dtr__tensor_call *c, size_t n) {
    DTR_TRY(dtr__tensor_check_head(c, true));
    DTR_REFUSE_IF(n == 0, c, DTR_ERR_ARG, "n is 0; there is nothing to broadcast");
    DTR_REFUSE_IF(dtr__in_callback(c->group->world), c, DTR_ERR_STATE,
                  "a completion callback must not block; use asynchronous broadcasts there");
    DTR_TRY(dtr__tensor_check_pointers(c, &c->in));
    for (size_t i = 0; i < n; i++) {
        DTR_REFUSE_IF(c->in.part[i]->device.type != DTR_CPU, c, DTR_ERR_UNSUPPORTED,
                      "tensors[%zu] is on a device, not in host memory", i);
    }
    return dtr__tensor_check_side(c, &c->in, c->writes);
}

dtr_status dtr_broadcast_coalesced(dtr_group *group, dtr_tensor *const *tensors, size_t n, int root,
                                   size_t piece_nbytes) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_broadcast_coalesced", group->name,
                      dtr__broadcast_coalesced(group, tensors, n, root, piece_nbytes, NULL, 0));
}

dtr_status dtr__broadcast_coalesced(dtr_group *group, dtr_tensor *const *tensors, size_t n,
                                    int root, size_t piece_nbytes, const dtr_coll_options *options,
                                    uint64_t tag_word) {
    dtr__tensor_call c = { .entry = "dtr_broadcast_coalesced",
                           .group = group,
                           .r = { .kind = DTR__K_BROADCAST,
                                  .root = root,
                                  .options = options,
                                  .tag_word = tag_word,
                                  .return_address = __builtin_return_address(0) },
                           .in = { .name = "tensors", .part = tensors, .n = n, .list = true } };
    dtr_status s = dtr__tensor_begin(group, c.entry, NULL);
    if (s == DTR_OK) {
        s = dtr__scope_refuse(group, c.entry);
    }
    if (s == DTR_OK) {
        c.reads = root == group->rank;
        c.writes = !c.reads;
        s = check(&c, n);
    }
    if (s != DTR_OK) {
        dtr__call_site_drop();
        return s;
    }
    pieces p = { malloc(n * sizeof(p.order[0])), calloc(n + 1, sizeof(p.start[0])), 0 };
    size_t *next = malloc(n * sizeof(next[0]));
    if (p.order == NULL || p.start == NULL || next == NULL) {
        s = DTR_REFUSE(&c, DTR_ERR_NOMEM, "out of memory for a list of %zu tensors", n);
    } else {
        plan(&p, tensors, n, piece_nbytes != 0 ? piece_nbytes : DEFAULT_PIECE, next);
        s = run(&c, &p);
    }
    free(next);
    free(p.order);
    free(p.start);
    return s;
}
