/* Hashes of bytes, and comparing those that ranks have recorded. */
#include "recorder/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- hashing ---- */

enum { LANES = 4 };

static uint64_t stir(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15); /* a bijection of either */
    return h ^ (h >> 29);
}

/* Four lanes, so that multiplications overlap. A difference in one word always shows. */
uint64_t dtr__hash_bytes(const void *data, size_t nbytes) {
    const unsigned char *p = data;
    uint64_t lane[LANES] = { nbytes, 1, 2, 3 }, word[LANES];
    size_t at = 0;
    for (; nbytes - at >= sizeof word; at += sizeof word) {
        memcpy(word, p + at, sizeof word);
        for (int i = 0; i < LANES; i++) {
            lane[i] = stir(lane[i], word[i]);
        }
    }
    if (at < nbytes) {
        memset(word, 0, sizeof word);
        memcpy(word, p + at, nbytes - at);
        for (int i = 0; i < LANES; i++) {
            lane[i] = stir(lane[i], word[i]);
        }
    }
    uint64_t h = 0;
    for (int i = 0; i < LANES; i++) {
        h = stir(h, lane[i]);
    }
    return h != 0 ? h : 1;
}

/* ---- comparing ---- */

static bool is_alike_kind(const dtr__recording *r, const dtr__record *rec) {
    static const char *const kinds[] = { "allreduce", "broadcast", "allgather", "allgatherv" };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(r->head.kind[rec->kind], kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The next one from *at on whose output is known, of that group and at least number `seq`. */
static const dtr__record *next_hashed(const dtr__recording *r, uint32_t group, uint64_t seq,
                                      size_t *at) {
    for (; *at < r->n_records; ++*at) {
        const dtr__record *rec = &r->records[*at];
        if (rec->group == group && rec->seq >= seq && rec->hash_out != 0 &&
            dtr__record_collective(r, rec) && rec->state == DTR__REC_FINISHED &&
            is_alike_kind(r, rec)) {
            return rec;
        }
    }
    return NULL;
}

static uint32_t id_in(const dtr__recording *r, uint64_t uid) {
    const dtr__rec_group *g = r != NULL ? dtr__recording_group_uid(r, uid) : NULL;
    return g != NULL ? atomic_load(&g->id) : 0;
}

/* Oldest common operation whose outputs differ; numbers grow along both recordings. */
static bool first_pair(const dtr__recording *a, const dtr__recording *b, uint64_t uid,
                       const dtr__record **x, const dtr__record **y) {
    uint32_t of_a = id_in(a, uid), of_b = id_in(b, uid);
    size_t i = 0, k = 0;
    if (of_a == 0 || of_b == 0) {
        return false;
    }
    *x = next_hashed(a, of_a, 1, &i);
    *y = next_hashed(b, of_b, 1, &k);
    while (*x != NULL && *y != NULL) {
        if ((*x)->seq == (*y)->seq && (*x)->fingerprint == (*y)->fingerprint &&
            (*x)->hash_out != (*y)->hash_out) {
            return true;
        }
        uint64_t seq = (*x)->seq == (*y)->seq  ? (*x)->seq + 1
                       : (*x)->seq > (*y)->seq ? (*x)->seq
                                               : (*y)->seq;
        *x = next_hashed(a, of_a, seq, &i);
        *y = next_hashed(b, of_b, seq, &k);
    }
    return false;
}

/* What the member has as output of operation `seq`; 0: not known. */
static uint64_t hash_of(const dtr__recording *r, uint64_t uid, uint64_t seq) {
    uint32_t id = id_in(r, uid);
    size_t at = 0;
    const dtr__record *rec = id != 0 ? next_hashed(r, id, seq, &at) : NULL;
    return rec != NULL && rec->seq == seq ? rec->hash_out : 0;
}

/* The one that most have; of several the first. */
static uint64_t majority(const uint64_t *hash, int n) {
    uint64_t most = 0;
    int best = 0;
    for (int i = 0; i < n; i++) {
        int votes = 0;
        for (int k = 0; k < n && hash[i] != 0; k++) {
            votes += hash[k] == hash[i];
        }
        if (votes > best) {
            best = votes;
            most = hash[i];
        }
    }
    return most;
}

const char *dtr__hash_difference(const dtr__recording *const *rec, int n, uint64_t group_uid,
                                 char *text, size_t cap) {
    const dtr__record *first = NULL, *x, *y;
    const dtr__recording *of = NULL;
    char title[256];
    text[0] = '\0';
    int base = 0;
    while (base < n && id_in(rec[base], group_uid) == 0) {
        base++;
    }
    for (int i = base + 1; i < n; i++) {
        if (first_pair(rec[base], rec[i], group_uid, &x, &y) &&
            (first == NULL || x->seq < first->seq)) {
            first = x;
            of = rec[base];
        }
    }
    if (first == NULL) {
        return text;
    }
    uint64_t *hash = calloc((size_t)n, sizeof *hash);
    if (hash == NULL) {
        return text;
    }
    for (int i = 0; i < n; i++) {
        hash[i] = hash_of(rec[i], group_uid, first->seq);
    }
    const uint64_t most = majority(hash, n);
    int at = snprintf(text, cap,
                      "the outputs of %s, called at %s, differ between ranks: most have "
                      "hash %016" PRIx64 ", but",
                      dtr__recording_title(of, first, title, sizeof title), first->site, most);
    for (int i = 0, named = 0; i < n && at > 0 && (size_t)at < cap; i++) {
        if (hash[i] != 0 && hash[i] != most) {
            at += snprintf(text + at, cap - (size_t)at, "%s rank %d has %016" PRIx64,
                           named++ > 0 ? "," : "", rec[i]->head.world_rank, hash[i]);
        }
    }
    free(hash);
    return text;
}
