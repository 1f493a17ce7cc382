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
    vsnprintf(text + at, cap - at, fmt, args);
    va_end(args);
}

void dtr__append_ranks(char *text, size_t cap, const int *ranks, const bool *in, int n) {
    enum { SHOWN = 16 };
    int count = 0, shown = 0;
    for (int i = 0; i < n; i++) {
        count += in[i];
    }
    append(text, cap, count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < n && shown < SHOWN; i++) {
        if (in[i]) {
            append(text, cap, "%s%d", shown++ > 0 ? ", " : "", ranks[i]);
        }
    }
    if (count > shown) {
        append(text, cap, " and %d more", count - shown);
    }
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

static int count_like(const dtr__entry *const *entry, int n, dtr__field_id f, int like) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        count += same_field(&entry[i]->field[f], &entry[like]->field[f]);
    }
    return count;
}

/* The value most ranks gave, and then the values of the others, each with its ranks. */
static void describe_field(char *text, const int *ranks, const dtr__entry *const *entry, int n,
                           dtr__field_id f) {
    bool in[n], done[n];
    memset(done, 0, sizeof(done));
    append(text, DTR__AGREEMENT_TEXT, " %s: ", field_names[f]);
    for (int left = n, first = 1; left > 0; first = 0) {
        int best = -1, best_count = 0;
        for (int i = 0; i < n; i++) {
            int count = done[i] ? 0 : count_like(entry, n, f, i);
            if (count > best_count) {
                best = i;
                best_count = count;
            }
        }
        for (int i = 0; i < n; i++) {
            in[i] = same_field(&entry[i]->field[f], &entry[best]->field[f]);
            done[i] |= in[i];
        }
        const char *value = entry[best]->field[f].text;
        append(text, DTR__AGREEMENT_TEXT, "%s%s on ", first ? "" : ", but ",
               value[0] != '\0' ? value : "none");
        dtr__append_ranks(text, DTR__AGREEMENT_TEXT, ranks, in, n);
        left -= best_count;
    }
}

static bool decide_mismatch(const char *what, const int *ranks, const dtr__entry *const *entry,
                            int n, char *text) {
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
        describe_field(text, ranks, entry, n, (dtr__field_id)f);
        if (f == DTR__FIELD_CALL) {
            break; /* the rest of two different calls cannot be compared */
        }
    }
    return differing > 0;
}

/* A tagged group must be there on all of its members or on none. */
static bool decide_tags(const char *what, const int *ranks, const dtr__entry *const *entry, int n,
                        char *text) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i && entry[i]->index >= 0; j++) {
            if (entry[j]->index != entry[i]->index || entry[j]->found == entry[i]->found) {
                continue;
            }
            int with = entry[i]->found != 0 ? i : j, without = with == i ? j : i;
            snprintf(text, DTR__AGREEMENT_TEXT,
                     "%s: the group with tag \"%s\" is live on rank %d but not, or another one, "
                     "on rank %d; destroy it on all members alike",
                     what, entry[i]->field[DTR__FIELD_TAG].text, ranks[with], ranks[without]);
            return true;
        }
    }
    return false;
}

static bool decide_names(const char *what, const int *ranks, const dtr__entry *const *entry, int n,
                         char *text) {
    bool in[n], any = false;
    for (int i = 0; i < n; i++) {
        in[i] = entry[i]->name_live != 0;
        any |= in[i];
    }
    if (any) {
        snprintf(text, DTR__AGREEMENT_TEXT, "%s: a group of that name is live on ", what);
        dtr__append_ranks(text, DTR__AGREEMENT_TEXT, ranks, in, n);
        append(text, DTR__AGREEMENT_TEXT, "; destroy it first or choose another name");
    }
    return any;
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

int dtr__agreement_members(const int *ranks, const dtr__entry *const *entry, int n, int index,
                           int *members) {
    int count = 0; /* members holds positions until they are sorted */
    for (int i = 0; i < n; i++) {
        if (entry[i]->index != index) {
            continue;
        }
        int at = count++;
        for (; at > 0 && entry[members[at - 1]]->key > entry[i]->key; at--) {
            members[at] = members[at - 1];
        }
        members[at] = i;
    }
    for (int i = 0; i < count; i++) {
        members[i] = ranks[members[i]];
    }
    return count;
}

/* Smallest index above `above` among the entries, -1 when there is none. */
static int next_index(const dtr__entry *const *entry, int n, int above) {
    int best = -1;
    for (int i = 0; i < n; i++) {
        int index = entry[i]->index;
        if (index > above && (best < 0 || index < best)) {
            best = index;
        }
    }
    return best;
}

static void assign(const dtr__entry *const *entry, int n, uint64_t *next_uid, dtr__answer *answer) {
    uint64_t counter = 0;
    for (int i = 0; i < n; i++) {
        counter = entry[i]->counter > counter ? entry[i]->counter : counter;
    }
    uint64_t number = counter;
    bool unnamed = entry[0]->unnamed != 0, can_split = true, fresh = false;
    for (int i = 0; i < n; i++) {
        can_split = can_split && entry[i]->can_split != 0;
        fresh = fresh || (entry[i]->index >= 0 && entry[i]->found == 0);
    }
    for (int index = next_index(entry, n, -1); index >= 0; index = next_index(entry, n, index)) {
        uint64_t uid = 0;
        for (int i = 0; i < n; i++) {
            if (entry[i]->index != index) {
                continue;
            }
            answer[i].reuse = entry[i]->found != 0;
            if (uid == 0) {
                uid = answer[i].reuse ? entry[i]->found : (*next_uid)++;
                number += unnamed && !answer[i].reuse;
            }
            answer[i].uid = uid;
            answer[i].number = number;
        }
    }
    for (int i = 0; i < n; i++) {
        /* Callers that made no numbered group keep the counter they have. */
        answer[i].split = can_split && fresh;
        answer[i].counter = number > counter ? number : entry[i]->counter;
    }
}

typedef struct offer {
    uint64_t uid, size;
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
            all[n_all++] = (offer){ entry[i]->retired[k].uid, entry[i]->retired[k].size };
        }
    }
    if (n_all == 0) {
        return;
    }
    qsort(all, n_all, sizeof *all, by_uid);
    for (int i = 0; i < n; i++) {
        for (int k = 0, n_free = 0; k < DTR__RETIRED_AT_ONCE && entry[i]->retired[k].uid != 0;
             k++) {
            offer key = { entry[i]->retired[k].uid, entry[i]->retired[k].size };
            const offer *at = bsearch(&key, all, n_all, sizeof *all, by_uid);
            const offer *first = at, *last = at;
            while (first > all && first[-1].uid == key.uid) {
                first--;
            }
            while (last + 1 < all + n_all && last[1].uid == key.uid) {
                last++;
            }
            if ((uint64_t)(last - first) + 1 == key.size) {
                answer[i].free_uid[n_free++] = key.uid;
            }
        }
    }
    free(all);
}

void dtr__agreement_decide(const char *what, const int *ranks, const dtr__entry *const *entry,
                           int n, uint64_t *next_uid, dtr__answer *answer, char *text) {
    memset(answer, 0, sizeof(*answer) * (size_t)n);
    text[0] = '\0';
    dtr_status s = DTR_OK;
    if (decide_mismatch(what, ranks, entry, n, text)) {
        s = DTR_ERR_MISMATCH;
    } else if (decide_failures(what, ranks, entry, n, answer, text)) {
        return;
    } else if (decide_tags(what, ranks, entry, n, text)) {
        s = DTR_ERR_MISMATCH;
    } else if (decide_names(what, ranks, entry, n, text)) {
        s = DTR_ERR_STATE;
    }
    if (s == DTR_OK) {
        assign(entry, n, next_uid, answer);
        decide_retired(entry, n, answer);
    }
    for (int i = 0; i < n; i++) {
        answer[i].status = s;
    }
}
