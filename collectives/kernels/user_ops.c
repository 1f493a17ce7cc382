/* Operators of the program. A slot is one word of its handle and how often it is in use, so that
 * using and freeing exclude each other without a lock. */
#include "user_ops.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/float_mode.h"
#include "kernels.h"

enum {
    SERIAL_AT = 8,     /* bits of a handle: slot, and above DTR__EXACT the serial number */
    SERIALS = 1 << 22, /* up to DTR_USER_OP */
    TILE = 8192,       /* bytes that are reduced at a time */
    ALIGNED = 16       /* what the function is given lies so */
};
_Static_assert(DTR_USER_OP == SERIALS << SERIAL_AT, "a handle has room for its number");

typedef struct slot {
    _Atomic uint64_t word; /* handle << 32 | uses; 0: free */
    dtr__user_op is;       /* constant while there is a handle; written under `lock` */
} slot;
static slot slots[DTR__USER_OPS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* who fills and empties slots */
static uint32_t serial;                                  /* of the newest, from 1; lock */

static slot *slot_of(dtr_op op) {
    return &slots[(unsigned)op % DTR__USER_OPS];
}

static uint64_t unused(dtr_op op) {
    return (uint64_t)(unsigned)op << 32;
}

static bool has(uint64_t word, dtr_op op) {
    return word != 0 && word >> 32 == (unsigned)op;
}

/* ---- from creation to end ---- */

bool dtr__user_op_make(const dtr__user_op *facts, dtr_op *op) {
    unsigned i = 0;
    pthread_mutex_lock(&lock);
    while (i < DTR__USER_OPS && atomic_load_explicit(&slots[i].word, memory_order_acquire) != 0) {
        i++;
    }
    if (i < DTR__USER_OPS) {
        slots[i].is = *facts;
        serial = serial % (SERIALS - 1) + 1;
        *op = (dtr_op)(DTR_USER_OP | serial << SERIAL_AT | i);
        atomic_store_explicit(&slots[i].word, unused(*op), memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return i < DTR__USER_OPS;
}

bool dtr__user_op_take(dtr_op op) {
    slot *s = slot_of(op);
    uint64_t word = atomic_load_explicit(&s->word, memory_order_relaxed);
    while (has(word, op)) {
        if (atomic_compare_exchange_weak_explicit(&s->word, &word, word + 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

void dtr__user_op_give(dtr_op op) {
    slot *s = slot_of(op);
    uint64_t word = atomic_load_explicit(&s->word, memory_order_relaxed);
    while (has(word, op) &&
           !atomic_compare_exchange_weak_explicit(&s->word, &word, word - 1, memory_order_release,
                                                  memory_order_relaxed)) {
    }
}

bool dtr__user_op_find(dtr_op op, dtr__user_op *facts) {
    if (!dtr__op_is_user(op) || !dtr__user_op_take(op)) {
        return false;
    }
    *facts = slot_of(op)->is;
    dtr__user_op_give(op);
    return true;
}

bool dtr__user_op_free(dtr_op op) {
    uint64_t word = unused(op);
    return atomic_compare_exchange_strong_explicit(&slot_of(op)->word, &word, 0,
                                                   memory_order_acq_rel, memory_order_relaxed);
}

void dtr__user_ops_free(const dtr_world *world) {
    pthread_mutex_lock(&lock);
    for (slot *s = slots; s < slots + DTR__USER_OPS; s++) {
        if (s->is.world == world) {
            atomic_store_explicit(&s->word, 0, memory_order_release);
        }
    }
    pthread_mutex_unlock(&lock);
}

uint64_t dtr__user_op_agreed(dtr_op op) {
    dtr__user_op is = { 0 };
    (void)dtr__user_op_find(op, &is);
    return (uint64_t)DTR_USER_OP << 32 | (uint64_t)is.commutes << 32 | is.number;
}

bool dtr__user_op_commutes(dtr_op op) {
    dtr__user_op is = { 0 };
    return dtr__user_op_find(op, &is) && is.commutes;
}

/* ---- reducing ---- */

_Thread_local unsigned dtr__user_op_depth;

/* Elements of every source that fit into a tile; their result is there afterwards. */
static void reduce_tile(const dtr__user_op *is, char *result, const void *const *src, int n,
                        size_t at, size_t nbytes, dtr_dtype dtype) {
    _Alignas(64) char copy[TILE];
    memcpy(result, (const char *)src[0] + at, nbytes);
    for (int i = 1; i < n; i++) {
        const void *in = (const char *)src[i] + at;
        if ((uintptr_t)in % ALIGNED != 0) {
            in = memcpy(copy, in, nbytes);
        }
        is->fn(result, in, nbytes / dtr_dtype_size(dtype), dtype, is->arg);
    }
    if (dtype == DTR_F32_INDEX) { /* bytes that are part of no number are 0 in results */
        dtr__copy_clean(result, result, nbytes / dtr_dtype_size(dtype), dtype);
    }
}

void dtr__user_reduce(void *const *dst, int n_dst, const void *const *src, int n, size_t count,
                      dtr_dtype dtype, dtr_op op) {
    _Alignas(64) char result[TILE];
    if (!dtr__user_op_take(op)) {
        return;
    }
    const dtr__user_op is = slot_of(op)->is;
    const size_t nbytes = count * dtr_dtype_size(dtype);
    const dtr__float_mode mode = dtr__float_enter();
    const uint16_t long_mode = dtr__float_enter_long();
    dtr__user_op_depth++;
    dtr__inside("an operator of the program");
    for (size_t at = 0; at < nbytes; at += TILE) {
        const size_t m = nbytes - at < TILE ? nbytes - at : TILE;
        reduce_tile(&is, result, src, n, at, m, dtype);
        for (int j = 0; j < n_dst; j++) {
            memcpy((char *)dst[j] + at, result, m);
        }
    }
    dtr__inside(NULL);
    dtr__user_op_depth--;
    dtr__float_leave_long(long_mode);
    dtr__float_leave(mode);
    dtr__user_op_give(op);
}
