/* The agreement of collectives/backends/shm/shm_withdraw.c, in all orders of its steps
 * (reliability:EA3): ranks that store pieces into memory of another one, which takes it back
 * meanwhile. Every store goes through a buffer of its thread, which empties at any time: in order,
 * as on x86 (TSO), or in any order that releases allow. Loads take from memory, or from the own
 * buffer. What is looked for is a piece that arrives after the memory has been given back to the
 * program.
 *
 * Not all of the model's agreements are the library's: those without one of its parts, one of which
 * is what the library did before there was any, must be found wanting, or the model sees nothing.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

enum { WRITERS = 2, PIECES = 2, HALVES = 2, BUFFERED = 6, NOTHING = 0 };
enum { TABLE = 1 << 21 };

/* What is left out. */
typedef struct rules {
    const char *name;
    bool silent, blind, once;           /* A1; A2; A2 but before the first piece */
    bool writer_hurries, owner_hurries; /* A2 before others see A1; B2 before they see B1 */
    bool rash;                          /* B3, */
    bool patient, careless;             /* ... its end; that the piece becomes private then */
    bool unordered;                     /* A4 may arrive before A3 */
    bool safe[2];                       /* as it must turn out: in order, in any order */
} rules;

/* Memory: `withdrawn`, `writing` of each writer, and pieces, of which only their arrival counts. */
enum { WITHDRAWN, WRITING, PIECE = WRITING + WRITERS };

typedef struct store {
    uint8_t to, value, release;
} store;

typedef struct thread {
    uint8_t pc, piece, half, n;
    store buffer[BUFFERED];
} thread;

typedef struct state {
    thread writer[WRITERS], owner;
    uint8_t withdrawn, writing[WRITERS];
    uint8_t asked, mark;   /* of the owner: which writer it looks at; what that one writes */
    uint8_t kept[WRITERS]; /* piece that goes nowhere */
    uint8_t given_back;
} state;

/* ---- states that have been seen ---- */

static struct {
    state *of;
    bool *used;
    size_t n;
} seen;

static bool is_new(const state *s) {
    const unsigned char *p = (const unsigned char *)s;
    uint64_t h = UINT64_C(1469598103934665603);
    for (size_t i = 0; i < sizeof *s; i++) {
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    }
    size_t at = (size_t)(h % TABLE);
    while (seen.used[at] && memcmp(&seen.of[at], s, sizeof *s) != 0) {
        at = (at + 1) % TABLE;
    }
    const bool found = seen.used[at];
    if (!found) {
        ck_assert_msg(++seen.n < TABLE / 2, "the table is too small");
        seen.used[at] = true;
        seen.of[at] = *s;
    }
    return !found;
}

/* ---- steps ---- */

static void put(thread *t, uint8_t to, uint8_t value, bool release) {
    ck_assert_int_lt(t->n, BUFFERED);
    t->buffer[t->n++] = (store){ to, value, release };
}

/* As the thread itself sees it. */
static uint8_t get(const state *s, const thread *t, uint8_t from) {
    for (int i = t->n; i > 0; i--) {
        if (t->buffer[i - 1].to == from) {
            return t->buffer[i - 1].value;
        }
    }
    return from == WITHDRAWN ? s->withdrawn : s->writing[from - WRITING];
}

/* May entry `i` arrive now? Stores to one place never pass each other. */
static bool may_arrive(const thread *t, int i, bool in_order) {
    for (int k = 0; k < i; k++) {
        if (in_order || t->buffer[i].release || t->buffer[k].to == t->buffer[i].to) {
            return false;
        }
    }
    return true;
}

/* False: a piece arrives in memory that has been given back. */
static bool arrive(state *s, thread *t, int w, int i) {
    const store what = t->buffer[i];
    t->n--;
    memmove(&t->buffer[i], &t->buffer[i + 1], (size_t)(t->n - i) * sizeof *t->buffer);
    t->buffer[t->n] = (store){ 0, 0, 0 };
    if (what.to == WITHDRAWN) {
        s->withdrawn = what.value;
    } else if (what.to < PIECE) {
        s->writing[what.to - WRITING] = what.value;
    } else {
        return !s->given_back || s->kept[w] == what.value;
    }
    return true;
}

/* A step of a writer; false: it has none to do now. */
static bool write_on(state *s, const rules *r, int w) {
    enum { ANNOUNCE, FENCE, LOOK, STORE, END, OVER };
    thread *t = &s->writer[w];
    const bool first = t->piece == 0;
    switch (t->pc) {
    case ANNOUNCE:
        if (!r->silent) {
            put(t, (uint8_t)(WRITING + w), (uint8_t)(t->piece + 1), !r->unordered);
        }
        t->pc = FENCE;
        return true;
    case FENCE:
        t->pc = LOOK;
        return r->writer_hurries || t->n == 0;
    case LOOK:
        t->pc = !r->blind && (first || !r->once) && get(s, t, WITHDRAWN) != 0 ? END : STORE;
        return true;
    case STORE:
        put(t, (uint8_t)(PIECE + t->piece * HALVES + t->half), (uint8_t)(t->piece + 1), false);
        if (++t->half == HALVES) {
            t->half = 0;
            t->pc = ++t->piece == PIECES ? END : ANNOUNCE;
        }
        return true;
    case END:
        if (!r->silent) {
            put(t, (uint8_t)(WRITING + w), NOTHING, !r->unordered);
        }
        t->pc = OVER;
        return true;
    default:
        return false;
    }
}

/* A step of the owner. `give_up`: it waits no longer. */
static bool take_back(state *s, const rules *r, bool give_up) {
    enum { WITHDRAW, FENCE, ASK, WAIT, OVER };
    thread *t = &s->owner;
    switch (t->pc) {
    case WITHDRAW:
        put(t, WITHDRAWN, 1, false);
        t->pc = r->rash ? OVER : FENCE;
        s->given_back = r->rash;
        return !give_up;
    case FENCE:
        t->pc = ASK;
        return !give_up && (r->owner_hurries || t->n == 0);
    case ASK:
        s->mark = get(s, t, (uint8_t)(WRITING + s->asked));
        t->pc = WAIT;
        return !give_up;
    case WAIT:
        if (give_up) {
            if (r->patient || s->mark == NOTHING) {
                return false;
            }
            s->kept[s->asked] = r->careless ? NOTHING : s->mark;
        } else if (s->mark != NOTHING && get(s, t, (uint8_t)(WRITING + s->asked)) == s->mark) {
            return false;
        }
        s->mark = NOTHING;
        s->asked++;
        t->pc = s->asked == WRITERS ? OVER : ASK;
        s->given_back = s->asked == WRITERS;
        return true;
    default:
        return false;
    }
}

/* All orders from here on. False: one of them goes wrong. */
static bool explore(const state *from, const rules *r, bool in_order) {
    if (!is_new(from)) {
        return true;
    }
    for (int w = 0; w <= WRITERS; w++) {
        const thread *t = w < WRITERS ? &from->writer[w] : &from->owner;
        for (int i = 0; i < t->n; i++) {
            state s = *from;
            if (may_arrive(t, i, in_order) &&
                (!arrive(&s, w < WRITERS ? &s.writer[w] : &s.owner, w, i) ||
                 !explore(&s, r, in_order))) {
                return false;
            }
        }
        for (int give_up = 0; give_up <= (w == WRITERS); give_up++) {
            state s = *from;
            if ((w < WRITERS ? write_on(&s, r, w) : take_back(&s, r, give_up)) &&
                !explore(&s, r, in_order)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- agreements ---- */

static const rules with_all = { "all of it", .safe = { true, true } };
static const rules without[] = {
    { "as it was: nobody asks, nobody waits", .silent = true, .blind = true, .rash = true },
    { "a look alone", .silent = true, .rash = true },
    { "no wait", .rash = true },
    { "no announcement", .silent = true },
    { "no look", .blind = true },
    { "a look before the first piece only", .once = true },
    { "no fence of the writer", .writer_hurries = true },
    { "no fence of the owner", .owner_hurries = true },
    { "nothing kept when it gives up", .careless = true },
    { "no release", .unordered = true, .safe = { true, false } },
    { "it waits for ever", .patient = true, .safe = { true, true } },
};

static void try_out(const rules *r) {
    for (int any = 0; any < 2; any++) {
        const state begin = { .given_back = 0 };
        memset(seen.used, 0, TABLE * sizeof *seen.used);
        seen.n = 0;
        const bool safe = explore(&begin, r, any == 0);
        printf("%s, %s: %zu states, %s\n", r->name, any ? "stores in any order" : "in order",
               seen.n, safe ? "safe" : "not safe");
        ck_assert_msg(safe == r->safe[any], "%s, %s: is %ssafe", r->name,
                      any ? "stores in any order" : "stores in order", safe ? "" : "not ");
    }
}

START_TEST(all_of_it_is_safe) {
    try_out(&with_all);
}
END_TEST

START_TEST(no_part_can_be_left_out) {
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        try_out(&without[i]);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("model");
    seen.of = malloc(TABLE * sizeof *seen.of);
    seen.used = calloc(TABLE, sizeof *seen.used);
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, all_of_it_is_safe);
    tcase_add_test(tc, no_part_can_be_left_out);
    suite_add_tcase(s, tc);
}

int main(void) {
    const int status = th_unit_main("shm lent model", make);
    free(seen.of);
    free(seen.used);
    return status;
}
