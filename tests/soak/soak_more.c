/* What soak does beside the collectives on buffers: byte strings, batches of messages, strided
 * tensors, and steps of gradient averaging. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "soak.h"

/* Element k of what member r gives: small whole numbers, whose sums are exact. */
static int value(unsigned salt, int r, size_t k) {
    return (int)((7 * (k % 17) + 13 * (size_t)r + salt) % 17) - 8;
}

static int sum(unsigned salt, int n, size_t k) {
    int all = 0;
    for (int r = 0; r < n; r++) {
        all += value(salt, r, k);
    }
    return all;
}

static void *take(size_t nbytes) {
    void *p = malloc(nbytes > 0 ? nbytes : 1);
    if (p == NULL) {
        fail("no memory for %zu bytes", nbytes);
    }
    return p;
}

/* ---- byte strings ---- */

static dtr_bytes string_of(unsigned salt, int r) {
    dtr_bytes b = { NULL, (97 * (size_t)r + 131 * (size_t)salt) % 700 };
    b.data = b.nbytes > 0 ? take(b.nbytes) : NULL;
    for (size_t k = 0; k < b.nbytes; k++) {
        ((unsigned char *)b.data)[k] = (unsigned char)(31 * k + 7 * (size_t)r + salt);
    }
    return b;
}

static void check_string(const char *what, dtr_bytes got, unsigned salt, int r) {
    dtr_bytes want = string_of(salt, r);
    if (got.nbytes != want.nbytes ||
        (want.nbytes > 0 && memcmp(got.data, want.data, want.nbytes) != 0)) {
        fail("%s: the string of member %d, %zu bytes, came as %zu bytes or with others", what, r,
             want.nbytes, got.nbytes);
    }
    free(want.data);
}

static void pair_of_strings(const member_group *g, int me, unsigned salt, bool any) {
    dtr_bytes in = string_of(salt, me), out = { NULL, 0 };
    int source = -1, peer = me % 2 == 0 ? me + 1 : me - 1;
    if (me % 2 == 0 && peer < g->size) {
        must(dtr_send_bytes(g->group, &in, 1, peer, (int)salt, NULL), "dtr_send_bytes");
    } else if (me % 2 != 0) {
        must(dtr_recv_bytes(g->group, 1, any ? DTR_ANY_SOURCE : peer, (int)salt, NULL, &out,
                            &source),
             "dtr_recv_bytes");
        check_string("dtr_recv_bytes", out, salt, peer);
        if (source != peer) {
            fail("dtr_recv_bytes names member %d as source, not %d", source, peer);
        }
        dtr_bytes_free(&out, 1);
    }
    free(in.data);
}

void soak_bytes(const member_group *g) {
    const unsigned which = below(&plan, 5), salt = below(&plan, 1000);
    const int root = (int)below(&plan, (unsigned)g->size);
    const bool any = below(&plan, 2) == 0;
    if (g->group == NULL) {
        return;
    }
    const int me = dtr_group_rank(g->group);
    const size_t n = (size_t)g->size;
    dtr_bytes *in = calloc(n, sizeof *in), *out = calloc(n, sizeof *out);
    if (in == NULL || out == NULL) {
        fail("no memory for strings");
    }
    for (int r = 0; r < g->size; r++) {
        in[r] = string_of(salt, r);
    }
    switch (which) {
    case 0:
        must(dtr_broadcast_bytes(g->group, in, n, root, NULL, out), "dtr_broadcast_bytes");
        break;
    case 1:
        must(dtr_allgather_bytes(g->group, in[me], NULL, out), "dtr_allgather_bytes");
        break;
    case 2:
        must(dtr_gather_bytes(g->group, in[me], root, NULL, me == root ? out : NULL),
             "dtr_gather_bytes");
        break;
    case 3:
        must(dtr_scatter_bytes(g->group, in, n, root, NULL, &out[me]), "dtr_scatter_bytes");
        break;
    default:
        pair_of_strings(g, me, salt, any);
        break;
    }
    for (int r = 0; r < g->size; r++) {
        if (which < 2 || (which == 2 && me == root) || (which == 3 && r == me)) {
            check_string("bytes", out[r], salt, r);
        }
        free(in[r].data);
    }
    dtr_bytes_free(out, n);
    free(in);
    free(out);
}

/* ---- batches ---- */

/* Everybody sends the same to some neighbours, of the same distances on all. */
void soak_batch(const member_group *g) {
    enum { MOST = 4 };
    const unsigned n = 1 + below(&plan, MOST), salt = below(&plan, 17);
    const size_t count = below(&plan, 8) == 0 ? below(&plan, 30000) : below(&plan, 100);
    const bool blocking = below(&plan, 2) == 0;
    int far[MOST];
    for (unsigned i = 0; i < n; i++) {
        far[i] = (int)below(&plan, (unsigned)g->size);
    }
    if (g->group == NULL) {
        return;
    }
    const int me = dtr_group_rank(g->group);
    int32_t *given = take(count * sizeof *given), *got = take(n * count * sizeof *got);
    dtr_p2p ops[2 * MOST];
    dtr_work *work = NULL;
    for (size_t k = 0; k < count; k++) {
        given[k] = value(salt, me, k);
    }
    for (unsigned i = 0; i < n; i++) {
        ops[2 * i] = (dtr_p2p){ true, dtr_cpu(given, count, DTR_I32), (me + far[i]) % g->size, 3 };
        ops[2 * i + 1] = (dtr_p2p){ false, dtr_cpu(got + i * count, count, DTR_I32),
                                    (me + g->size - far[i]) % g->size, 3 };
    }
    must(dtr_batch_p2p(g->group, ops, 2 * (size_t)n, NULL, blocking ? NULL : &work),
         "dtr_batch_p2p");
    must(dtr_work_wait(work, -1), "dtr_batch_p2p");
    must(dtr_work_release(work), "dtr_work_release");
    for (size_t k = 0; k < n * count; k++) {
        const int from = ops[2 * (k / count) + 1].peer, want = value(salt, from, k % count);
        if (got[k] != want) {
            fail("batch of %u, entry %zu, element %zu of %zu is %d, not %d", n, k / count,
                 k % count, count, (int)got[k], want);
        }
    }
    free(given);
    free(got);
}

/* ---- tensors ---- */

static dtr_tensor *table(int64_t rows, int64_t columns, int32_t **data) {
    dtr_tensor *t = NULL;
    must(dtr_tensor_empty(world, DTR_I32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 2,
                          (const int64_t[]){ rows, columns }, &t),
         "dtr_tensor_empty");
    *data = dtr_tensor_data(t);
    return t;
}

/* A transposed view goes in; what is gathered comes out in the view's order. */
void soak_tensors(const member_group *g) {
    const unsigned which = below(&plan, 3), salt = below(&plan, 17);
    const int root = (int)below(&plan, (unsigned)g->size);
    const int64_t rows = 1 + below(&plan, 40), columns = 1 + below(&plan, 40);
    if (g->group == NULL) {
        return;
    }
    const int me = dtr_group_rank(g->group);
    const size_t n = (size_t)(rows * columns), all = n * (size_t)g->size;
    int32_t *data, *gathered;
    dtr_tensor *t = table(rows, columns, &data), *view = NULL, *out;
    dtr_work *work = NULL;
    out = table(g->size * columns, rows, &gathered);
    for (size_t k = 0; k < n; k++) {
        data[k] = value(salt, me, k);
    }
    must(dtr_tensor_transpose(t, 0, 1, &view), "dtr_tensor_transpose");
    must(which == 0   ? dtr_tensor_allreduce(g->group, view, DTR_SUM, NULL, &work)
         : which == 1 ? dtr_tensor_broadcast(g->group, view, root, NULL, &work)
                      : dtr_tensor_allgather(g->group, view, out, NULL, &work),
         "a collective of tensors");
    must(dtr_work_wait(work, -1), "a collective of tensors");
    must(dtr_work_release(work), "dtr_work_release");
    for (size_t k = 0; k < n && which < 2; k++) {
        const int want = which == 0 ? sum(salt, g->size, k) : value(salt, root, k);
        if (data[k] != want) {
            fail("tensor %s: element %zu is %d, not %d", which == 0 ? "allreduce" : "broadcast", k,
                 (int)data[k], want);
        }
    }
    for (size_t k = 0; k < all && which == 2; k++) {
        const size_t i = k % (size_t)rows, j = k % n / (size_t)rows; /* of the table */
        const int want = value(salt, (int)(k / n), i * (size_t)columns + j);
        if (gathered[k] != want) {
            fail("tensor allgather: element %zu is %d, not %d", k, (int)gathered[k], want);
        }
    }
    dtr_tensor_release(view);
    dtr_tensor_release(t);
    dtr_tensor_release(out);
}

/* ---- gradient averaging ---- */

void soak_module_open(member_group *g) {
    dtr_param p[PARAMS_MOST];
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    static const char *const names[PARAMS_MOST] = { "a", "b", "c", "d" };
    g->has_module = below(&plan, 3) == 0;
    g->n_params = 1 + (int)below(&plan, PARAMS_MOST);
    for (int i = 0; i < g->n_params; i++) {
        g->numel[i] = 1 + below(&plan, below(&plan, 4) == 0 ? 20000 : 500);
    }
    o.bucket_cap_bytes = 1 + below(&plan, 8000);
    o.first_bucket_bytes = 1 + below(&plan, (unsigned)o.bucket_cap_bytes);
    o.grad_as_bucket_view = below(&plan, 2) == 0;
    if (g->group == NULL || !g->has_module) {
        return;
    }
    memset(p, 0, sizeof p);
    for (int i = 0; i < g->n_params; i++) {
        p[i].name = names[i];
        must(dtr_tensor_empty(world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                              (const int64_t[]){ (int64_t)g->numel[i] }, &p[i].value),
             "dtr_tensor_empty");
        must(dtr_tensor_fill(p[i].value, rank, NULL), "dtr_tensor_fill");
    }
    must(dtr_ddp_create(g->group, p, (size_t)g->n_params, &o, &g->ddp), "dtr_ddp_create");
    for (int i = 0; i < g->n_params; i++) {
        if (((const float *)dtr_tensor_data(p[i].value))[0] != (float)g->ranks[0]) {
            fail("parameter %d is not that of the group's rank 0", i);
        }
        dtr_tensor_release(p[i].value);
    }
}

void soak_module_close(member_group *g) {
    must(dtr_ddp_destroy(g->ddp), "dtr_ddp_destroy");
    g->ddp = NULL;
    g->has_module = false;
}

static void check_averages(const member_group *g, unsigned salt) {
    for (int i = 0; i < g->n_params; i++) {
        const float *grad = dtr_tensor_data(dtr_ddp_grad(g->ddp, (size_t)i));
        for (size_t k = 0; k < g->numel[i]; k++) {
            const double want = sum(salt + (unsigned)i, g->size, k);
            if (!(fabs((double)grad[k] * g->size - want) < 1e-3)) {
                fail("gradient %d of %d: element %zu is %g, not %g", i, g->n_params, k,
                     (double)grad[k], want / g->size);
            }
        }
    }
}

/* Each rank finds its gradients in an order of its own. */
void soak_step(const member_group *g) {
    const unsigned salt = below(&plan, 17);
    if (g->ddp == NULL) {
        return;
    }
    const int me = dtr_group_rank(g->group), first = (int)below(&mine, (unsigned)g->n_params);
    must(dtr_ddp_forward_begin(g->ddp), "dtr_ddp_forward_begin");
    must(dtr_ddp_forward_end(g->ddp, NULL, 0), "dtr_ddp_forward_end");
    for (int n = 0; n < g->n_params; n++) {
        const int i = (first + n) % g->n_params;
        float *grad = dtr_tensor_data(dtr_ddp_grad(g->ddp, (size_t)i));
        for (size_t k = 0; k < g->numel[i]; k++) {
            grad[k] = (float)value(salt + (unsigned)i, me, k);
        }
        must(dtr_ddp_grad_ready(g->ddp, (size_t)i, NULL), "dtr_ddp_grad_ready");
        dawdle();
    }
    must(dtr_ddp_backward_end(g->ddp, NULL), "dtr_ddp_backward_end");
    check_averages(g, salt);
}
