/* Sends and receives of tensors that start together: a batch of their memory, strided tensors
 * packed into memory of its own, which is unpacked before the work counts as complete. */
#include <stdio.h>
#include <stdlib.h>

#include "api/issue.h"
#include "core/call_site.h"
#include "core/team.h"
#include "tensor_coll.h"

enum { PACK_ALIGN = 64 };

/* One batch on its way; `step` frees it. */
typedef struct batch {
    dtr__finish step;
    char *packed;      /* copies of the strided tensors, each aligned; NULL: none */
    size_t n;          /* received ones to fill from there */
    dtr_tensor part[]; /* stand-ins whose `data` is the tensor's; the copy is at offset[] */
} batch;

static bool is_something(const dtr_tensor_p2p *op) {
    return op->peer != DTR_PEER_NONE;
}

static bool is_packed(const dtr_tensor_p2p *op) {
    return is_something(op) && !op->tensor->contiguous && op->tensor->numel > 0;
}

static size_t packed_bytes(const dtr_tensor *t) {
    const size_t nbytes = t->numel * dtr_dtype_size(t->dtype);
    return nbytes + (-nbytes & (PACK_ALIGN - 1));
}

static dtr_status check(const dtr__tensor_call *c, const dtr_tensor_p2p *ops, size_t n) {
    char name[48];
    DTR_REFUSE_IF(ops == NULL && n > 0, c, DTR_ERR_ARG, "ops is NULL; give a list of %zu", n);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "ops[%zu].tensor", i);
        DTR_TRY(dtr__tensor_check(ops[i].tensor, name));
        const dtr__side side = { name, &ops[i].tensor, 1, false, false };
        dtr__tensor_call one = *c;
        one.in = side;
        DTR_TRY(dtr__tensor_check_side(&one, &side, !ops[i].is_send && is_something(&ops[i])));
    }
    return DTR_OK;
}

static void free_batch(batch *b) {
    if (b != NULL) {
        free(b->packed);
        free(b);
    }
}

static dtr_status unpack(dtr__finish *step, dtr_status status) {
    batch *b = (batch *)((char *)step - offsetof(batch, step));
    const char *from = b->packed;
    for (size_t i = 0; i < b->n; from += packed_bytes(&b->part[i]), i++) {
        if (status >= 0) {
            dtr__tensor_unpack(&b->part[i], from);
        }
    }
    free_batch(b);
    return DTR_OK;
}

/* The raw list; *made stays NULL when nothing is packed. Copies of received tensors come first, in
 * list order, as `part` has them. */
static bool fill(const dtr_tensor_p2p *ops, size_t n, dtr_p2p *raw, batch **made) {
    size_t received = 0, nbytes = 0, n_received = 0, n_packed = 0;
    for (size_t i = 0; i < n; i++) {
        const dtr_tensor *t = ops[i].tensor;
        raw[i] = (dtr_p2p){
            ops[i].is_send, { t->data, t->numel, t->dtype, t->device }, ops[i].peer, ops[i].tag
        };
        if (is_packed(&ops[i])) {
            n_packed++;
            nbytes += packed_bytes(t);
            received += ops[i].is_send ? 0 : packed_bytes(t);
            n_received += !ops[i].is_send;
        }
    }
    if (n_packed == 0) {
        return true;
    }
    batch *b = calloc(1, sizeof *b + n_received * sizeof b->part[0]);
    if (b == NULL || (b->packed = aligned_alloc(PACK_ALIGN, nbytes)) == NULL) {
        free_batch(b);
        return false;
    }
    char *to = b->packed, *sent = b->packed + received;
    for (size_t i = 0; i < n; i++) {
        if (!is_packed(&ops[i])) {
            continue;
        }
        char **at = ops[i].is_send ? &sent : &to;
        raw[i].buf.data = *at;
        *at += packed_bytes(ops[i].tensor);
        if (ops[i].is_send) {
            dtr__tensor_pack(raw[i].buf.data, ops[i].tensor);
        } else {
            dtr__tensor_shallow_copy(&b->part[b->n++], ops[i].tensor);
        }
    }
    b->step.fn = unpack;
    *made = b;
    return true;
}

/* What the calls of a scope must not share: the memory behind the copies. */
static size_t touched(const dtr_tensor_p2p *ops, size_t n, dtr__touch *touch) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const dtr__side side = { "", &ops[i].tensor, 1, false, false };
        if (is_packed(&ops[i])) {
            count += dtr__tensor_touched(&side, !ops[i].is_send, touch + count);
        }
    }
    return count;
}

static dtr_status run(dtr__tensor_call *c, const dtr_tensor_p2p *ops, size_t n, dtr_work **work) {
    batch *b = NULL;
    DTR_TRY(check(c, ops, n));
    dtr_p2p *raw = malloc((n + 1) * sizeof *raw);
    dtr__touch *touch = malloc((2 * n + 1) * sizeof *touch);
    dtr_status s = DTR_OK;
    if (raw == NULL || touch == NULL || !fill(ops, n, raw, &b)) {
        s = DTR_REFUSE(c, DTR_ERR_NOMEM, "out of memory for a list of %zu tensors", n);
    } else {
        c->r.batch = raw;
        c->r.n_batch = n;
        c->r.finish = b != NULL ? &b->step : NULL;
        c->r.touched = touch;
        c->r.n_touched = touched(ops, n, touch);
        c->handed_over = true;
        s = dtr__coll_issue(c->group, &c->r, work);
        if (s < 0 && b != NULL && !b->step.taken) {
            free_batch(b);
        }
    }
    free(raw);
    free(touch);
    return s;
}

static dtr_status batch_p2p(dtr__tensor_call *c, const dtr_tensor_p2p *ops, size_t n,
                            dtr_work **work) {
    dtr_status s = dtr__tensor_begin(c->group, c->entry, work);
    s = s == DTR_OK ? dtr__scope_look(c->group, c->entry) : s;
    if (s == DTR_OK) {
        s = run(c, ops, n, work);
        if (s < 0 && !c->handed_over) {
            s = dtr__scope_fail(c->group, s, c->r.kind);
        }
    }
    if (!c->handed_over) {
        dtr__call_site_drop();
    }
    return s;
}

dtr_status dtr_tensor_batch_p2p(dtr_group *group, const dtr_tensor_p2p *ops, size_t n,
                                const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c = { .entry = __func__,
                           .group = group,
                           .r = { .kind = DTR__K_BATCH,
                                  .options = options,
                                  .return_address = __builtin_return_address(0) } };
    return DTR_TRACED(dtr__group_trace(group), c.entry, group->name, batch_p2p(&c, ops, n, work));
}
