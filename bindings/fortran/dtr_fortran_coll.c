/* Collectives and messages of the module: arrays of the program become buffers of the library. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dtr_fortran.h"

/* ---- buffers ---- */

static const struct {
    CFI_type_t type;
    dtr_dtype dtype;
} TYPES[] = {
    /* of some compilers types of one size are one, of others not */
    { CFI_type_int8_t, DTR_I8 },         { CFI_type_int16_t, DTR_I16 },
    { CFI_type_int32_t, DTR_I32 },       { CFI_type_int64_t, DTR_I64 },
    { CFI_type_float, DTR_F32 },         { CFI_type_double, DTR_F64 },
    { CFI_type_float_Complex, DTR_C64 }, { CFI_type_double_Complex, DTR_C128 },
    { CFI_type_Bool, DTR_BOOL },         { CFI_type_signed_char, DTR_I8 },
    { CFI_type_short, DTR_I16 },         { CFI_type_int, DTR_I32 },
    { CFI_type_long, DTR_I64 },          { CFI_type_long_long, DTR_I64 },
};

/* What an argument is for. Characters are bytes, which are moved and not reduced. */
enum { IN = 1, OUT = 2, REDUCED = 4 };

static dtr_dtype dtype_of(dtr_f_call *c, const char *name, const CFI_cdesc_t *d, int use) {
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        if (TYPES[i].type == d->type) {
            return TYPES[i].dtype;
        }
    }
    if (d->type != CFI_type_char) {
        dtr_f_refuse(c, DTR_ERR_DTYPE,
                     "%s has a type that the library does not know (elements of %zu bytes); it "
                     "takes integer, real and complex of up to 8 bytes a part, logical(c_bool), "
                     "and characters",
                     name, d->elem_len);
    } else if (use & REDUCED) {
        dtr_f_refuse(c, DTR_ERR_DTYPE, "%s is of type character, which can be moved, not reduced",
                     name);
    }
    return DTR_U8;
}

static size_t count_of(dtr_f_call *c, const char *name, const CFI_cdesc_t *d) {
    size_t count = d->type == CFI_type_char ? d->elem_len : 1;
    for (int i = 0; i < d->rank; i++) {
        if (d->dim[i].extent < 0) {
            dtr_f_refuse(c, DTR_ERR_SHAPE,
                         "%s is an assumed-size array, whose length is not known: give a section "
                         "of it, such as a(1:n)",
                         name);
            return 0;
        }
        count *= (size_t)d->dim[i].extent;
    }
    return count;
}

/* An array section with gaps: a blocking call works on a contiguous copy of it. */
static void *copy_of(dtr_f_call *c, const char *name, const CFI_cdesc_t *d, size_t count,
                     bool write_back) {
    if (c->work != NULL) {
        dtr_f_refuse(c, DTR_ERR_LAYOUT,
                     "%s is an array section with gaps, and the call asynchronous: give a "
                     "contiguous array, or leave out `work`",
                     name);
        return NULL;
    }
    const size_t nbytes = d->type == CFI_type_char ? count : count * d->elem_len;
    void *copy = malloc(nbytes);
    if (copy == NULL) {
        dtr_f_refuse(c, DTR_ERR_NOMEM, "no memory for a contiguous copy of %s (%zu bytes)", name,
                     nbytes);
        return NULL;
    }
    dtr_f_pack(d, copy);
    c->copies[c->n_copies++] = (dtr_f_copy){ copy, d, write_back };
    return copy;
}

static dtr_buffer buffer(dtr_f_call *c, const char *name, const CFI_cdesc_t *d, int use) {
    if (d == NULL || c->status != DTR_OK) {
        return dtr_cpu(NULL, 0, DTR_U8);
    }
    const dtr_dtype dtype = dtype_of(c, name, d, use);
    const size_t count = count_of(c, name, d);
    void *data = d->base_addr;
    if (c->status == DTR_OK && count > 0 && !CFI_is_contiguous(d)) {
        data = copy_of(c, name, d, count, (use & OUT) != 0);
    }
    return (use & OUT) != 0 ? dtr_cpu(data, count, dtype) : dtr_cpu_in(data, count, dtype);
}

/* Both buffers of a call. One that is absent is nothing, of the other's type: at ranks which need
 * none. */
typedef struct pair {
    dtr_buffer in, out;
} pair;

static pair two(dtr_f_call *c, const CFI_cdesc_t *in, const CFI_cdesc_t *out, int use) {
    pair p = { buffer(c, "in", in, IN | use), buffer(c, "out", out, OUT | use) };
    p.in.dtype = in != NULL ? p.in.dtype : p.out.dtype;
    p.out.dtype = out != NULL ? p.out.dtype : p.in.dtype;
    return p;
}

/* As two, but without `out` the call works in place. */
static pair two_or_one(dtr_f_call *c, const CFI_cdesc_t *in, const CFI_cdesc_t *out, int use) {
    if (out != NULL) {
        return two(c, in, out, use);
    }
    pair p;
    p.in = p.out = buffer(c, "in", in, IN | OUT | use);
    return p;
}

/* ---- counts ---- */

static size_t *no_counts(dtr_f_call *c, const char *name, const char *why) {
    dtr_f_refuse(c, DTR_ERR_ARG, "%s %s", name, why);
    return NULL;
}

/* One count per rank, of integers of 4 or 8 bytes. NULL where there are none. */
static size_t *counts_of(dtr_f_call *c, dtr_group *group, const char *name, const CFI_cdesc_t *d) {
    const int size = dtr_group_size(group);
    if (d == NULL || c->status != DTR_OK || size < 1) {
        return NULL;
    }
    if (d->rank != 1 || !dtr_f_is_whole(d)) {
        return no_counts(c, name, "has to be a one-dimensional array of integers of 4 or 8 bytes");
    }
    if (d->dim[0].extent != size) {
        dtr_f_refuse(c, DTR_ERR_SHAPE, "%s has %td elements, and the group %d ranks", name,
                     d->dim[0].extent, size);
        return NULL;
    }
    size_t *counts = malloc((size_t)size * sizeof *counts);
    if (counts == NULL) {
        return no_counts(c, name, "needs memory that is not there");
    }
    c->counts[c->n_counts++] = counts;
    for (int i = 0; i < size; i++) {
        const int64_t count = dtr_f_whole(d, i);
        if (count < 0) {
            dtr_f_refuse(c, DTR_ERR_ARG, "%s(%d) is %" PRId64, name, i + 1, count);
        }
        counts[i] = (size_t)count;
    }
    return counts;
}

/* ---- the calls ---- */

/* What every call takes after its own arguments. */
#define ENDING                                                                   \
    dtr_work **work, const CFI_cdesc_t *label, const double *timeout, int *stat, \
        const CFI_cdesc_t *errmsg

static void start(dtr_f_call *c, const char *name, const void *site, ENDING) {
    dtr_f_begin(c, name, stat, errmsg);
    c->work = work;
    c->options.label = dtr_f_text(label, c->label);
    c->options.timeout_s = timeout != NULL ? *timeout : -1;
    if (work != NULL && *work != NULL) {
        dtr_f_refuse(c, DTR_ERR_ARG,
                     "work is in use: wait for the operation that it stands for, "
                     "or release it");
    }
    dtr_f_site(site);
}

#define CALL(name, ...) \
    DTR_F_FUNCTION(void dtr_f_##name(dtr_group *const *group, __VA_ARGS__, ENDING))
#define START(name)              \
    dtr_f_call call, *c = &call; \
    start(c, #name, __builtin_return_address(0), work, label, timeout, stat, errmsg)
#define RUN(function, ...)                                             \
    DTR_F_TRY(c, function(*group, __VA_ARGS__, &c->options, c->work)); \
    dtr_f_end(c)
#define ARRAY(name) const CFI_cdesc_t *name

static dtr_op operator_of(const int *op) {
    return op != NULL ? (dtr_op)*op : DTR_SUM;
}

CALL(allreduce, ARRAY(in), ARRAY(out), const int *op) {
    START(allreduce);
    const pair p = two_or_one(c, in, out, REDUCED);
    RUN(dtr_allreduce, p.in, p.out, operator_of(op));
}

CALL(scan, ARRAY(in), ARRAY(out), const int *op) {
    START(scan);
    const pair p = two_or_one(c, in, out, REDUCED);
    RUN(dtr_scan, p.in, p.out, operator_of(op));
}

CALL(exscan, ARRAY(in), ARRAY(out), const int *op) {
    START(exscan);
    const pair p = two_or_one(c, in, out, REDUCED);
    RUN(dtr_exscan, p.in, p.out, operator_of(op));
}

CALL(reduce, ARRAY(in), ARRAY(out), const int *op, const int *root) {
    START(reduce);
    const pair p = two_or_one(c, in, out, REDUCED);
    RUN(dtr_reduce, p.in, p.out, operator_of(op), *root);
}

CALL(broadcast, ARRAY(buf), const int *root) {
    START(broadcast);
    const dtr_buffer b = buffer(c, "buf", buf, IN | OUT);
    RUN(dtr_broadcast, b, *root);
}

CALL(allgather, ARRAY(in), ARRAY(out)) {
    START(allgather);
    const pair p = two(c, in, out, 0);
    RUN(dtr_allgather, p.in, p.out);
}

CALL(allgatherv, ARRAY(in), ARRAY(out), ARRAY(counts)) {
    START(allgatherv);
    const pair p = two(c, in, out, 0);
    const size_t *of_ranks = counts_of(c, *group, "counts", counts);
    RUN(dtr_allgatherv, p.in, p.out, of_ranks);
}

CALL(gather, ARRAY(in), ARRAY(out), const int *root) {
    START(gather);
    const pair p = two(c, in, out, 0);
    RUN(dtr_gather, p.in, p.out, *root);
}

CALL(gatherv, ARRAY(in), ARRAY(out), ARRAY(counts), const int *root) {
    START(gatherv);
    const pair p = two(c, in, out, 0);
    const size_t *of_ranks = counts_of(c, *group, "counts", counts);
    RUN(dtr_gatherv, p.in, p.out, of_ranks, *root);
}

CALL(scatter, ARRAY(in), ARRAY(out), const int *root) {
    START(scatter);
    const pair p = two(c, in, out, 0);
    RUN(dtr_scatter, p.in, p.out, *root);
}

CALL(scatterv, ARRAY(in), ARRAY(counts), ARRAY(out), const int *root) {
    START(scatterv);
    const pair p = two(c, in, out, 0);
    const size_t *of_ranks = counts_of(c, *group, "counts", counts);
    RUN(dtr_scatterv, p.in, of_ranks, p.out, *root);
}

CALL(reduce_scatter, ARRAY(in), ARRAY(out), const int *op) {
    START(reduce_scatter);
    const pair p = two(c, in, out, REDUCED);
    RUN(dtr_reduce_scatter, p.in, p.out, operator_of(op));
}

CALL(reduce_scatterv, ARRAY(in), ARRAY(counts), ARRAY(out), const int *op) {
    START(reduce_scatterv);
    const pair p = two(c, in, out, REDUCED);
    const size_t *of_ranks = counts_of(c, *group, "counts", counts);
    RUN(dtr_reduce_scatterv, p.in, of_ranks, p.out, operator_of(op));
}

CALL(alltoall, ARRAY(in), ARRAY(out)) {
    START(alltoall);
    const pair p = two_or_one(c, in, out, 0);
    RUN(dtr_alltoall, p.in, p.out);
}

CALL(alltoallv, ARRAY(in), ARRAY(in_counts), ARRAY(out), ARRAY(out_counts)) {
    START(alltoallv);
    const pair p = two(c, in, out, 0);
    const size_t *to = counts_of(c, *group, "in_counts", in_counts);
    const size_t *from = counts_of(c, *group, "out_counts", out_counts);
    RUN(dtr_alltoallv, p.in, to, p.out, from);
}

DTR_F_FUNCTION(void dtr_f_barrier(dtr_group *const *group, ENDING)) {
    START(barrier);
    DTR_F_TRY(c, dtr_barrier(*group, &c->options, c->work));
    dtr_f_end(c);
}

/* ---- messages ---- */

static int tag_of(const int *tag) {
    return tag != NULL ? *tag : 0;
}

CALL(send, ARRAY(buf), const int *peer, const int *tag) {
    START(send);
    const dtr_buffer b = buffer(c, "buf", buf, IN);
    RUN(dtr_send, b, *peer, tag_of(tag));
}

/* Only a work knows where a message came from. */
static dtr_status receive(dtr_group *group, dtr_buffer b, int peer, int tag,
                          const dtr_coll_options *o, int *source) {
    dtr_work *w = NULL;
    dtr_status s = dtr_recv(group, b, peer, tag, o, &w);
    if (s == DTR_OK) {
        s = dtr_work_wait(w, -1);
        *source = dtr_work_source(w);
        (void)dtr_work_release(w);
    }
    return s;
}

CALL(recv, ARRAY(buf), const int *peer, const int *tag, int *source) {
    START(recv);
    const dtr_buffer b = buffer(c, "buf", buf, OUT);
    if (source != NULL && work != NULL) {
        dtr_f_refuse(c, DTR_ERR_ARG,
                     "source and work are both given: dtr_work_wait has the source "
                     "of an asynchronous receive");
    } else if (source != NULL) {
        DTR_F_TRY(c, receive(*group, b, *peer, tag_of(tag), &c->options, source));
        dtr_f_end(c);
        return;
    }
    RUN(dtr_recv, b, *peer, tag_of(tag));
}

CALL(sendrecv, ARRAY(in), const int *to, ARRAY(out), const int *from, const int *tag) {
    START(sendrecv);
    const pair p = two(c, in, out, 0);
    const dtr_p2p both[2] = { { true, p.in, *to, tag_of(tag) },
                              { false, p.out, *from, tag_of(tag) } };
    RUN(dtr_batch_p2p, both, 2);
}

/* ---- exact sums, and the place of an extreme: these return with the result ---- */

#define SUM_CALL(name, ...)                                                                      \
    DTR_F_FUNCTION(void dtr_f_##name(dtr_group *const *group, __VA_ARGS__, double *result,       \
                                     const CFI_cdesc_t *label, const double *timeout, int *stat, \
                                     const CFI_cdesc_t *errmsg))
#define START_SUM(name)          \
    dtr_f_call call, *c = &call; \
    start(c, #name, __builtin_return_address(0), NULL, label, timeout, stat, errmsg)

SUM_CALL(exact_sum, ARRAY(in)) {
    START_SUM(exact_sum);
    const dtr_buffer b = buffer(c, "in", in, IN | REDUCED);
    DTR_F_TRY(c, dtr_sum(*group, b, &c->options, result));
    dtr_f_end(c);
}

SUM_CALL(dot, ARRAY(a), ARRAY(b)) {
    START_SUM(dot);
    const dtr_buffer one = buffer(c, "a", a, IN | REDUCED), other = buffer(c, "b", b, IN | REDUCED);
    DTR_F_TRY(c, dtr_dot(*group, one, other, &c->options, result));
    dtr_f_end(c);
}

SUM_CALL(norm2, ARRAY(in)) {
    START_SUM(norm2);
    const dtr_buffer b = buffer(c, "in", in, IN | REDUCED);
    DTR_F_TRY(c, dtr_norm2(*group, b, &c->options, result));
    dtr_f_end(c);
}

/* The pairs of the library are values of up to eight bytes and, behind them, an index. */
typedef union value {
    float f32;
    double f64;
    int64_t i64;
} value;
typedef struct located {
    value value;
    int64_t index;
} located;
_Static_assert(sizeof(located) == sizeof(dtr_f32_index), "a pair is 16 bytes");
_Static_assert(offsetof(located, index) == offsetof(dtr_f32_index, index), "its index is behind");

static int64_t whole_at(const dtr_buffer *b, size_t i) {
    return b->dtype == DTR_I32 ? ((const int32_t *)b->data)[i] : ((const int64_t *)b->data)[i];
}

static void put_whole(const dtr_buffer *b, size_t i, int64_t whole) {
    if (b->dtype == DTR_I32) {
        ((int32_t *)b->data)[i] = (int32_t)whole;
    } else {
        ((int64_t *)b->data)[i] = whole;
    }
}

static void put_pairs(located *pairs, const dtr_buffer *v, const dtr_buffer *index) {
    for (size_t i = 0; i < v->count; i++) {
        pairs[i] = (located){ { .i64 = 0 }, whole_at(index, i) };
        if (v->dtype == DTR_F32) {
            pairs[i].value.f32 = ((const float *)v->data)[i];
        } else if (v->dtype == DTR_F64) {
            pairs[i].value.f64 = ((const double *)v->data)[i];
        } else {
            pairs[i].value.i64 = whole_at(v, i);
        }
    }
}

static void take_pairs(const located *pairs, const dtr_buffer *v, const dtr_buffer *index) {
    for (size_t i = 0; i < v->count; i++) {
        put_whole(index, i, pairs[i].index);
        if (v->dtype == DTR_F32) {
            ((float *)v->data)[i] = pairs[i].value.f32;
        } else if (v->dtype == DTR_F64) {
            ((double *)v->data)[i] = pairs[i].value.f64;
        } else {
            put_whole(v, i, pairs[i].value.i64);
        }
    }
}

static dtr_status reduce_pairs(dtr_f_call *c, dtr_group *group, dtr_buffer v, dtr_buffer index,
                               dtr_op op) {
    const dtr_dtype dtype = v.dtype == DTR_F32   ? DTR_F32_INDEX
                            : v.dtype == DTR_F64 ? DTR_F64_INDEX
                                                 : DTR_I64_INDEX;
    located *pairs = malloc((v.count + 1) * sizeof *pairs);
    if (pairs == NULL) {
        dtr_f_refuse(c, DTR_ERR_NOMEM, "no memory for %zu pairs", v.count);
        return c->status;
    }
    put_pairs(pairs, &v, &index);
    const dtr_buffer b = dtr_cpu(pairs, v.count, dtype);
    const dtr_status s = dtr_allreduce(group, b, b, op, &c->options, NULL);
    if (s == DTR_OK) {
        take_pairs(pairs, &v, &index);
    }
    free(pairs);
    return s;
}

DTR_F_FUNCTION(void dtr_f_allreduce_loc(dtr_group *const *group, ARRAY(values), ARRAY(index),
                                        const int *op, const CFI_cdesc_t *label,
                                        const double *timeout, int *stat,
                                        const CFI_cdesc_t *errmsg)) {
    START_SUM(allreduce_loc);
    const dtr_buffer v = buffer(c, "values", values, IN | OUT | REDUCED);
    const dtr_buffer at = buffer(c, "index", index, IN | OUT | REDUCED);
    if (v.dtype != DTR_F32 && v.dtype != DTR_F64 && v.dtype != DTR_I32 && v.dtype != DTR_I64) {
        dtr_f_refuse(c, DTR_ERR_DTYPE,
                     "values are of type %s; they can be real or integer, of 4 "
                     "or 8 bytes",
                     dtr_dtype_name(v.dtype));
    } else if (at.dtype != DTR_I32 && at.dtype != DTR_I64) {
        dtr_f_refuse(c, DTR_ERR_DTYPE, "index is of type %s; it can be integer, of 4 or 8 bytes",
                     dtr_dtype_name(at.dtype));
    } else if (at.count != v.count) {
        dtr_f_refuse(c, DTR_ERR_SHAPE, "there are %zu values, and %zu elements in index", v.count,
                     at.count);
    }
    DTR_F_TRY(c, reduce_pairs(c, *group, v, at, (dtr_op)*op));
    dtr_f_end(c);
}
