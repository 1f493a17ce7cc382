/* What the entries of all ranks come to: agreement, or the first reason against it. No
 * communication and no state, so it can be tested without MPI. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/agree.h"

static const char *const field_names[DTR__FIELD_COUNT] = {
    [DTR__FIELD_CALL] = "the call",
    [DTR__FIELD_LIST] = "the rank list",
    [DTR__FIELD_NAME] = "name",
    [DTR__FIELD_TAG] = "tag",
    [DTR__FIELD_BACKEND] = "backend",
    [DTR__FIELD_LOCAL_SYNC] = "local_sync",
    [DTR__FIELD_DETERMINISTIC] = "deterministic",
    [DTR__FIELD_REPRODUCIBLE] = "reproducible",
};

/* ---- fields ---- */

uint64_t dtr__hash(const void *data, size_t nbytes) {
    const unsigned char *p = data;
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < nbytes; i++) {
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    }
    h ^= h >> 32; /* spread the last bytes over the word */
    return h * UINT64_C(0x9e3779b97f4a7c15);
}

uint64_t dtr__hash_set(const int *ranks, int n) {
    uint64_t sum = 0, mix = 0;
    for (int i = 0; i < n; i++) {
        uint64_t h = dtr__hash(&ranks[i], sizeof(ranks[i]));
        sum += h;
        mix ^= h * (h | 1);
    }
    uint64_t all[3] = { sum, mix, (uint64_t)n };
    return dtr__hash(all, sizeof(all));
}

static void field_cut(dtr__field *f, const char *text) {
    size_t n = strlen(text), cap = sizeof(f->text);
    memcpy(f->text, text, n < cap ? n + 1 : cap - 4);
    if (n >= cap) {
        memcpy(f->text + cap - 4, "...", 4);
    }
}

void dtr__field_set(dtr__field *f, const char *text) {
    memset(f, 0, sizeof(*f));
    f->length = strlen(text);
    f->hash = dtr__hash(text, f->length);
    field_cut(f, text);
}

/* ---- text ---- */

static void append(char *text, size_t cap, const char *fmt, ...) DTR_PRINTF(3, 4);
static void append(char *text, size_t cap, const char *fmt, ...) {
    size_t at = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + at, cap - at, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized)
    va_end(args);
}

void dtr__append_ranks(char *text, size_t cap, const dtr__some_ranks *some) {
    append(text, cap, some->n == 1 ? "rank " : "ranks ");
    for (int i = 0; i < some->n && i < DTR__RANKS_SHOWN; i++) {
        append(text, cap, "%s%d", i > 0 ? ", " : "", some->rank[i]);
    }
    if (some->n > DTR__RANKS_SHOWN) {
        append(text, cap, " and %d more", some->n - DTR__RANKS_SHOWN);
    }
}

/* ---- places: positions in an order, those that are alike one after the other ---- */

static int by_place(const void *x, const void *y) {
    const dtr__sort_key *p = x, *q = y;
    if (p->a != q->a) {
        return p->a < q->a ? -1 : 1;
    }
    if (p->b != q->b) {
        return p->b < q->b ? -1 : 1;
    }
    return (p->at > q->at) - (p->at < q->at);
}

static void sort_by_value(dtr__sort_key *place, const dtr__entry *const *entry, int n,
                          dtr__field_id f) {
    for (int i = 0; i < n; i++) {
        const dtr__field *v = &entry[i]->field[f];
        place[i] = (dtr__sort_key){ .a = v->hash, .b = v->length, .at = i };
    }
    qsort(place, (size_t)n, sizeof *place, by_place);
}

dtr__sort_key dtr__agreement_place(int index, int64_t key, int i) {
    return (dtr__sort_key){ .a = (uint64_t)((int64_t)index + 1),
                            .b = (uint64_t)key ^ (UINT64_C(1) << 63), /* below 0 first */
                            .at = i };
}

int dtr__agreement_group_end(const dtr__sort_key *place, int n, int begin) {
    int end = begin + 1;
    while (end < n && place[end].a == place[begin].a) {
        end++;
    }
    return end;
}

static int value_end(const dtr__sort_key *place, int n, int begin) {
    int end = begin + 1;
    while (end < n && place[end].a == place[begin].a && place[end].b == place[begin].b) {
        end++;
    }
    return end;
}

/* ---- agreement ---- */

static bool same_field(const dtr__field *a, const dtr__field *b) {
    return a->hash == b->hash && a->length == b->length;
}

static bool field_agrees(const dtr__entry *const *entry, int n, dtr__field_id f) {
    for (int i = 1; i < n; i++) {
        if (!same_field(&entry[0]->field[f], &entry[i]->field[f])) {
            return false;
        }
    }
    return true;
}

typedef struct value {
    int begin, count; /* places of those who gave it */
    int first;        /* position */
} value;

/* Of the values behind `last` the one that most ranks gave, of equal ones the first. */
static value next_value(const dtr__sort_key *place, int n, value last) {
    value best = { .count = 0 };
    for (int begin = 0, end; begin < n; begin = end) {
        end = value_end(place, n, begin);
        const value v = { begin, end - begin, place[begin].at };
        const bool behind = v.count < last.count || (v.count == last.count && v.first > last.first);
        if (behind && (v.count > best.count || (v.count == best.count && v.first < best.first))) {
            best = v;
        }
    }
    return best;
}

/* The value most ranks gave, and then the values of the others, each with its ranks, as far as the
 * text has room. */
static void describe_field(char *text, const int *ranks, const dtr__entry *const *entry, int n,
                           dtr__field_id f, dtr__sort_key *place) {
    sort_by_value(place, entry, n, f);
    append(text, DTR__AGREEMENT_TEXT, " %s: ", field_names[f]);
    value v = { .count = n + 1 };
    for (int left = n; left > 0 && strlen(text) < DTR__AGREEMENT_TEXT - 1; left -= v.count) {
        v = next_value(place, n, v);
        dtr__some_ranks some = { 0 };
        for (int i = v.begin; i < v.begin + v.count; i++) {
            dtr__some_ranks_add(&some, ranks[place[i].at]);
        }
        const char *is = entry[v.first]->field[f].text;
        append(text, DTR__AGREEMENT_TEXT, "%s%s on ", left == n ? "" : ", but ",
               is[0] != '\0' ? is : "none");
        dtr__append_ranks(text, DTR__AGREEMENT_TEXT, &some);
    }
}

static bool decide_mismatch(const char *what, const int *ranks, const dtr__entry *const *entry,
                            int n, dtr__sort_key *place, char *text) {
    int differing = 0;
    for (int f = 0; f < DTR__FIELD_COUNT; f++) {
        if (field_agrees(entry, n, (dtr__field_id)f)) {
            continue;
        }
        if (differing++ == 0) {
            snprintf(text, DTR__AGREEMENT_TEXT, "%s: the ranks ask for different things;", what);
        } else {
            append(text, DTR__AGREEMENT_TEXT, ";");
        }
        describe_field(text, ranks, entry, n, (dtr__field_id)f, place);
        if (f == DTR__FIELD_CALL) {
            break; /* the rest of two different calls cannot be compared */
        }
    }
    return differing > 0;
}

/* The lowest position of a group. */
static int first_of(const dtr__sort_key *place, int begin, int end) {
    int first = place[begin].at;
    for (int k = begin + 1; k < end; k++) {
        first = place[k].at < first ? place[k].at : first;
    }
    return first;
}

/* A tagged group must be there on all of its members or on none. */
static bool decide_tags(const char *what, const int *ranks, const dtr__entry *const *entry, int n,
                        const dtr__sort_key *place, char *text) {
    int i = n, j = n; /* the first that differs from the first of its group */
    for (int begin = 0, end; begin < n; begin = end) {
        end = dtr__agreement_group_end(place, n, begin);
        const int first = first_of(place, begin, end);
        for (int k = begin; k < end && place[begin].a != DTR__NO_GROUP; k++) {
            if (entry[place[k].at]->found != entry[first]->found && place[k].at < i) {
                i = place[k].at;
                j = first;
            }
        }
    }
    if (i == n) {
        return false;
    }
    int with = entry[i]->found != 0 ? i : j, without = with == i ? j : i;
    snprintf(text, DTR__AGREEMENT_TEXT,
             "%s: the group with tag \"%s\" is live on rank %d but not, or another one, "
             "on rank %d; destroy it on all members alike",
             what, entry[i]->field[DTR__FIELD_TAG].text, ranks[with], ranks[without]);
    return true;
}

static bool decide_names(const char *what, const int *ranks, const dtr__entry *const *entry, int n,
                         char *text) {
    dtr__some_ranks in = { 0 };
    for (int i = 0; i < n; i++) {
        if (entry[i]->name_live != 0) {
            dtr__some_ranks_add(&in, ranks[i]);
        }
    }
    if (in.n > 0) {
        snprintf(text, DTR__AGREEMENT_TEXT, "%s: a group of that name is live on ", what);
        dtr__append_ranks(text, DTR__AGREEMENT_TEXT, &in);
        append(text, DTR__AGREEMENT_TEXT, "; destroy it first or choose another name");
    }
    return in.n > 0;
}

/* A rank that brought a failure keeps it; the others get the first one. */
static bool decide_failures(const char *what, const int *ranks, const dtr__entry *const *entry,
                            int n, dtr__answer *answer, char *text) {
    int first = -1;
    for (int i = n - 1; i >= 0; i--) {
        first = entry[i]->status < 0 ? i : first;
    }
    if (first < 0) {
        return false;
    }
    bool end = entry[first]->end != 0;
    dtr_status s = (dtr_status)entry[first]->status;
    snprintf(text, DTR__AGREEMENT_TEXT, "%s: rank %d failed with %s: %s", what, ranks[first],
             dtr_status_name(s), entry[first]->text);
    for (int i = 0; i < n; i++) {
        /* Works that did not end in time are TIMEOUT on all ranks. */
        /* So is what no backend can serve: all asked for the same. */
        bool shared = s == DTR_ERR_UNSUPPORTED || (end && s == DTR_ERR_TIMEOUT);
        dtr_status others = shared ? s : DTR_ERR_REMOTE;
        answer[i].status = entry[i]->status < 0 ? (dtr_status)entry[i]->status : others;
    }
    return true;
}

/* ---- the groups that come out of it ---- */

static void assign(const dtr__entry *const *entry, int n, const dtr__sort_key *place,
                   uint64_t *next_uid, dtr__answer *answer) {
    uint64_t counter = 0;
    bool unnamed = entry[0]->unnamed != 0, can_split = true, fresh = false;
    for (int i = 0; i < n; i++) {
        counter = entry[i]->counter > counter ? entry[i]->counter : counter;
        can_split = can_split && entry[i]->can_split != 0;
        fresh = fresh || (place[i].a != DTR__NO_GROUP && entry[place[i].at]->found == 0);
    }
    uint64_t number = counter;
    for (int begin = 0, end; begin < n; begin = end) {
        end = dtr__agreement_group_end(place, n, begin);
        if (place[begin].a == DTR__NO_GROUP) {
            continue;
        }
        const uint64_t found = entry[place[begin].at]->found; /* that of all of them */
        const uint64_t uid = found != 0 ? found : (*next_uid)++;
        number += unnamed && found == 0;
        for (int k = begin; k < end; k++) {
            dtr__answer *a = &answer[place[k].at];
            a->reuse = found != 0;
            a->uid = uid;
            a->number = number;
        }
    }
    for (int i = 0; i < n; i++) {
        /* Callers that made no numbered group keep the counter they have. */
        answer[i].split = can_split && fresh;
        answer[i].counter = number > counter ? number : entry[i]->counter;
    }
}

typedef struct offer {
    uint64_t uid, n; /* of how many entries */
} offer;

static int by_uid(const void *a, const void *b) {
    uint64_t x = ((const offer *)a)->uid, y = ((const offer *)b)->uid;
    return (x > y) - (x < y);
}

/* A group's communicators are freed when all of its members have offered to: each of them gets its
 * uid then. Without memory for the list that is left to a later agreement. */
static void decide_retired(const dtr__entry *const *entry, int n, dtr__answer *answer) {
    offer *all = NULL;
    size_t n_all = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < DTR__RETIRED_AT_ONCE && entry[i]->retired[k].uid != 0; k++) {
            if (all == NULL) {
                all = malloc((size_t)n * DTR__RETIRED_AT_ONCE * sizeof *all);
            }
            if (all == NULL) {
                return;
            }
            all[n_all++] = (offer){ entry[i]->retired[k].uid, 1 };
        }
    }
    if (n_all == 0) {
        return;
    }
    qsort(all, n_all, sizeof *all, by_uid);
    size_t n_uids = 0; /* each once */
    for (size_t k = 1; k < n_all; k++) {
        if (all[k].uid == all[n_uids].uid) {
            all[n_uids].n++;
        } else {
            all[++n_uids] = all[k];
        }
    }
    n_uids++;
    for (int i = 0; i < n; i++) {
        for (int k = 0, n_free = 0; k < DTR__RETIRED_AT_ONCE && entry[i]->retired[k].uid != 0;
             k++) {
            const offer key = { .uid = entry[i]->retired[k].uid };
            const offer *at = bsearch(&key, all, n_uids, sizeof *all, by_uid);
            if (at != NULL && at->n == entry[i]->retired[k].size) {
                answer[i].free_uid[n_free++] = key.uid;
            }
        }
    }
    free(all);
}

void dtr__agreement_decide(const char *what, const int *ranks, const dtr__entry *const *entry,
                           int n, uint64_t *next_uid, dtr__answer *answer, dtr__sort_key *place,
                           char *text) {
    memset(answer, 0, sizeof(*answer) * (size_t)n);
    text[0] = '\0';
    dtr_status s = DTR_OK;
    const bool differ = decide_mismatch(what, ranks, entry, n, place, text);
    if (!differ && decide_failures(what, ranks, entry, n, answer, text)) {
        return;
    }
    if (!differ) { /* else what differs was sorted there */
        qsort(place, (size_t)n, sizeof *place, by_place);
    }
    if (differ) {
        s = DTR_ERR_MISMATCH;
    } else if (decide_tags(what, ranks, entry, n, place, text)) {
        s = DTR_ERR_MISMATCH;
    } else if (decide_names(what, ranks, entry, n, text)) {
        s = DTR_ERR_STATE;
    }
    if (s == DTR_OK) {
        assign(entry, n, place, next_uid, answer);
        decide_retired(entry, n, answer);
    }
    for (int i = 0; i < n; i++) {
        answer[i].status = s;
    }
}
