/* Counting operations. Each function is one or two atomic additions. */
#include "recorder/counters.h"

static void count(_Atomic uint64_t *what, uint64_t by) {
    atomic_fetch_add_explicit(what, by, memory_order_relaxed);
}

static void count_status(_Atomic uint64_t *table, dtr_status s) {
    if (s < 0 && -(int)s < DTR__COUNTED_STATUSES) {
        count(&table[-(int)s], 1);
    }
}

void dtr__count_issued(const dtr_world *world, const dtr__record *r) {
    dtr__counters *c = world->recording.counters;
    /* A scope or batch counts as one operation, and its parts say how many bytes. */
    bool part = (r->flags & DTR__REC_MEMBER) != 0;
    if (c != NULL && r->kind < DTR__RECORDING_KINDS) {
        count(&c->kind[r->kind].issued, part ? 0 : 1);
        count(&c->kind[r->kind].nbytes, r->nbytes);
    }
}

void dtr__count_ended(const dtr_world *world, unsigned kind, int64_t ns) {
    dtr__counters *c = world->recording.counters;
    if (c != NULL && kind < DTR__RECORDING_KINDS) {
        count(&c->kind[kind].ended, 1);
        count(&c->kind[kind].ns, ns > 0 ? (uint64_t)ns : 0);
    }
}

void dtr__count_failed(const dtr_world *world, dtr_status s) {
    dtr__counters *c = world->recording.counters;
    if (c != NULL) {
        count_status(c->failed, s);
    }
}

void dtr__count_broken(const dtr_world *world, dtr_status s) {
    dtr__counters *c = world->recording.counters;
    if (c != NULL) {
        count_status(c->broken, s);
    }
}

void dtr__count_waited(const dtr_world *world, int64_t ns) {
    dtr__counters *c = world->recording.counters;
    if (c != NULL) {
        count(&c->waits, 1);
        count(&c->wait_ns, ns > 0 ? (uint64_t)ns : 0);
    }
}

void dtr__count_add(const dtr_world *world, const dtr__counter *which, double value) {
    dtr__counters *c = world->recording.counters;
    if (c == NULL) {
        return;
    }
    pthread_mutex_lock(&c->lock);
    int i = 0;
    while (i < c->n_added && c->added[i].of != which) {
        i++;
    }
    if (i < DTR__COUNTERS_MOST) {
        c->n_added = i == c->n_added ? i + 1 : c->n_added;
        c->added[i].of = which;
        c->added[i].value += value;
    }
    pthread_mutex_unlock(&c->lock);
}
