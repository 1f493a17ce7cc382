/* The flight recorder: a ring of fixed-size records, claimed and closed without locks.
 *
 * A slot is entered by exchanging its number for BUSY and left by storing a number, so a writer has
 * it alone; readers copy it word by word and keep the copy only if the number was the same before
 * and after. All accesses are atomic words: acquire loads and release stores keep their order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/world.h"
#include "memory/device.h"
#include "recorder/counters.h"
#include "recorder/recording.h"

#define BUSY UINT64_MAX
enum {
    WORDS = sizeof(dtr__record) / sizeof(uint64_t),
    TRIES = 10000,
    PAUSE_NS = 5000, /* a call that comes later does not follow */
    AHEAD = 3        /* slots fetched before they are needed, as many as a batch of two takes */
};

typedef struct slot {
    _Atomic uint64_t word[WORDS]; /* word 0 is dtr__record.number */
} slot;
_Static_assert(offsetof(dtr__record, number) == 0, "word 0 is the number");

enum { SPAN_WORDS = sizeof(dtr__rec_span) / sizeof(uint64_t) };
typedef struct span_slot {
    _Atomic uint64_t word[SPAN_WORDS]; /* word 0 is dtr__rec_span.number */
} span_slot;
_Static_assert(offsetof(dtr__rec_span, number) == 0, "word 0 is the number");

struct dtr__recorder {
    dtr__rec_memory memory;
    slot *ring;       /* in memory */
    uint64_t entries; /* power of two */
    _Atomic uint64_t last;
    span_slot *spans; /* in memory */
    _Atomic uint64_t last_span;
    bool one_issuer; /* MPI's thread level lets no two threads issue operations at once */
    bool one_thread; /* nor does another thread see any of them end */
};

dtr_status dtr__recorder_open(dtr_world *world) {
    uint64_t wanted = dtr__opt_number(&world->options, DTR__OPT_RECORDER_ENTRIES), entries = 64;
    while (entries < wanted) {
        entries *= 2;
    }
    dtr__recorder *r = calloc(1, sizeof *r);
    DTR_REQUIRE(r != NULL, NULL, DTR_ERR_NOMEM, "no memory for the flight recorder");
    dtr_status s = dtr__rec_memory_open(world, entries, &r->memory);
    if (s != DTR_OK) {
        free(r);
        return s;
    }
    r->ring = (slot *)((char *)r->memory.header + r->memory.header->ring_at);
    r->entries = entries;
    r->spans = (span_slot *)((char *)r->memory.header + r->memory.header->spans_at);
    const dtr__options *o = &world->options;
    r->one_issuer = world->mpi.thread_level < MPI_THREAD_MULTIPLE;
    r->one_thread = r->one_issuer && dtr__opt_number(o, DTR__OPT_PROGRESS_THREAD) == 0;
    world->recording.hashes = dtr__opt_number(o, DTR__OPT_HASH) != 0;
    world->recording.timing = dtr__opt_number(o, DTR__OPT_TIMING) != 0;
    world->recording.each_in_full = world->recording.hashes || world->recording.timing ||
                                    dtr__opt_number(o, DTR__OPT_RECORDER_STACK) != 0;
    dtr__rec_stack_warm(r->memory.header);
    world->recorder = r;
    return DTR_OK;
}

bool dtr__recorder_is_evidence(const dtr_world *world) {
    const dtr__rec_header *h = world->recorder->memory.header;
    return atomic_load(&h->failure.version) != 0 || atomic_load(&h->dumps) != 0;
}

void dtr__recorder_close(dtr_world *world) {
    dtr__recorder *r = world->recorder;
    if (r != NULL) {
        dtr__rec_memory_close(&r->memory, dtr__recorder_is_evidence(world));
        free(r);
        world->recorder = NULL;
    }
}

dtr__rec_header *dtr__recorder_header(const dtr_world *world) {
    return world->recorder != NULL ? world->recorder->memory.header : NULL;
}

const dtr__rec_memory *dtr__recorder_memory(const dtr_world *world) {
    return &world->recorder->memory;
}

static slot *slot_of(const dtr__recorder *r, uint64_t number) {
    return &r->ring[number & (r->entries - 1)];
}

/* Enter the slot if `wanted` accepts its number: any older one (begin) or exactly one (mark). */
static bool enter(slot *s, uint64_t at_least, uint64_t at_most) {
    for (int i = 0; i < TRIES; i++) {
        uint64_t number = atomic_load_explicit(&s->word[0], memory_order_relaxed);
        if (number == BUSY) {
            continue; /* the holder leaves after a few stores */
        }
        if (number < at_least || number > at_most) {
            return false;
        }
        if (atomic_compare_exchange_weak_explicit(&s->word[0], &number, BUSY, memory_order_acquire,
                                                  memory_order_relaxed)) {
            return true;
        }
    }
    return false; /* the holder was stopped in there: do without this note */
}

/* The same where only this thread issues operations: an exchange would wait until all earlier
 * stores, such as those to peers, have gone out. Other threads may end works, which is rare. */
static inline bool enter_alone(slot *s, uint64_t at_least, uint64_t at_most) {
    uint64_t number = atomic_load_explicit(&s->word[0], memory_order_relaxed);
    bool fits = number >= at_least && number <= at_most; /* BUSY does not */
    if (fits) {
        atomic_store_explicit(&s->word[0], BUSY, memory_order_relaxed);
    }
    return fits;
}

static void leave(slot *s, uint64_t number) {
    atomic_store_explicit(&s->word[0], number, memory_order_release);
}

/* Word `i` of a record in ordinary memory. */
static uint64_t word_of(const dtr__record *r, size_t i) {
    uint64_t word;
    memcpy(&word, (const char *)r + i * sizeof word, sizeof word);
    return word;
}

/* Some words, not the number's. Release, so that a reader who sees one of them also sees BUSY. */
static inline void store_words(slot *s, const dtr__record *r, size_t from, size_t until) {
#pragma GCC unroll 32
    for (size_t i = from; i < until; i++) {
        atomic_store_explicit(&s->word[i], word_of(r, i), memory_order_release);
    }
}

/* Words that nobody has written lately, else the loads would wait: two at a time. This processor
 * keeps the order of stores, and each word stays whole. */
static inline void store_pairs(slot *s, const dtr__record *r, size_t from, size_t until) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    atomic_signal_fence(memory_order_seq_cst);
#pragma GCC unroll 16
    for (size_t i = from; i < until; i += 2) {
        struct {
            uint64_t word[2];
        } pair;
        memcpy(&pair, (const char *)r + i * sizeof pair.word[0], sizeof pair);
        memcpy((void *)&s->word[i], &pair, sizeof pair);
    }
    atomic_signal_fence(memory_order_seq_cst);
#else
    store_words(s, r, from, until);
#endif
}

static void load_record(slot *s, dtr__record *r) {
    uint64_t word[WORDS];
    for (int i = 0; i < WORDS; i++) {
        word[i] = atomic_load_explicit(&s->word[i], memory_order_acquire);
    }
    memcpy(r, word, sizeof *r);
}

static _Thread_local __attribute__((tls_model("initial-exec")))
uint32_t own_thread; /* 0: unknown */

static uint32_t thread_id(void) {
    if (own_thread == 0) {
        own_thread = (uint32_t)syscall(SYS_gettid);
    }
    return own_thread;
}

/* Which word of a record a field lies in; the field must not cross words. */
#define WORD_OF(field) (offsetof(dtr__record, field) / sizeof(uint64_t))

/* Replace a field within its word. */
static void set_field(slot *s, size_t offset, const void *value, size_t nbytes) {
    _Atomic uint64_t *word = &s->word[offset / sizeof(uint64_t)];
    uint64_t bits = atomic_load_explicit(word, memory_order_relaxed);
    memcpy((char *)&bits + offset % sizeof bits, value, nbytes);
    atomic_store_explicit(word, bits, memory_order_release);
}
#define SET(s, field, value) set_field((s), offsetof(dtr__record, field), &(value), sizeof(value))

static void set_state(slot *s, dtr__rec_state state) {
    uint8_t byte = (uint8_t)state;
    SET(s, state, byte);
}

static uint64_t next_number(dtr__recorder *r) {
    if (!r->one_issuer) {
        return atomic_fetch_add_explicit(&r->last, 1, memory_order_relaxed) + 1;
    }
    uint64_t number = atomic_load_explicit(&r->last, memory_order_relaxed) + 1;
    atomic_store_explicit(&r->last, number, memory_order_relaxed);
    return number;
}

/* The ring is larger than the caches near a core: have the next slot come while there is time. */
static void expect(slot *s) {
    for (size_t i = 0; i < WORDS; i += 8) {
        __builtin_prefetch(&s->word[i], 1);
    }
}

static inline slot *enter_next(dtr__recorder *recorder, uint64_t *number) {
    *number = next_number(recorder);
    slot *s = slot_of(recorder, *number);
    const bool entered =
        recorder->one_thread ? enter_alone(s, 0, *number - 1) : enter(s, 0, *number - 1);
    return entered ? s : NULL;
}

static inline void leave_begun(const dtr_world *world, slot *s, uint64_t number,
                               const dtr__record *r) {
    leave(s, number);
    expect(slot_of(world->recorder, number + AHEAD));
    if (world->recording.counters != NULL) {
        dtr__count_issued(world, r);
    }
}

uint64_t dtr__rec_begin(dtr_world *world, const dtr__record *r) {
    uint64_t number;
    slot *s = enter_next(world->recorder, &number);
    uint32_t thread = thread_id();
    if (s == NULL) {
        return number;
    }
    store_words(s, r, 1, WORDS);
    SET(s, world_serial, world->serial);
    SET(s, thread, thread);
    if (r->state == 0) {
        set_state(s, DTR__REC_ISSUED);
    }
    if (r->t_issued == 0) {
        int64_t now = dtr__stamp_ns();
        SET(s, t_issued, now);
    }
    leave_begun(world, s, number, r);
    return number;
}

uint64_t dtr__rec_begin_again(dtr_world *world, dtr__record *r) {
    uint64_t number;
    slot *s = enter_next(world->recorder, &number);
    if (s == NULL) {
        return number;
    }
    const uint32_t thread = thread_id();
    if (r->thread != thread || r->world_serial != world->serial) {
        r->thread = thread;
        r->world_serial = world->serial;
    }
    store_words(s, r, 1, WORD_OF(root_or_peer));
    store_pairs(s, r, WORD_OF(root_or_peer), WORD_OF(thread));
    store_words(s, r, WORD_OF(thread), WORD_OF(follower));
    store_pairs(s, r, WORD_OF(follower), WORDS);
    leave_begun(world, s, number, r);
    return number;
}

static void note(slot *s, uint64_t number, dtr__rec_state state, dtr_status status, int64_t now) {
    static const uint8_t time_word[] = { [DTR__REC_ISSUED] = WORD_OF(t_issued),
                                         [DTR__REC_ENQUEUED] = WORD_OF(t_enqueued),
                                         [DTR__REC_STARTED] = WORD_OF(t_started),
                                         [DTR__REC_FINISHED] = WORD_OF(t_finished),
                                         [DTR__REC_FAILED] = WORD_OF(t_finished) };
    set_state(s, state);
    atomic_store_explicit(&s->word[time_word[state]], (uint64_t)now, memory_order_release);
    if (state >= DTR__REC_FINISHED) {
        int32_t final = (int32_t)status;
        SET(s, status, final);
    }
    leave(s, number);
}

/* Report an operation's end to the metrics; the slot is the caller's. */
static void count_end(dtr_world *world, slot *s, int64_t now) {
    dtr__record r;
    load_record(s, &r);
    if ((r.flags & DTR__REC_MEMBER) == 0) {
        dtr__count_ended(world, r.kind, now - r.t_issued);
    }
}

void dtr__rec_mark(dtr_world *world, uint64_t number, dtr__rec_state state, dtr_status status) {
    slot *s = slot_of(world->recorder, number);
    int64_t now = dtr__stamp_ns();
    bool ends = world->recording.counters != NULL && number != 0 && state >= DTR__REC_FINISHED;
    if (ends && status < 0) {
        dtr__count_failed(world, status);
    }
    if (number != 0 && enter(s, number, number)) {
        if (ends) {
            count_end(world, s, now);
        }
        note(s, number, state, status, now);
    }
}

void dtr__rec_finish(dtr_world *world, uint64_t number, int64_t now_ns) {
    const dtr__recorder *r = world->recorder;
    slot *s = slot_of(r, number);
    if ((r->one_thread ? enter_alone : enter)(s, number, number)) {
        if (world->recording.counters != NULL) {
            count_end(world, s, now_ns);
        }
        note(s, number, DTR__REC_FINISHED, DTR_OK, now_ns);
    }
}

void dtr__rec_hash_out(dtr_world *world, uint64_t number, uint64_t hash) {
    slot *s = slot_of(world->recorder, number);
    if (number != 0 && enter(s, number, number)) {
        SET(s, hash_out, hash);
        leave(s, number);
    }
}

void dtr__rec_began(dtr_world *world, uint64_t number, int64_t at_ns) {
    slot *s = slot_of(world->recorder, number);
    if (number != 0 && enter(s, number, number)) {
        SET(s, t_started, at_ns);
        leave(s, number);
    }
}

/* ---- spans ---- */

void dtr__rec_span_add(dtr_world *world, const char *what, const char *label, int64_t begin_ns,
                       int64_t end_ns, uint64_t nbytes) {
    dtr__recorder *r = world->recorder;
    uint64_t words[SPAN_WORDS],
        number = atomic_fetch_add_explicit(&r->last_span, 1, memory_order_relaxed) + 1;
    span_slot *s = &r->spans[number & (r->memory.header->spans - 1)];
    uint64_t old = atomic_load_explicit(&s->word[0], memory_order_relaxed);
    /* A writer a whole round behind keeps its slot, and this span is lost. */
    if (old >= number || !atomic_compare_exchange_strong_explicit(
                             &s->word[0], &old, BUSY, memory_order_acquire, memory_order_relaxed)) {
        return;
    }
    dtr__rec_span one = {
        .t_begin = begin_ns, .t_end = end_ns, .nbytes = nbytes, .thread = thread_id()
    };
    snprintf(one.what, sizeof one.what, "%s", what);
    snprintf(one.label, sizeof one.label, "%s", label);
    memcpy(words, &one, sizeof words);
    for (size_t i = 1; i < SPAN_WORDS; i++) {
        atomic_store_explicit(&s->word[i], words[i], memory_order_release);
    }
    atomic_store_explicit(&s->word[0], number, memory_order_release);
}

/* ---- calls that follow a record ---- */

/* What the followers' words say goes into the record itself, because they are used again. */
static void end_run(dtr_world *world, const dtr__rec_run *run) {
    uint64_t begun = atomic_load_explicit(&run->words->begun, memory_order_relaxed);
    uint64_t followers = begun - run->first + ((uint64_t)(run->turns - 1) << 32);
    slot *s = slot_of(world->recorder, run->number);
    if (begun != run->first && enter(s, run->number, run->number)) {
        SET(s, follower, followers);
        SET(s, t_follower, run->t);
        leave(s, run->number);
    }
    atomic_store_explicit(&run->words->record, 0, memory_order_release);
}

/* A call that followed and takes long has a record of its own instead. */
static void take_back(const dtr__rec_run *run, uint64_t sort, uint64_t seq) {
    if (run->number != 0 && run->sort[(run->turn + run->turns - 1) % run->turns] == sort &&
        atomic_load_explicit(&run->words->begun, memory_order_relaxed) == seq) {
        atomic_store_explicit(&run->words->begun, seq - 1, memory_order_release);
    }
}

/* Behind the records of `turns` calls, the last of which is `r`. */
static void begin_run(dtr__rec_run *run, uint32_t turns, uint64_t number, const dtr__record *r,
                      uint64_t entries) {
    dtr__rec_followers *words = run->words;
    const uint64_t count = dtr__record_seq(r);
    atomic_store_explicit(&words->turns, turns, memory_order_release);
    atomic_store_explicit(&words->waiting, 0, memory_order_release);
    run->waiting = 0;
    atomic_store_explicit(&words->begun, count, memory_order_release);
    atomic_store_explicit(&words->ended, count, memory_order_release);
    atomic_store_explicit(&words->t_begun, r->t_issued, memory_order_release);
    atomic_store_explicit(&words->record, number, memory_order_release);
    run->turns = turns;
    run->turn = 0;
    run->number = number;
    run->last = number + entries;
    run->first = count;
    run->next = count + 1;
    run->t = r->t_issued;
    run->thread = thread_id();
}

static bool has_runs(const dtr_world *world, const dtr__rec_run *run) {
    return run->words != NULL && world->recording.counters == NULL;
}

uint64_t dtr__rec_run_begin(dtr_world *world, dtr__rec_run *run, uint64_t sort,
                            const dtr__record *r, uint64_t entries) {
    const uint64_t number = dtr__rec_begin(world, r);
    if (!has_runs(world, run)) {
        return number;
    }
    take_back(run, sort, dtr__record_seq(r));
    if (run->number != 0) {
        end_run(world, run);
    }
    run->sort[0] = sort;
    begin_run(run, 1, number, r, entries);
    run->end = (run->first / DTR__REC_RUN_MOST + 1) * DTR__REC_RUN_MOST;
    return number;
}

/* How many messages ago there was one of this sort, if nothing else lies between; 0: there was not.
 */
static uint32_t turns_since(const dtr__rec_run *run, const dtr__rec_turn *now) {
    for (uint32_t i = 1; i <= DTR__REC_RUN_TURNS && i <= run->n_recent; i++) {
        const dtr__rec_turn *recent = &run->recent[(run->n_recent - i) % DTR__REC_RUN_TURNS];
        if (recent->number + i != now->number || recent->seq + i != now->seq) {
            return 0;
        }
        if (recent->sort == now->sort) {
            return i;
        }
    }
    return 0;
}

uint64_t dtr__rec_run_message(dtr_world *world, dtr__rec_run *run, uint64_t sort, dtr__record *r) {
    const dtr__rec_turn now = { sort, dtr__record_seq(r), dtr__rec_begin_again(world, r) };
    if (!has_runs(world, run)) {
        return now.number;
    }
    take_back(run, sort, now.seq);
    const uint32_t turns = turns_since(run, &now);
    run->recent[run->n_recent++ % DTR__REC_RUN_TURNS] = now;
    if (turns == 0) {
        return now.number;
    }
    if (run->number != 0) {
        end_run(world, run);
    }
    for (uint32_t i = 0; i < turns; i++) {
        run->sort[i] = run->recent[(run->n_recent - turns + i) % DTR__REC_RUN_TURNS].sort;
    }
    begin_run(run, turns, now.number, r, 0);
    run->end = run->first + DTR__REC_RUN_MOST;
    return now.number;
}

bool dtr__rec_follow(const dtr_world *world, dtr__rec_run *run, uint64_t sort, uint64_t seq,
                     int64_t now_ns) {
    const dtr__recorder *r = world->recorder;
    if (run->sort[run->turn] != sort || run->next != seq || seq == run->end ||
        now_ns - run->t >= PAUSE_NS || run->thread != own_thread ||
        atomic_load_explicit(&r->last, memory_order_relaxed) != run->last) {
        return false;
    }
    run->turn = run->turn + 1 < run->turns ? run->turn + 1 : 0;
    run->next = seq + 1;
    run->t = now_ns;
    atomic_store_explicit(&run->words->t_begun, now_ns, memory_order_relaxed);
    atomic_store_explicit(&run->words->begun, seq, memory_order_release);
    return true;
}

bool dtr__rec_follow_message(const dtr_world *world, dtr__rec_run *run, uint64_t sort, uint64_t seq,
                             int64_t now_ns, bool over) {
    /* Where none is under way it is better to end a run than soon after, with records for many. */
    const bool near_end = seq - run->first >= DTR__REC_RUN_MOST / 4 * 3;
    if ((!over && near_end && run->waiting == 0) ||
        !dtr__rec_follow(world, run, sort, seq, now_ns)) {
        return false;
    }
    if (!over) {
        run->waiting |= UINT64_C(1) << seq % DTR__REC_RUN_MOST;
        atomic_store_explicit(&run->words->waiting, run->waiting, memory_order_release);
    }
    dtr__rec_follower_ended(run, seq);
    return true;
}

size_t dtr__rec_read(const dtr_world *world, dtr__record *out, size_t cap) {
    const dtr__rec_memory *m = &world->recorder->memory;
    dtr__recording *r = dtr__recording_glance(m->header, m->nbytes, cap);
    size_t n = r == NULL ? 0 : r->n_records < cap ? r->n_records : cap;
    if (n > 0) {
        memcpy(out, r->records + (r->n_records - n), n * sizeof *out);
    }
    dtr__recording_free(r);
    return n;
}
