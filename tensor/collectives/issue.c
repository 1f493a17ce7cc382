/* From a collective on tensors to one on buffers: the checks that need tensors, packed memory for
 * strided ones, and the step that unpacks it before the work counts as complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/issue.h"
#include "core/call_site.h"
#include "core/team.h"
#include "tensor_coll.h"

enum { PACK_ALIGN = 64, NAME = 48 };

dtr_status dtr__tensor_refuse(const dtr__tensor_call *c, dtr_status s, const char *file, int line,
                              const char *fmt, ...) {
    dtr__error_context ctx = { c->group->world, c->entry, c->group->name };
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return dtr__error_set(&ctx, s, file, line, "%s on group '%s': %s", c->entry, c->group->name,
                          text);
}

static const char *part_name(const dtr__side *s, size_t i, char text[NAME]) {
    if (!s->list) {
        return s->name;
    }
    snprintf(text, NAME, "%s[%zu]", s->name, i);
    return text;
}

static size_t side_numel(const dtr__side *s) {
    size_t sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += s->part[i]->numel;
    }
    return sum;
}

/* ---- checks, in the order of dtr/coll.h ---- */

dtr_status dtr__tensor_check_pointers(const dtr__tensor_call *c, dtr__side *s) {
    char name[NAME];
    bool elsewhere = s->at_root && c->r.root != c->group->rank;
    if (elsewhere) {
        bool given = s->list ? s->part != NULL : dtr_tensor_numel(s->part[0]) != 0;
        DTR_REFUSE_IF(given, c, DTR_ERR_ARG,
                      "%s is given, but this rank (%d) is not the root (%d); give NULL", s->name,
                      c->group->rank, c->r.root);
        s->n = 0;
        return DTR_OK;
    }
    DTR_REFUSE_IF(s->part == NULL, c, DTR_ERR_ARG, "%s is NULL; give a list of %zu tensors",
                  s->name, s->n);
    for (size_t i = 0; i < s->n; i++) {
        DTR_TRY(dtr__tensor_check(s->part[i], part_name(s, i, name)));
    }
    return DTR_OK;
}

/* The root must give something where the others have something. */
static dtr_status check_root_side(const dtr__tensor_call *c, const dtr__side *s,
                                  const dtr__side *other) {
    DTR_REFUSE_IF(s->at_root && !s->list && s->n > 0 && s->part[0]->numel == 0 &&
                      side_numel(other) > 0,
                  c, DTR_ERR_ARG, "%s is empty, but this rank (%d) is the root and must give it",
                  s->name, c->group->rank);
    return DTR_OK;
}

/* The tensor that all others are compared with. */
static const dtr_tensor *first_part(const dtr__tensor_call *c) {
    return c->in.n > 0 ? c->in.part[0] : c->out.part[0];
}

static dtr_status check_devices(const dtr__tensor_call *c, const dtr__side *s) {
    char name[NAME];
    const dtr_tensor *first = first_part(c);
    for (size_t i = 0; i < s->n; i++) {
        const dtr_tensor *t = s->part[i];
        DTR_REFUSE_IF(t->device.type != first->device.type ||
                          t->device.index != first->device.index,
                      c, DTR_ERR_DEVICE, "%s is on another device than the other tensors",
                      part_name(s, i, name));
    }
    return DTR_OK;
}

static dtr_status check_layout(const dtr__tensor_call *c, const dtr__side *s, bool written) {
    char name[NAME];
    for (size_t i = 0; i < s->n; i++) {
        const dtr_tensor *t = s->part[i];
        DTR_REFUSE_IF(t->device.type != DTR_CPU && !t->contiguous, c, DTR_ERR_LAYOUT,
                      "%s is on a device and not contiguous; only host tensors are packed",
                      part_name(s, i, name));
        if (written) {
            DTR_TRY(dtr__tensor_check_writable(t, part_name(s, i, name)));
        }
    }
    return DTR_OK;
}

static dtr_status check_dtypes(const dtr__tensor_call *c, const dtr__side *s) {
    char name[NAME];
    const dtr_tensor *first = first_part(c);
    for (size_t i = 0; i < s->n; i++) {
        DTR_REFUSE_IF(s->part[i]->dtype != first->dtype, c, DTR_ERR_DTYPE,
                      "%s is %s, but the call's first tensor is %s", part_name(s, i, name),
                      dtr_dtype_name(s->part[i]->dtype), dtr_dtype_name(first->dtype));
    }
    return DTR_OK;
}

typedef struct extent {
    uintptr_t lo, hi;
    bool dense;
    size_t index;
} extent;

static int by_address(const void *a, const void *b) {
    const extent *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Tensors of one list that are filled must not share memory. Strided ones may lie between each
 * other's elements; of those only equal addresses are refused. */
static dtr_status check_list_overlap(const dtr__tensor_call *c, const dtr__side *s) {
    if (!s->list || s->n < 2) {
        return DTR_OK;
    }
    extent *e = malloc(s->n * sizeof(e[0]));
    size_t n = 0, bad = SIZE_MAX, with = 0, last = SIZE_MAX;
    DTR_REFUSE_IF(e == NULL, c, DTR_ERR_NOMEM, "out of memory for a list of %zu tensors", s->n);
    for (size_t i = 0; i < s->n; i++) {
        ptrdiff_t lo, hi;
        const dtr_tensor *t = s->part[i];
        dtr__tensor_span(t, &lo, &hi);
        if (lo != hi) {
            uintptr_t at = (uintptr_t)t->data;
            e[n++] = (extent){ at + (uintptr_t)lo, at + (uintptr_t)hi, t->contiguous, i };
        }
    }
    qsort(e, n, sizeof(e[0]), by_address);
    for (size_t i = 0; i < n && bad == SIZE_MAX; i++) {
        bool same = i > 0 && e[i].lo == e[i - 1].lo;
        if (same || (e[i].dense && last != SIZE_MAX && e[i].lo < e[last].hi)) {
            bad = e[i].index;
            with = e[same ? i - 1 : last].index;
        }
        if (e[i].dense && (last == SIZE_MAX || e[i].hi > e[last].hi)) {
            last = i;
        }
    }
    free(e);
    return bad == SIZE_MAX
               ? DTR_OK
               : DTR_REFUSE(c, DTR_ERR_ARG, "%s[%zu] and %s[%zu] overlap in memory", s->name,
                            with < bad ? with : bad, s->name, with < bad ? bad : with);
}

dtr_status dtr__tensor_check_side(const dtr__tensor_call *c, const dtr__side *s, bool written) {
    DTR_TRY(check_devices(c, s));
    DTR_TRY(check_layout(c, s, written));
    return written ? check_list_overlap(c, s) : DTR_OK;
}

static dtr_status check_bytes(const dtr__tensor_call *c, const dtr__side *s) {
    size_t sum = 0, nbytes = 0;
    for (size_t i = 0; i < s->n; i++) {
        DTR_REFUSE_IF(__builtin_add_overflow(sum, s->part[i]->numel, &sum) ||
                          __builtin_mul_overflow(sum, dtr_dtype_size(s->part[i]->dtype), &nbytes) ||
                          nbytes > PTRDIFF_MAX,
                      c, DTR_ERR_OVERFLOW, "%s have more elements than memory can hold", s->name);
    }
    return DTR_OK;
}

static dtr_status check_tensors(dtr__tensor_call *c) {
    bool single = c->out.name == NULL;
    const dtr__side *target = single ? &c->in : &c->out;
    bool written = single ? c->writes : true;
    DTR_TRY(dtr__tensor_check_pointers(c, &c->in));
    if (!single) {
        DTR_TRY(dtr__tensor_check_pointers(c, &c->out));
        DTR_TRY(check_root_side(c, &c->in, &c->out));
        DTR_TRY(check_root_side(c, &c->out, &c->in));
    }
    DTR_TRY(check_devices(c, &c->in));
    DTR_TRY(check_devices(c, &c->out));
    if (!single) {
        DTR_TRY(check_layout(c, &c->in, false));
    }
    DTR_TRY(check_layout(c, target, written));
    DTR_TRY(check_dtypes(c, &c->in));
    DTR_TRY(check_dtypes(c, &c->out));
    DTR_REFUSE_IF(dtr__kind_reduces(c->r.kind) && !dtr_op_supports(c->r.op, first_part(c)->dtype),
                  c, DTR_ERR_DTYPE, "op %s is not defined for dtype %s", dtr__op_name(c->r.op),
                  dtr_dtype_name(first_part(c)->dtype));
    DTR_TRY(check_bytes(c, &c->in));
    DTR_TRY(check_bytes(c, &c->out));
    if (c->shapes != NULL) {
        DTR_TRY(c->shapes(c));
    }
    return written ? check_list_overlap(c, target) : DTR_OK;
}

/* ---- packing ---- */

/* What is left to do when the operation ends. */
typedef struct packed {
    dtr__finish step;
    void *in, *out;    /* packed memory, NULL: none */
    size_t n;          /* tensors to fill from `out` */
    dtr_tensor part[]; /* stand-ins: where their elements are */
} packed;

static void free_packed(packed *p) {
    if (p != NULL) {
        free(p->in);
        free(p->out);
        free(p);
    }
}

static dtr_status unpack(dtr__finish *step, dtr_status status) {
    packed *p = (packed *)((char *)step - offsetof(packed, step));
    const char *from = p->out;
    for (size_t i = 0; i < p->n && status >= 0; i++) {
        dtr__tensor_unpack(&p->part[i], from);
        from += p->part[i].numel * dtr_dtype_size(p->part[i].dtype);
    }
    free_packed(p);
    return DTR_OK;
}

/* Whether the parts already are one row-major run of memory; *data is where it begins. */
static bool in_place(const dtr__side *s, void **data) {
    char *expect = NULL;
    *data = NULL;
    for (size_t i = 0; i < s->n; i++) {
        const dtr_tensor *t = s->part[i];
        if (t->numel == 0) {
            continue;
        }
        if (!t->contiguous || (expect != NULL && t->data != expect)) {
            return false;
        }
        *data = *data == NULL ? t->data : *data;
        expect = t->data + t->numel * dtr_dtype_size(t->dtype);
    }
    return true;
}

static void *pack_alloc(size_t nbytes) {
    return aligned_alloc(PACK_ALIGN, nbytes + (-nbytes & (PACK_ALIGN - 1)));
}

/* The raw buffer of a side: its own memory, or packed memory left in *temp. */
static bool open_side(const dtr__side *s, bool reads, dtr_buffer *b, void **temp) {
    if (in_place(s, &b->data)) {
        return true;
    }
    *temp = pack_alloc(b->count * dtr_dtype_size(b->dtype));
    b->data = *temp;
    char *to = *temp;
    for (size_t i = 0; to != NULL && reads && i < s->n; i++) {
        dtr__tensor_pack(to, s->part[i]);
        to += s->part[i]->numel * dtr_dtype_size(s->part[i]->dtype);
    }
    return to != NULL;
}

static dtr_status out_of_memory(const dtr__tensor_call *c) {
    return DTR_REFUSE(c, DTR_ERR_NOMEM,
                      "out of memory for packing %zu elements in and %zu out; contiguous tensors "
                      "need no packing",
                      c->r.in.count, c->r.out.count);
}

/* Set the raw buffers; *step becomes NULL when nothing has to be packed. */
static dtr_status pack(dtr__tensor_call *c, packed **step) {
    bool single = c->out.name == NULL;
    *step = NULL;
    if (in_place(&c->in, &c->r.in.data) && in_place(&c->out, &c->r.out.data)) {
        return DTR_OK;
    }
    const dtr__side *target = single ? &c->in : &c->out;
    packed *p = calloc(1, sizeof(*p) + target->n * sizeof(p->part[0]));
    if (p == NULL) {
        return out_of_memory(c);
    }
    void *temp = NULL;
    bool ok = single ? open_side(&c->in, c->reads, &c->r.in, &temp)
                     : open_side(&c->in, true, &c->r.in, &p->in) &&
                           open_side(&c->out, false, &c->r.out, &temp);
    p->out = temp;
    if (!ok) {
        free_packed(p);
        return out_of_memory(c);
    }
    for (size_t i = 0; temp != NULL && (c->writes || !single) && i < target->n; i++) {
        dtr__tensor_shallow_copy(&p->part[p->n++], target->part[i]);
    }
    p->step.fn = unpack;
    *step = p;
    return DTR_OK;
}

/* ---- issue ---- */

static dtr_buffer side_buffer(const dtr__tensor_call *c, const dtr__side *s) {
    const dtr_tensor *first = first_part(c);
    return (dtr_buffer){ NULL, side_numel(s), first->dtype, first->device };
}

size_t dtr__tensor_touched(const dtr__side *s, bool writes, dtr__touch *touch) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        ptrdiff_t lo, hi;
        size_t size = dtr_dtype_size(s->part[i]->dtype);
        dtr__tensor_span(s->part[i], &lo, &hi);
        if (lo != hi) {
            bool dense = s->part[i]->contiguous;
            const char *first = s->part[i]->data + lo, *last = s->part[i]->data + hi - size;
            touch[n++] = (dtr__touch){ first, dense ? (size_t)(hi - lo) : size, writes };
            touch[n++] = (dtr__touch){ last, size, writes };
        }
    }
    return n;
}

static dtr_status note_touched(dtr__tensor_call *c, const packed *p, dtr__touch **list) {
    *list = NULL;
    if (p == NULL || atomic_load_explicit(&c->group->calls.scope, memory_order_acquire) == NULL) {
        return DTR_OK;
    }
    bool single = c->out.name == NULL;
    dtr__touch *touch = malloc(2 * (c->in.n + c->out.n) * sizeof(touch[0]));
    if (touch == NULL) {
        return out_of_memory(c);
    }
    if (p->in != NULL || (single && p->out != NULL)) {
        /* A broadcast counts as writing on every rank, so that all ranks refuse alike. */
        bool writes = single && (c->writes || c->r.kind == DTR__K_BROADCAST);
        c->r.n_touched = dtr__tensor_touched(&c->in, writes, touch);
    }
    if (!single && p->out != NULL) {
        c->r.n_touched += dtr__tensor_touched(&c->out, true, touch + c->r.n_touched);
    }
    c->r.touched = *list = touch;
    return DTR_OK;
}

/* Pointers checked, this hands the call to the engine. */
static dtr_status issue(dtr__tensor_call *c, dtr_work **work) {
    bool single = c->out.name == NULL;
    packed *p = NULL;
    dtr__touch *touched = NULL;
    c->r.in = side_buffer(c, &c->in);
    c->r.out = side_buffer(c, &c->out);
    if (dtr__kind_is_p2p(c->r.kind) && c->r.root == DTR_PEER_NONE) {
        c->r.in.data = first_part(c)->data; /* nobody reads or writes it, so nothing is packed */
        c->handed_over = true;
        return dtr__coll_issue(c->group, &c->r, work);
    }
    DTR_TRY(pack(c, &p));
    if (single && c->r.kind != DTR__K_BROADCAST && !dtr__kind_is_p2p(c->r.kind)) {
        c->r.out = c->r.in; /* reduce, allreduce: in place */
    }
    c->r.finish = p != NULL ? &p->step : NULL;
    dtr_status s = note_touched(c, p, &touched);
    if (s == DTR_OK) {
        c->handed_over = true;
        s = dtr__coll_issue(c->group, &c->r, work);
    }
    free(touched);
    if (s < 0 && p != NULL && !p->step.taken) {
        free_packed(p);
    }
    return s;
}

dtr_status dtr__tensor_check_head(dtr__tensor_call *c, bool blocking) {
    /* Any legal type and device: those of tensors are. */
    dtr_buffer legal = { NULL, 0, DTR_U8, { DTR_CPU, 0 } };
    c->r.in = legal;
    c->r.out = legal;
    return dtr__coll_check_head(c->group, &c->r, blocking);
}

static dtr_status check_and_issue(dtr__tensor_call *c, dtr_work **work) {
    bool in_scope = atomic_load_explicit(&c->group->calls.scope, memory_order_acquire) != NULL;
    DTR_TRY(dtr__tensor_check_head(c, work == NULL && !in_scope));
    DTR_TRY(check_tensors(c));
    return issue(c, work);
}

dtr_status dtr__tensor_begin(dtr_group *group, const char *entry, dtr_work **work) {
    dtr_status s = dtr__group_check(group, entry);
    if (s == DTR_NOT_MEMBER && work != NULL) {
        *work = NULL;
    }
    return s == DTR_OK ? dtr_group_status(group) : s;
}

static dtr_status tensor_coll(dtr__tensor_call *c, dtr_work **work) {
    dtr_status s = dtr__tensor_begin(c->group, c->entry, work);
    if (s == DTR_OK) {
        s = dtr__scope_look(c->group, c->entry);
    }
    if (s != DTR_OK) {
        dtr__call_site_drop();
        return s;
    }
    size_t counts[64];
    bool small = c->group->size <= 32;
    c->counts = small ? counts : malloc(2 * (size_t)c->group->size * sizeof(counts[0]));
    s = c->counts == NULL ? DTR_REFUSE(c, DTR_ERR_NOMEM, "out of memory for the counts")
                          : check_and_issue(c, work);
    if (!small) {
        free(c->counts);
    }
    if (s < 0 && !c->handed_over) {
        dtr__call_site_drop();
        s = dtr__scope_fail(c->group, s, c->r.kind);
    }
    return s;
}

dtr_status dtr__tensor_coll(dtr__tensor_call *c, dtr_work **work) {
    return DTR_TRACED(dtr__group_trace(c->group), c->entry, c->group->name, tensor_coll(c, work));
}
