/* Argument checks, all of them, above the backends and in one order: options; enum ranges; root,
 * peer, tag; pointers; devices; dtypes; counts; overlap. One table says what each kind of call is.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "core/check.h"
#include "core/signature.h"
#include "core/team.h"
#include "kernels/operators.h"
#include "kernels/user_ops.h"
#include "memory/device.h"

enum { MAX_TAG = 32767 }; /* what every backend serves */

dtr_status dtr__check_refuse(const dtr__check *k, dtr_status s, const char *file, int line,
                             const char *fmt, ...) {
    const char *kind = k->r->name != NULL
                           ? k->r->name
                           : dtr__kind_name(k->entry[0] != '\0' ? DTR__K_BATCH : k->r->kind);
    dtr__error_context ctx = { k->group->world, kind, k->group->name };
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dtr__error_set(&ctx, s, file, line, "%s on group '%s': %s", kind, k->group->name, text);
}

/* ---- 1: options ---- */

/* Also where the program takes denormal numbers for zero. */
static bool is_zero(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 == 0;
}

static dtr_status check_options(dtr__check *k) {
    const dtr_coll_options *given = k->r->options;
    dtr_coll_options *o = &k->options;
    if (given == NULL) {
        memset(o, 0, sizeof *o);
    } else if (given->struct_size == sizeof *o) {
        *o = *given;
    } else {
        DTR_TRY(dtr__options_copy(given, o, sizeof *o, "dtr_coll_options"));
    }
    if (isnan(o->timeout_s)) {
        REFUSE(k, DTR_ERR_ARG,
               "options.timeout_s is not a number; give seconds, INFINITY for no limit, or 0 or a "
               "negative value for the group's");
    }
    if (k->rule->reduces && k->r->op == DTR_PREMUL_SUM && is_zero(o->premul) &&
        o->premul_device == NULL) {
        REFUSE(k, DTR_ERR_ARG,
               "premul_sum needs a factor in options.premul (a factor of zero goes through "
               "options.premul_device)");
    }
    if (o->flags != 0) {
        REFUSE(k, DTR_ERR_ARG, "options.flags is 0x%x; no flags are defined, give 0",
               (unsigned)o->flags);
    }
    return DTR_OK;
}

/* ---- 2: enum ranges ---- */

static dtr_status check_dtype(const dtr__check *k, const dtr_buffer *b, const char *name) {
    if (dtr_dtype_size(b->dtype) == 0) {
        REFUSE(k, DTR_ERR_DTYPE, "%s%s.dtype is %d, which is no dtr_dtype (0..%d)", k->entry, name,
               (int)b->dtype, DTR__N_DTYPES - 1);
    }
    return DTR_OK;
}

static dtr_status check_device_type(const dtr__check *k, const dtr_buffer *b, const char *name) {
    if (b->device.type != DTR_CPU && b->device.type != DTR_CUDA) {
        REFUSE(k, DTR_ERR_DEVICE, "%s%s.device.type is %d, which is no dtr_device_type", k->entry,
               name, (int)b->device.type);
    }
    return DTR_OK;
}

/* Of numbers that no built-in operator has. */
static dtr_status check_own_op(const dtr__check *k) {
    dtr__user_op is;
    const dtr_op op = k->r->op;
    if (!dtr__op_is_user(op)) {
        REFUSE(k, DTR_ERR_ARG, "op is %d, which is no dtr_op (0..%d)", (int)op, DTR__N_OPS - 1);
    }
    if (!dtr__user_op_find(op, &is)) {
        REFUSE(k, DTR_ERR_ARG,
               "op is 0x%x, an operator that has been freed, or none of dtr_op_create",
               (unsigned)op);
    }
    if (is.world != k->group->world) {
        REFUSE(k, DTR_ERR_ARG, "op is %s of another world; make one for this world",
               dtr__op_name(op));
    }
    return DTR_OK;
}

static dtr_status check_enums(const dtr__check *k) {
    if (k->rule->reduces && (unsigned)k->r->op >= DTR__N_OPS) {
        DTR_TRY(check_own_op(k));
    }
    if (k->in) {
        DTR_TRY(check_dtype(k, &k->r->in, dtr__check_in_name(k)));
    }
    if (k->out) {
        DTR_TRY(check_dtype(k, &k->r->out, "out"));
    }
    if (k->in) {
        DTR_TRY(check_device_type(k, &k->r->in, dtr__check_in_name(k)));
    }
    if (k->out) {
        DTR_TRY(check_device_type(k, &k->r->out, "out"));
    }
    return DTR_OK;
}

/* ---- 3: root, peer, tag ---- */

static dtr_status refuse_peer(const dtr__check *k, int peer) {
    const char *is = dtr__peer_meant(peer);
    REFUSE(k, DTR_ERR_RANK, "%speer is %d; group ranks are 0..%d%s%s%s", k->entry, peer,
           k->group->size - 1, is != NULL ? "; that is " : "", is != NULL ? is : "",
           peer == -1 ? "; dtr_group_rank_of returns -1 for a rank outside of the group" : "");
}

static dtr_status check_peer(const dtr__check *k) {
    int peer = k->r->root, size = k->group->size;
    bool send = k->r->kind == DTR__K_SEND;
    if (peer == DTR_PEER_NONE || (!send && peer == DTR_ANY_SOURCE)) {
        return DTR_OK;
    }
    if (send && peer == DTR_ANY_SOURCE) {
        REFUSE(k, DTR_ERR_RANK, "%speer is DTR_ANY_SOURCE; a send needs one group rank", k->entry);
    }
    if (peer < 0 || peer >= size) {
        return refuse_peer(k, peer);
    }
    if (k->blocking && k->entry[0] == '\0' && peer == k->group->rank) {
        REFUSE(k, DTR_ERR_RANK,
               "peer is %d, this rank itself, and a blocking call would wait for ever%s", peer,
               k->r->name == NULL ? "; ask for a work, or use dtr_batch_p2p" : "");
    }
    return DTR_OK;
}

static dtr_status check_ranks(const dtr__check *k) {
    if (k->rule->rooted && (k->r->root < 0 || k->r->root >= k->group->size)) {
        REFUSE(k, DTR_ERR_RANK, "root is %d; group ranks are 0..%d", k->r->root,
               k->group->size - 1);
    }
    if (k->rule->peer) {
        DTR_TRY(check_peer(k));
        if (k->r->tag < 0 || k->r->tag > MAX_TAG) {
            REFUSE(k, DTR_ERR_ARG, "%stag is %d; tags are 0..%d", k->entry, k->r->tag, MAX_TAG);
        }
    }
    return DTR_OK;
}

/* ---- 4: pointers, and buffers given where none belongs ---- */

static dtr_status check_data(const dtr__check *k, const dtr_buffer *b, const char *name,
                             bool writes) {
    if (b->data == NULL && b->count > 0) {
        REFUSE(k, DTR_ERR_ARG,
               "%s%s.data is NULL and %s%s.count %zu; only an empty buffer may be NULL", k->entry,
               name, k->entry, name, b->count);
    }
    if (writes && b->access == DTR_READ_ONLY && b->count > 0) {
        REFUSE(k, DTR_ERR_ARG, "%s%s.data %p is written, and dtr_cpu_in makes buffers to read only",
               k->entry, name, b->data);
    }
    return DTR_OK;
}

/* gather(v) out and scatter(v) in: only at the root, and there they must be given. */
static dtr_status check_one_sided(const dtr__check *k, dtr__where w, const dtr_buffer *b,
                                  const char *name, const dtr_buffer *other) {
    if (w != AT_ROOT) {
        return DTR_OK;
    }
    if (!k->at_root && b->count != 0) {
        REFUSE(k, DTR_ERR_ARG,
               "%s.count is %zu, but this rank (%d) is not the root (%d); give an empty buffer",
               name, b->count, k->group->rank, k->r->root);
    }
    if (k->at_root && b->count == 0 && other->count != 0) {
        REFUSE(k, DTR_ERR_ARG, "%s is empty, but this rank (%d) is the root and must give it", name,
               k->group->rank);
    }
    return DTR_OK;
}

static dtr_status check_pointers(const dtr__check *k) {
    const dtr__request *r = k->r;
    if (k->in) {
        bool writes = k->rule->one_buffer && (k->rule->peer ? r->kind == DTR__K_RECV : !k->at_root);
        DTR_TRY(check_data(k, &r->in, dtr__check_in_name(k), writes));
    }
    DTR_TRY(check_one_sided(k, k->rule->in, &r->in, "in", &r->out));
    if (k->out) {
        DTR_TRY(check_data(k, &r->out, "out", true));
    }
    DTR_TRY(check_one_sided(k, k->rule->out, &r->out, "out", &r->in));
    if (k->rule->arrays && k->rule->blocks != BOTH_BLOCKS && (!k->rule->rooted || k->at_root) &&
        (k->rule->blocks == IN_BLOCKS ? r->in_counts : r->out_counts) == NULL) {
        REFUSE(k, DTR_ERR_ARG, "counts is NULL; give %d entries, one per rank of the group",
               k->group->size);
    }
    if (r->kind == DTR__K_BATCH && r->n_batch > 0 && r->batch == NULL) {
        REFUSE(k, DTR_ERR_ARG, "ops is NULL and n %zu", r->n_batch);
    }
    return DTR_OK;
}

/* ---- 5: devices ---- */

/* At DTR_DEBUG=detail CUDA is asked where the memory is. */
static dtr_status check_place(const dtr__check *k, const dtr_buffer *b, const char *name) {
    const dtr__device_ops *cuda = dtr__cuda_get()->ops;
    int owner = -1;
    if (b->data == NULL || b->count == 0 || cuda == NULL || !dtr__at_detail(k->group->world)) {
        return DTR_OK;
    }
    int code = cuda->owner(b->data, &owner);
    if (code == 0 && owner >= 0 && owner != b->device.index) {
        REFUSE(k, DTR_ERR_DEVICE, "%s%s.data %p is memory of cuda:%d, and its device is cuda:%d",
               k->entry, name, b->data, owner, b->device.index);
    }
    if (code != 0 || owner < 0) {
        REFUSE(k, DTR_ERR_DEVICE,
               "%s%s.data %p is memory of no device, and its device is cuda:%d; give memory of "
               "dtr_alloc or cudaMalloc",
               k->entry, name, b->data, b->device.index);
    }
    return DTR_OK;
}

static dtr_status check_device(const dtr__check *k, const dtr_buffer *b, const char *name) {
    if (b->device.type == DTR_CPU && b->device.index != 0) {
        REFUSE(k, DTR_ERR_DEVICE, "%s%s.device is cpu:%d; the host is {DTR_CPU, 0}", k->entry, name,
               b->device.index);
    }
    if (b->device.type == DTR_CUDA) {
        int n = dtr_device_count(DTR_CUDA);
        if (b->device.index < 0 || b->device.index >= n) {
            char why[DTR__CUDA_TEXT];
            REFUSE(k, DTR_ERR_DEVICE,
                   "%s%s.device is cuda:%d, but this process sees %d CUDA device%s (%s)", k->entry,
                   name, b->device.index, n, n == 1 ? "" : "s", dtr__cuda_text(why));
        }
        dtr_device own = k->group->device;
        if (k->group->asked.bound && own.type == DTR_CUDA && own.index != b->device.index) {
            REFUSE(k, DTR_ERR_DEVICE,
                   "%s%s.device is cuda:%d, and the group was made for cuda:%d; use a group "
                   "without a device of its own, or one for each device",
                   k->entry, name, b->device.index, own.index);
        }
        if (!k->group->backends.takes_devices) {
            REFUSE(k, DTR_ERR_DEVICE,
                   "%s%s is on cuda:%d, and the group has no backend for CUDA buffers: its "
                   "backends are \"%s\"",
                   k->entry, name, b->device.index,
                   k->group->backends.asked != NULL ? k->group->backends.asked : "");
        }
        return check_place(k, b, name);
    }
    return DTR_OK;
}

static bool on_device(const dtr_buffer *b) {
    return b->device.type == DTR_CUDA;
}

bool dtr__request_on_device(const dtr__request *r) {
    return on_device(&r->in) || on_device(&r->out) ||
           (r->kind == DTR__K_BATCH && r->batch != NULL && r->n_batch > 0 &&
            on_device(&r->batch[0].buf));
}

static dtr_status check_devices(const dtr__check *k) {
    if (k->in) {
        DTR_TRY(check_device(k, &k->r->in, dtr__check_in_name(k)));
    }
    if (k->out) {
        DTR_TRY(check_device(k, &k->r->out, "out"));
    }
    if (k->in && k->out &&
        (k->r->in.device.type != k->r->out.device.type ||
         k->r->in.device.index != k->r->out.device.index)) {
        REFUSE(k, DTR_ERR_DEVICE, "in and out are on different devices");
    }
    return DTR_OK;
}

/* ---- 6: dtypes ---- */

static dtr_status check_dtypes(const dtr__check *k) {
    if (k->in && k->out && k->r->in.dtype != k->r->out.dtype) {
        REFUSE(k, DTR_ERR_DTYPE, "in is %s and out is %s; both must have one dtype",
               dtr_dtype_name(k->r->in.dtype), dtr_dtype_name(k->r->out.dtype));
    }
    if (k->rule->reduces && !dtr_op_supports(k->r->op, dtype_of(k))) {
        REFUSE(k, DTR_ERR_DTYPE, "op %s is not defined for dtype %s", dtr__op_name(k->r->op),
               dtr_dtype_name(dtype_of(k)));
    }
    return DTR_OK;
}

/* ---- 8: overlap ---- */

static bool allowed_overlap(const dtr__check *k, size_t esize) {
    const dtr__request *r = k->r;
    const dtr_buffer *big = k->rule->blocks == IN_BLOCKS ? &r->in : &r->out;
    const dtr_buffer *small = k->rule->blocks == IN_BLOCKS ? &r->out : &r->in;
    const size_t *counts = k->rule->blocks == IN_BLOCKS ? r->in_counts : r->out_counts;
    switch (k->rule->overlap) {
    case SAME_BUFFER:
        return r->in.data == r->out.data;
    case OWN_BLOCK: {
        dtr__blocks b = { k->rule->arrays ? counts : NULL, small->count };
        size_t offset = dtr__block_offset(&b, k->group->rank);
        return (const char *)small->data == (const char *)big->data + offset * esize;
    }
    case NO_OVERLAP:
        break;
    }
    return false;
}

static dtr_status check_overlap(const dtr__check *k) {
    const dtr_buffer *in = &k->r->in, *out = &k->r->out;
    if (!k->in || !k->out || in->count == 0 || out->count == 0) {
        return DTR_OK;
    }
    size_t esize = dtr_dtype_size(in->dtype);
    uintptr_t a = (uintptr_t)in->data, b = (uintptr_t)out->data;
    if (a >= b + out->count * esize || b >= a + in->count * esize || allowed_overlap(k, esize)) {
        return DTR_OK;
    }
    static const char *const legal[] = {
        [NO_OVERLAP] = "they must be separate",
        [SAME_BUFFER] = "they must be separate or the same buffer",
        [OWN_BLOCK] = "they must be separate, or the smaller one this rank's block of the larger",
    };
    REFUSE(k, DTR_ERR_ARG, "in [%p, %zu bytes] and out [%p, %zu bytes] overlap; %s", in->data,
           in->count * esize, out->data, out->count * esize, legal[k->rule->overlap]);
}

static dtr_status check_steps(dtr__check *k) {
    DTR_TRY(check_enums(k));
    DTR_TRY(check_ranks(k));
    k->at_root = k->rule->rooted && k->r->root == k->group->rank;
    DTR_TRY(check_pointers(k));
    DTR_TRY(check_devices(k));
    DTR_TRY(check_dtypes(k));
    DTR_TRY(dtr__check_counts(k));
    return check_overlap(k);
}

/* Whether a buffer counts on this rank; a root out of range is found later and counts as elsewhere.
 */
static bool counts_here(const dtr__check *k, dtr__where w) {
    return w == EVERYWHERE || (w >= AT_ROOT && k->r->root == k->group->rank);
}

static dtr_status check_batch(dtr__check *batch) {
    const dtr__request *r = batch->r;
    for (size_t i = 0; i < r->n_batch; i++) {
        const dtr_p2p *p = &r->batch[i];
        dtr__request one = { .kind = p->is_send ? DTR__K_SEND : DTR__K_RECV,
                             .root = p->peer,
                             .tag = p->tag,
                             .in = p->buf };
        dtr__check k = *batch;
        k.r = &one;
        k.rule = &dtr__rules[one.kind];
        k.in = true;
        snprintf(k.entry, sizeof k.entry, "ops[%zu].", i);
        DTR_TRY(check_steps(&k));
        if (p->buf.device.type != r->batch[0].buf.device.type ||
            p->buf.device.index != r->batch[0].buf.device.index) {
            REFUSE(&k, DTR_ERR_DEVICE, "%sbuf is on another device than ops[0].buf", k.entry);
        }
    }
    return DTR_OK;
}

static void begin(dtr__check *k, const dtr_group *group, const dtr__request *r, bool blocking) {
    k->group = group;
    k->r = r;
    k->rule = &dtr__rules[r->kind];
    k->entry[0] = '\0';
    k->blocking = blocking;
    k->at_root = false;
    k->in = counts_here(k, k->rule->in);
    k->out = counts_here(k, k->rule->out);
}

dtr_status dtr__coll_check_head(const dtr_group *group, const dtr__request *r, bool blocking) {
    dtr__check k;
    begin(&k, group, r, blocking);
    DTR_TRY(check_options(&k));
    DTR_TRY(check_enums(&k));
    return check_ranks(&k);
}

/* ---- the common case ----
 * The steps above find the first fault in order. Where one look shows that there is none, they can
 * be left out; whatever is unusual goes through them. */

static bool plain_buffer(const dtr_buffer *b) {
    return (unsigned)b->dtype < DTR__N_DTYPES && b->device.type == DTR_CPU &&
           b->device.index == 0 && (b->data != NULL || b->count == 0) && b->count <= SIZE_MAX >> 8;
}

static bool plain_counts(const dtr__check *k) {
    size_t in = k->r->in.count, out = k->r->out.count, n = (size_t)k->group->size, product;
    switch (k->rule->blocks) {
    case NO_BLOCKS:
        return in == out;
    case OUT_BLOCKS:
        return !__builtin_mul_overflow(in, n, &product) && out == product;
    case IN_BLOCKS:
        return !__builtin_mul_overflow(out, n, &product) && in == product;
    case BOTH_BLOCKS:
        return in == out && in % n == 0;
    }
    return false;
}

static bool separate_or_same(const dtr_buffer *in, const dtr_buffer *out, const dtr__rule *rule) {
    uintptr_t a = (uintptr_t)in->data, b = (uintptr_t)out->data;
    size_t esize = dtr_dtype_size(in->dtype);
    return a >= b + out->count * esize || b >= a + in->count * esize ||
           (a == b && rule->overlap == SAME_BUFFER);
}

/* A message to or from one other rank. */
static bool plain_message(const dtr__check *k) {
    const dtr__request *r = k->r;
    return (unsigned)r->root < (unsigned)k->group->size && r->root != k->group->rank &&
           r->tag >= 0 && r->tag <= MAX_TAG && plain_buffer(&r->in) &&
           (r->kind == DTR__K_SEND || r->in.access != DTR_READ_ONLY);
}

static bool obviously_fine(const dtr__check *k) {
    const dtr__request *r = k->r;
    const dtr__rule *rule = k->rule;
    if (rule->peer && r->kind != DTR__K_BATCH && r->options == NULL) {
        return plain_message(k);
    }
    if (r->options != NULL || rule->arrays || rule->peer || r->kind == DTR__K_BATCH ||
        (rule->in != EVERYWHERE && rule->in != NOWHERE) ||
        (rule->out != EVERYWHERE && rule->out != NOWHERE)) {
        return false;
    }
    if (rule->rooted && (unsigned)r->root >= (unsigned)k->group->size) {
        return false;
    }
    if (rule->in == EVERYWHERE &&
        (!plain_buffer(&r->in) || (rule->one_buffer && r->in.access == DTR_READ_ONLY))) {
        return false;
    }
    if (rule->out == EVERYWHERE &&
        (!plain_buffer(&r->out) || r->out.access == DTR_READ_ONLY || r->in.dtype != r->out.dtype ||
         !plain_counts(k) || !separate_or_same(&r->in, &r->out, rule))) {
        return false;
    }
    return !rule->reduces || (r->op != DTR_PREMUL_SUM && !dtr__op_is_user(r->op) &&
                              dtr_op_supports(r->op, r->in.dtype));
}

dtr_status dtr__coll_check(const dtr_group *group, const dtr__request *r, bool blocking,
                           dtr__call *c) {
    dtr__check k;
    begin(&k, group, r, blocking);
    if (obviously_fine(&k)) {
        k.options.timeout_s = 0;
        k.options.label = NULL;
    } else {
        DTR_TRY(check_options(&k));
        DTR_TRY(check_steps(&k));
    }
    if (r->kind == DTR__K_BATCH) {
        DTR_TRY(check_batch(&k));
    }
    dtr__coll_describe(&k, c);
    return DTR_OK;
}
