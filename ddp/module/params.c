/* The parameters and buffers of a module as one rank sees them: checks, shared memory, and the
 * plan's view of them. */
#include <stdlib.h>

#include "module.h"

#define NAME(p) ((p)->name != NULL ? (p)->name : "(no name)")

static bool managed(const dtr__ddp_param *p) {
    return (p->flags & DTR_PARAM_IGNORED) == 0;
}

/* ---- names ---- */

static int by_name(const void *a, const void *b, void *list) {
    const dtr__ddp_param *p = list;
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    int order = strcmp(p[i].name, p[j].name);
    return order != 0 ? order : (i > j) - (i < j);
}

/* Names must be unique: they are what errors speak of. */
static dtr_status check_unique(dtr__ddp_param *p, size_t n, const char *what) {
    size_t *order = malloc((n + 1) * sizeof *order);
    DTR_REQUIRE(order != NULL, NULL, DTR_ERR_NOMEM, "no memory to check %zu names", n);
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    qsort_r(order, n, sizeof *order, by_name, p);
    dtr_status s = DTR_OK;
    for (size_t k = 1; k < n && s == DTR_OK; k++) {
        if (strcmp(p[order[k - 1]].name, p[order[k]].name) == 0) {
            s = DTR_FAIL(NULL, DTR_ERR_ARG, "%ss %zu and %zu have the same name '%s'", what,
                         order[k - 1], order[k], p[order[k]].name);
        }
    }
    free(order);
    return s;
}

/* ---- one entry ---- */

static dtr_status take_name(dtr__ddp_param *p, const dtr_param *given, size_t i, const char *what) {
    DTR_REQUIRE(given->name != NULL && given->name[0] != '\0', NULL, DTR_ERR_ARG,
                "%s %zu has no name: errors could not say which one they mean", what, i);
    p->name = strdup(given->name);
    DTR_REQUIRE(p->name != NULL, NULL, DTR_ERR_NOMEM, "no memory for the name of %s %zu", what, i);
    return DTR_OK;
}

/* A tensor the module will read and write: live, with memory, no two indices for one element. */
static dtr_status check_tensor(const dtr_tensor *t, const char *name, size_t i, const char *what) {
    dtr_status s = dtr__tensor_check(t, what);
    DTR_REQUIRE(s == DTR_OK, NULL, s, "'%s' (%zu): its %s is %s", name, i, what,
                t == NULL ? "NULL" : "no tensor, or a released one");
    DTR_REQUIRE(t->data != NULL || t->numel == 0, NULL, DTR_ERR_ARG,
                "'%s' (%zu): its %s has no memory", name, i, what);
    DTR_REQUIRE(!dtr__tensor_self_overlap(t), NULL, DTR_ERR_LAYOUT,
                "'%s' (%zu): several elements of its %s share memory (a stride of 0?)", name, i,
                what);
    return DTR_OK;
}

static dtr_status check_device(const dtr_ddp *ddp, const dtr_tensor *t, const char *name,
                               size_t i) {
    const dtr__ddp_param *first = NULL;
    for (size_t k = 0; first == NULL && k < ddp->n; k++) {
        first = managed(&ddp->params[k]) && ddp->params[k].value != NULL ? &ddp->params[k] : NULL;
    }
    if (first == NULL) {
        return DTR_OK;
    }
    dtr_device d = first->value->device;
    DTR_REQUIRE(t->device.type == d.type, NULL, DTR_ERR_DEVICE,
                "'%s' (%zu) is on %s, '%s' on %s: a module has one device", name, i,
                t->device.type == DTR_CPU ? "the CPU" : "a CUDA device", first->name,
                d.type == DTR_CPU ? "the CPU" : "a CUDA device");
    DTR_REQUIRE(t->device.index == d.index, NULL, DTR_ERR_UNSUPPORTED,
                "'%s' (%zu) is on CUDA device %d, '%s' on %d: use one device per module", name, i,
                t->device.index, first->name, d.index);
    return DTR_OK;
}

static dtr_status take_grad(const dtr_ddp *ddp, dtr__ddp_param *p, const dtr_param *given,
                            size_t i) {
    dtr_dtype d = dtr__ddp_grad_dtype(ddp, p);
    DTR_REQUIRE(dtr__ddp_is_float(d) || d == DTR_C64 || d == DTR_C128, NULL, DTR_ERR_DTYPE,
                "parameter '%s' (%zu) is %s, and gradients of that type cannot be averaged: mark "
                "it DTR_PARAM_FROZEN",
                p->name, i, dtr_dtype_name(d));
    if (ddp->set.has_reduce_dtype) {
        DTR_REQUIRE(dtr__ddp_is_float(d), NULL, DTR_ERR_DTYPE,
                    "parameter '%s' (%zu) is %s: reduce_dtype %s would lose its imaginary part",
                    p->name, i, dtr_dtype_name(d), dtr_dtype_name(ddp->set.reduce_dtype));
        DTR_REQUIRE(!ddp->set.view || d == ddp->set.reduce_dtype, NULL, DTR_ERR_STATE,
                    "the gradient of parameter '%s' (%zu) is %s, the buckets are %s: "
                    "grad_as_bucket_view needs equal types",
                    p->name, i, dtr_dtype_name(d), dtr_dtype_name(ddp->set.reduce_dtype));
    }
    if (given->grad == NULL) {
        return DTR_OK;
    }
    DTR_TRY(check_tensor(given->grad, p->name, i, "gradient"));
    DTR_REQUIRE(given->grad->dtype == d, NULL, DTR_ERR_DTYPE,
                "parameter '%s' (%zu) is %s%s%s, its gradient %s: it must have the type backward "
                "writes",
                p->name, i, dtr_dtype_name(p->value->dtype),
                d != p->value->dtype ? ", param_dtype is " : "",
                d != p->value->dtype ? dtr_dtype_name(d) : "", dtr_dtype_name(given->grad->dtype));
    char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
    DTR_REQUIRE(dtr__same_shape(given->grad, p->value), NULL, DTR_ERR_SHAPE,
                "parameter '%s' (%zu) has shape %s, its gradient %s", p->name, i,
                dtr__shape_text(p->value->ndim, p->value->shape, a),
                dtr__shape_text(given->grad->ndim, given->grad->shape, b));
    DTR_TRY(check_device(ddp, given->grad, p->name, i));
    atomic_store(&p->grad, dtr_tensor_retain(given->grad));
    p->grad_given = true;
    return DTR_OK;
}

static dtr_status check_sparse(const dtr__ddp_param *p, const dtr_param *given, size_t i) {
    DTR_REQUIRE(dtr_op_supports(DTR_AVG, p->value->dtype) && p->value->dtype != DTR_BOOL &&
                    (dtr__ddp_is_float(p->value->dtype) || p->value->dtype == DTR_C64 ||
                     p->value->dtype == DTR_C128),
                NULL, DTR_ERR_DTYPE,
                "parameter '%s' (%zu) is %s, and gradients of that type cannot be averaged: mark "
                "it DTR_PARAM_FROZEN",
                p->name, i, dtr_dtype_name(p->value->dtype));
    DTR_REQUIRE(p->value->ndim > 0, NULL, DTR_ERR_SHAPE,
                "parameter '%s' (%zu) is a single number: DTR_PARAM_SPARSE needs rows", p->name, i);
    DTR_REQUIRE(given->grad == NULL, NULL, DTR_ERR_ARG,
                "parameter '%s' (%zu) is sparse, but a dense gradient is given: pass NULL and use "
                "dtr_ddp_set_sparse_grad",
                p->name, i);
    return DTR_OK;
}

static dtr_status take_param(dtr_ddp *ddp, const dtr_param *given, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    DTR_TRY(take_name(p, given, i, "parameter"));
    const uint32_t known = DTR_PARAM_FROZEN | DTR_PARAM_IGNORED | DTR_PARAM_SPARSE;
    DTR_REQUIRE((given->flags & ~known) == 0, NULL, DTR_ERR_ARG,
                "parameter '%s' (%zu): flags 0x%x; known are DTR_PARAM_FROZEN, _IGNORED, _SPARSE",
                p->name, i, (unsigned)given->flags);
    p->flags = given->flags;
    if (!managed(p)) {
        return DTR_OK;
    }
    DTR_TRY(check_tensor(given->value, p->name, i, "value"));
    DTR_TRY(check_device(ddp, given->value, p->name, i));
    p->value = dtr_tensor_retain(given->value);
    if ((p->flags & DTR_PARAM_FROZEN) == 0) {
        p->trainable = true;
        p->sparse = (p->flags & DTR_PARAM_SPARSE) != 0;
        DTR_TRY(p->sparse ? check_sparse(p, given, i) : take_grad(ddp, p, given, i));
    }
    return DTR_OK;
}

static dtr_status take_buffer(dtr_ddp *ddp, const dtr_param *given, size_t k) {
    dtr__ddp_param *p = &ddp->reducer->buffers.list[k];
    DTR_TRY(take_name(p, given, k, "buffer"));
    DTR_REQUIRE((given->flags & ~(uint32_t)DTR_PARAM_IGNORED) == 0, NULL, DTR_ERR_ARG,
                "buffer '%s' (%zu): flags 0x%x; only DTR_PARAM_IGNORED is known for buffers",
                p->name, k, (unsigned)given->flags);
    p->flags = given->flags;
    if (!managed(p)) {
        return DTR_OK;
    }
    DTR_TRY(check_tensor(given->value, p->name, k, "buffer"));
    DTR_TRY(check_device(ddp, given->value, p->name, k));
    p->value = dtr_tensor_retain(given->value);
    ddp->reducer->buffers.sync[ddp->reducer->buffers.n_sync++] = p->value;
    return DTR_OK;
}

/* ---- shared memory ---- */

typedef struct span {
    char *lo, *hi;
    size_t param;
} span;

static int by_place(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->lo != y->lo) {
        return x->lo < y->lo ? -1 : 1;
    }
    if (x->hi != y->hi) {
        return x->hi > y->hi ? -1 : 1; /* the longer one first */
    }
    return (x->param > y->param) - (x->param < y->param);
}

static bool is_same(const dtr_tensor *a, const dtr_tensor *b) {
    return a->data == b->data && a->dtype == b->dtype && dtr__same_shape(a, b) &&
           (a->contiguous
                ? b->contiguous
                : memcmp(a->strides, b->strides, (size_t)a->ndim * sizeof a->strides[0]) == 0);
}

static dtr_status make_alias(dtr_ddp *ddp, size_t first, size_t second) {
    dtr__ddp_param *p = &ddp->params[first], *q = &ddp->params[second];
    DTR_REQUIRE(p->flags == q->flags, NULL, DTR_ERR_ARG,
                "parameters '%s' (%zu) and '%s' (%zu) are the same memory, but their flags are "
                "0x%x and 0x%x",
                p->name, first, q->name, second, (unsigned)p->flags, (unsigned)q->flags);
    dtr_tensor *mine = atomic_load(&q->grad), *kept = atomic_load(&p->grad);
    DTR_REQUIRE(mine == NULL || (kept != NULL && is_same(mine, kept)), NULL, DTR_ERR_ARG,
                "parameters '%s' (%zu) and '%s' (%zu) are the same memory: they have one gradient, "
                "that of the first; give the second one NULL or the same",
                p->name, first, q->name, second);
    dtr_tensor_release(mine);
    atomic_store(&q->grad, NULL);
    q->grad_given = false;
    q->trainable = false;
    q->same_as = first;
    return DTR_OK;
}

/* Marks the bytes of every element in a bitmap; remembers whether one was marked already. */
typedef struct marks {
    char *lo;
    size_t size;
    unsigned char *bits;
    bool met;
} marks;

static void mark_bytes(marks *m, const char *at) {
    for (size_t k = 0; k < m->size; k++) {
        size_t bit = (size_t)(at - m->lo) + k;
        unsigned char mask = (unsigned char)(1u << bit % 8);
        m->met = m->met || (m->bits[bit / 8] & mask) != 0;
        m->bits[bit / 8] |= mask;
    }
}

static void mark_tensor(marks *m, const dtr_tensor *t) {
    int64_t index[DTR_MAX_NDIM] = { 0 };
    m->size = dtr_dtype_size(t->dtype);
    for (size_t k = 0; k < t->numel; k++) {
        ptrdiff_t at = 0;
        for (int d = 0; d < t->ndim; d++) {
            at += (ptrdiff_t)(index[d] * t->strides[d]);
        }
        mark_bytes(m, t->data + at * (ptrdiff_t)m->size);
        for (int d = t->ndim - 1; d >= 0 && ++index[d] == t->shape[d]; d--) {
            index[d] = 0;
        }
    }
}

/* Spans that overlap although no element need be shared (columns of one matrix): look at every
 * element. Rare, and once per module. */
static dtr_status check_elements(const dtr_ddp *ddp, const span *s, size_t n) {
    char *hi = s[0].hi;
    for (size_t k = 1; k < n; k++) {
        hi = s[k].hi > hi ? s[k].hi : hi;
    }
    marks m = { .lo = s[0].lo, .bits = calloc((size_t)(hi - s[0].lo) / 8 + 1, 1) };
    DTR_REQUIRE(m.bits != NULL, NULL, DTR_ERR_NOMEM, "no memory to check parameters for overlap");
    size_t at = n;
    for (size_t k = 0; k < n && !m.met; k++) {
        if (ddp->params[s[k].param].same_as == s[k].param) {
            mark_tensor(&m, ddp->params[s[k].param].value);
            at = m.met ? k : at;
        }
    }
    free(m.bits);
    DTR_REQUIRE(at == n, NULL, DTR_ERR_ARG,
                "parameter '%s' (%zu) overlaps another one's memory in part: only identical "
                "tensors may be shared",
                ddp->params[s[at].param].name, s[at].param);
    return DTR_OK;
}

/* One run of spans that overlap each other, sorted: identical ones become aliases. */
static dtr_status check_run(dtr_ddp *ddp, const span *s, size_t n) {
    bool clear = true;
    for (size_t k = 1; k < n; k++) {
        bool found = false;
        for (size_t j = k; j-- > 0 && s[j].lo == s[k].lo && s[j].hi == s[k].hi && !found;) {
            size_t first = ddp->params[s[j].param].same_as;
            if (is_same(ddp->params[first].value, ddp->params[s[k].param].value)) {
                DTR_TRY(make_alias(ddp, first, s[k].param));
                found = true;
            }
        }
        clear = clear && found;
    }
    return clear ? DTR_OK : check_elements(ddp, s, n);
}

static dtr_status find_aliases(dtr_ddp *ddp) {
    span *s = malloc((ddp->n + 1) * sizeof *s);
    DTR_REQUIRE(s != NULL, NULL, DTR_ERR_NOMEM, "no memory to check parameters for overlap");
    size_t n = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr_tensor *t = ddp->params[i].value;
        if (t != NULL && t->numel > 0) {
            ptrdiff_t lo, hi;
            dtr__tensor_span(t, &lo, &hi);
            s[n++] = (span){ t->data + lo, t->data + hi, i };
        }
    }
    qsort(s, n, sizeof *s, by_place);
    dtr_status status = DTR_OK;
    for (size_t at = 0; at < n && status == DTR_OK;) {
        size_t end = at + 1;
        for (char *hi = s[at].hi; end < n && s[end].lo < hi; end++) {
            hi = s[end].hi > hi ? s[end].hi : hi;
        }
        status = end - at > 1 ? check_run(ddp, s + at, end - at) : DTR_OK;
        at = end;
    }
    free(s);
    return status;
}

/* ---- all of them ---- */

static dtr_status allocate(dtr_ddp *ddp, size_t n, size_t n_buffers) {
    ddp->params = calloc(n + 1, sizeof *ddp->params);
    ddp->trainable = calloc(n + 1, sizeof *ddp->trainable);
    ddp->reducer->buffers.list = calloc(n_buffers + 1, sizeof *ddp->reducer->buffers.list);
    ddp->reducer->buffers.sync = calloc(n_buffers + 1, sizeof(dtr_tensor *));
    DTR_REQUIRE(ddp->params != NULL && ddp->trainable != NULL &&
                    ddp->reducer->buffers.list != NULL && ddp->reducer->buffers.sync != NULL,
                NULL, DTR_ERR_NOMEM, "no memory for a module of %zu parameters", n);
    ddp->n = n;
    ddp->reducer->buffers.n = n_buffers;
    for (size_t i = 0; i < n; i++) {
        ddp->params[i].same_as = i;
        ddp->params[i].bucket = DTR__NONE;
        ddp->params[i].saved = DTR__NONE;
    }
    return DTR_OK;
}

dtr_status dtr__ddp_params_read(dtr_ddp *ddp, const dtr_param *params, size_t n,
                                const dtr_ddp_options *o) {
    DTR_REQUIRE(params != NULL && n > 0, NULL, DTR_ERR_ARG,
                "dtr_ddp_create: params is %s and n is %zu: a module needs parameters",
                params != NULL ? "given" : "NULL", n);
    DTR_TRY(allocate(ddp, n, o->n_buffers));
    for (size_t i = 0; i < n; i++) {
        DTR_TRY(take_param(ddp, &params[i], i));
    }
    for (size_t k = 0; k < o->n_buffers; k++) {
        DTR_TRY(take_buffer(ddp, &o->buffers[k], k));
    }
    DTR_TRY(check_unique(ddp->params, n, "parameter"));
    DTR_TRY(check_unique(ddp->reducer->buffers.list, o->n_buffers, "buffer"));
    DTR_TRY(find_aliases(ddp));
    DTR_TRY(dtr__ddp_delayed_read(ddp, o));
    for (size_t i = 0; i < n; i++) {
        if (ddp->params[i].trainable) {
            ddp->trainable[ddp->n_trainable++] = i;
        }
    }
    DTR_REQUIRE(ddp->n_trainable + ddp->reducer->delayed.n > 0, NULL, DTR_ERR_ARG,
                "none of the %zu parameters is trainable: there is nothing to average", n);
    return DTR_OK;
}

static void free_list(dtr__ddp_param *p, size_t n) {
    for (size_t i = 0; p != NULL && i < n; i++) {
        dtr_tensor_release(p[i].value);
        dtr_tensor_release(atomic_load(&p[i].grad));
        dtr_tensor_release(p[i].parked);
        dtr_tensor_release(p[i].slot);
        dtr_tensor_release(p[i].kept);
        dtr_tensor_release(p[i].cast);
        dtr_tensor_release(p[i].full);
        dtr_tensor_release(p[i].rows);
        dtr_tensor_release(p[i].row_values);
        free(p[i].agreed);
        free(p[i].name);
    }
    free(p);
}

void dtr__ddp_params_free(dtr_ddp *ddp) {
    free_list(ddp->params, ddp->n);
    free_list(ddp->reducer->buffers.list, ddp->reducer->buffers.n);
    free(ddp->trainable);
    free(ddp->reducer->buffers.sync);
}

/* ---- on a CUDA device ---- */

static bool is_dense(const dtr_tensor *t) {
    int64_t strides[DTR_MAX_NDIM];
    dtr__ddp_dense_strides(t, strides);
    return t->numel == 0 || memcmp(strides, t->strides, (size_t)t->ndim * sizeof strides[0]) == 0;
}

/* What moves through device memory does so without looking at single elements. */
static dtr_status check_layout(const dtr__ddp_param *p, size_t i, const char *what) {
    const dtr_tensor *grad = atomic_load(&p->grad);
    DTR_REQUIRE(p->value == NULL || is_dense(p->value), NULL, DTR_ERR_UNSUPPORTED,
                "%s '%s' (%zu) is on a CUDA device and its elements have gaps between them; give a "
                "tensor whose elements fill its memory",
                what, p->name, i);
    DTR_REQUIRE(grad == NULL || p->value->numel == 0 ||
                    memcmp(grad->strides, p->value->strides,
                           (size_t)grad->ndim * sizeof grad->strides[0]) == 0,
                NULL, DTR_ERR_UNSUPPORTED,
                "the gradient of parameter '%s' (%zu) is on a CUDA device and has other strides "
                "than its value; give one that lies as the value does, or NULL",
                p->name, i);
    return DTR_OK;
}

dtr_status dtr__ddp_params_check_served(const dtr_ddp *ddp) {
    if (!dtr__ddp_on_device(ddp)) {
        return DTR_OK;
    }
    for (size_t i = 0; i < ddp->n; i++) {
        DTR_TRY(check_layout(&ddp->params[i], i, "parameter"));
    }
    for (size_t k = 0; k < ddp->reducer->buffers.n; k++) {
        DTR_TRY(check_layout(&ddp->reducer->buffers.list[k], k, "buffer"));
    }
    return DTR_OK;
}
