/* Reading recordings. What is read may be cut off, damaged, of another job or being written: every
 * number is looked at before it is used. */
#include "recorder/recording.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dtr/dtype.h>

enum { FILE_MAX = 512 << 20, STUCK_NS = 2000000000 /* longer than any sound call takes */ };

/* Word by word, so that a number is never half old and half new. What is copied may be written
 * meanwhile, by this process too when it is its own recording, and is checked afterwards: that is
 * the way of the format, and no finding for a race detector. */
#if defined(__SANITIZE_THREAD__) || defined(__clang__)
__attribute__((no_sanitize("thread")))
#endif
static void
copy_words(void *to, const void *from, size_t nbytes) {
    const _Atomic uint64_t *word = from;
    for (size_t i = 0; i < nbytes / sizeof(uint64_t); i++) {
        uint64_t value = atomic_load_explicit(&word[i], memory_order_acquire);
        memcpy((char *)to + i * sizeof value, &value, sizeof value);
    }
}

/* Until 2116: less a time since a start (dtr__rec_is_time) and more another one it fits into 64
 * bits, and so does the difference of two such sums. */
static bool is_time_of_day(int64_t ns) {
    return ns >= 0 && ns < INT64_C(1) << 62;
}

static bool inside(uint64_t at, uint64_t n, uint64_t each, uint64_t nbytes) {
    return at % sizeof(uint64_t) == 0 && at <= nbytes && n <= (nbytes - at) / each;
}

#define END_TEXT(array) ((array)[sizeof(array) - 1] = '\0')

static void end_error(dtr__rec_error *e) {
    END_TEXT(e->operation);
    END_TEXT(e->group);
    END_TEXT(e->text);
}

static const char *check_header(dtr__rec_header *h, uint64_t nbytes) {
    if (h->magic != DTR__RECORDING_MAGIC) {
        return "it is no recording";
    }
    if (h->version != DTR__RECORDING_VERSION) {
        return "it was written in another version of the format";
    }
    if (h->header_bytes != sizeof *h || h->record_bytes != sizeof(dtr__record) ||
        h->group_bytes != sizeof(dtr__rec_group)) {
        return "its sizes are not those of this version of the format";
    }
    if (h->entries == 0 || h->entries > DTR__RECORDING_ENTRIES_MAX ||
        (h->entries & (h->entries - 1)) != 0) {
        return "its number of entries is damaged";
    }
    if (h->world_size < 1 || h->world_rank < 0 || h->world_rank >= h->world_size ||
        h->world_size > DTR__RECORDING_RANKS_MAX || !dtr__rec_is_time(h->mono_ns) ||
        !is_time_of_day(h->real_ns) || !dtr__rec_is_time(atomic_load(&h->beat_ns)) ||
        !dtr__rec_is_time(atomic_load(&h->progress_still_ns)) || !dtr__rec_is_time(h->failure.t) ||
        !dtr__rec_is_time(h->local.t) || h->groups > DTR__RECORDING_GROUPS ||
        h->members > DTR__RECORDING_MEMBERS || h->spans == 0 || h->spans > DTR__RECORDING_SPANS ||
        (h->spans & (h->spans - 1)) != 0) {
        return "its header is damaged";
    }
    if (!inside(h->groups_at, h->groups, sizeof(dtr__rec_group), nbytes) ||
        !inside(h->members_at, h->members, sizeof(int32_t), nbytes) || h->ring_at > nbytes ||
        h->ring_at % sizeof(uint64_t) != 0 ||
        !inside(h->spans_at, h->spans, sizeof(dtr__rec_span), nbytes) ||
        (h->stacks != 0 && h->stacks != h->entries) ||
        !inside(h->stacks_at, dtr__rec_stack_bytes(h->stacks), 1, nbytes)) {
        return "it is cut off";
    }
    return NULL;
}

static void end_texts(dtr__rec_header *h) {
    END_TEXT(h->host);
    END_TEXT(h->library);
    END_TEXT(h->command);
    END_TEXT(h->settings);
    for (int i = 0; i < DTR__RECORDING_KINDS; i++) {
        END_TEXT(h->kind[i]);
    }
    for (int i = 0; i < DTR__RECORDING_OPS; i++) {
        END_TEXT(h->op[i]);
    }
    end_error(&h->failure);
    end_error(&h->local);
    ((char *)h->progress_inside)[sizeof h->progress_inside - 1] = '\0';
}

static bool read_groups(dtr__recording *r, const char *image) {
    const dtr__rec_header *h = &r->head;
    r->groups = calloc(h->groups + 1, sizeof *r->groups);
    r->members = calloc(h->members + 2, sizeof *r->members);
    if (r->groups == NULL || r->members == NULL) {
        return false;
    }
    r->n_members = h->members;
    copy_words(r->members, image + h->members_at, h->members * sizeof(int32_t) / 8 * 8);
    for (uint64_t i = 0; i < h->groups; i++) {
        dtr__rec_group *g = &r->groups[r->n_groups];
        const char *from = image + h->groups_at + i * sizeof *g;
        uint64_t again = 0;
        copy_words(g, from, sizeof *g);
        copy_words(&again, from + offsetof(dtr__rec_group, followers.record), sizeof again);
        if (again != atomic_load(&g->followers.record)) {
            atomic_store(&g->followers.record, 0); /* another run is beginning */
        }
        END_TEXT(g->name);
        bool sane = g->size >= 1 && g->size <= h->world_size && g->own_rank >= 0 &&
                    g->own_rank < g->size && g->members >= -1 &&
                    (g->members < 0 || (uint64_t)g->members + (uint64_t)g->size <= h->members);
        r->n_groups += atomic_load(&g->id) != 0 && sane;
    }
    return true;
}

static int by_number(const void *a, const void *b) {
    uint64_t x = ((const dtr__record *)a)->number, y = ((const dtr__record *)b)->number;
    return x < y ? -1 : x > y;
}

static uint64_t number_at(const char *ring, uint64_t i) {
    uint64_t number = 0;
    copy_words(&number, ring + i * sizeof(dtr__record), sizeof number);
    return number;
}

/* The slots of the ring's present round come first, so a few reads find the newest; a number that
 * is being written counts as one of them. */
static uint64_t newest_number(const char *ring, uint64_t entries) {
    const uint64_t first = number_at(ring, 0), last = number_at(ring, entries - 1);
    uint64_t base = first != UINT64_MAX ? first : last != 0 && last != UINT64_MAX ? last + 1 : 0;
    uint64_t low = 0, high = entries; /* slot `low` belongs to it, slot `high` does not */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2, number = number_at(ring, middle);
        bool present = number == UINT64_MAX || number == base + middle;
        low = present ? middle : low;
        high = present ? high : middle;
    }
    return base + low;
}

static void read_record(dtr__recording *r, const char *ring, uint64_t i) {
    const char *from = ring + i * sizeof(dtr__record);
    dtr__record *rec = &r->records[r->n_records];
    copy_words(rec, from, sizeof *rec);
    if (rec->number == 0) {
        return;
    }
    END_TEXT(rec->label);
    END_TEXT(rec->site);
    bool whole = rec->number != UINT64_MAX && rec->number == number_at(ring, i) &&
                 (rec->number & (r->head.entries - 1)) == i && rec->state >= DTR__REC_ISSUED &&
                 rec->state <= DTR__REC_FAILED && dtr__rec_is_time(rec->t_issued) &&
                 dtr__rec_is_time(rec->t_started) && dtr__rec_is_time(rec->t_finished);
    r->n_records += whole;
    r->torn += !whole;
}

/* The newest `most` of them, if the ring is whole; else all there are. */
static bool read_records(dtr__recording *r, const char *image, uint64_t nbytes, uint64_t most) {
    const dtr__rec_header *h = &r->head;
    const char *ring = image + h->ring_at;
    uint64_t there = (nbytes - h->ring_at) / sizeof(dtr__record), begin = 0;
    there = there < h->entries ? there : h->entries;
    if (there == h->entries && most < there) {
        begin = newest_number(ring, h->entries) + 1 + h->entries - most;
        there = most;
    }
    const size_t capacity = 2 * there + DTR__REC_RUN_MOST;
    r->records = calloc(capacity, sizeof *r->records);
    if (r->records == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < there; i++) {
        read_record(r, ring, (begin + i) & (h->entries - 1));
    }
    qsort(r->records, r->n_records, sizeof *r->records, by_number);
    r->n_records = dtr__runs_expand(r, r->records, r->n_records, capacity);
    return true;
}

static int by_span_number(const void *a, const void *b) {
    uint64_t x = ((const dtr__rec_span *)a)->number, y = ((const dtr__rec_span *)b)->number;
    return x < y ? -1 : x > y;
}

static bool read_spans(dtr__recording *r, const char *image) {
    const char *ring = image + r->head.spans_at;
    r->spans = calloc(r->head.spans + 1, sizeof *r->spans);
    if (r->spans == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < r->head.spans; i++) {
        uint64_t again = 0;
        dtr__rec_span *s = &r->spans[r->n_spans];
        copy_words(s, ring + i * sizeof *s, sizeof *s);
        copy_words(&again, ring + i * sizeof *s, sizeof again);
        END_TEXT(s->what);
        END_TEXT(s->label);
        r->n_spans += s->number != 0 && s->number == again &&
                      (s->number & (r->head.spans - 1)) == i && dtr__rec_is_time(s->t_begin) &&
                      dtr__rec_is_time(s->t_end) && s->t_begin <= s->t_end;
    }
    qsort(r->spans, r->n_spans, sizeof *r->spans, by_span_number);
    return true;
}

static bool read_stacks(dtr__recording *r, const char *image) {
    const size_t nbytes = dtr__rec_stack_bytes(r->head.stacks);
    if (nbytes == 0) {
        return true;
    }
    r->stacks = malloc(nbytes);
    r->n_stacks = r->head.stacks;
    if (r->stacks != NULL) {
        copy_words(r->stacks, image + r->head.stacks_at, nbytes);
    }
    return r->stacks != NULL;
}

static dtr__recording *parse(const void *image, size_t nbytes, uint64_t most, char *why,
                             size_t cap) {
    if (nbytes < sizeof(dtr__rec_header)) {
        snprintf(why, cap, "it has %zu bytes, fewer than its header", nbytes);
        return NULL;
    }
    dtr__recording *r = calloc(1, sizeof *r);
    if (r == NULL) {
        snprintf(why, cap, "no memory");
        return NULL;
    }
    copy_words(&r->head, image, sizeof r->head);
    const char *bad = check_header(&r->head, nbytes);
    end_texts(&r->head);
    if (bad == NULL && (!read_groups(r, image) || !read_records(r, image, nbytes, most) ||
                        (most == UINT64_MAX && !(read_spans(r, image) && read_stacks(r, image))))) {
        bad = "no memory";
    }
    if (bad != NULL) {
        snprintf(why, cap, "%s", bad);
        dtr__recording_free(r);
        return NULL;
    }
    return r;
}

dtr__recording *dtr__recording_parse(const void *image, size_t nbytes, char *why, size_t cap) {
    return parse(image, nbytes, UINT64_MAX, why, cap);
}

dtr__recording *dtr__recording_glance(const void *image, size_t nbytes, size_t most) {
    char why[80];
    return parse(image, nbytes, most, why, sizeof why);
}

bool dtr__recording_beside(const char *of, const char *end, char *path, size_t cap) {
    const char *dot = strrchr(of, '.');
    path[0] = '\0';
    return dot != NULL && snprintf(path, cap, "%.*s%s", (int)(dot - of), of, end) < (int)cap;
}

/* The file is read, not mapped: a file that becomes shorter must not end the reader. */
static void *read_file(int fd, size_t *nbytes, char *why, size_t cap) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX) {
        snprintf(why, cap, "it is no file of at most %d MiB", FILE_MAX >> 20);
        return NULL;
    }
    size_t size = (size_t)st.st_size;
    char *image = aligned_alloc(8, (size + 8) / 8 * 8);
    if (image == NULL) {
        snprintf(why, cap, "no memory for its %zu bytes", size);
        return NULL;
    }
    for (*nbytes = 0; *nbytes < size;) {
        ssize_t n = read(fd, image + *nbytes, size - *nbytes);
        if (n < 0 && errno != EINTR) {
            snprintf(why, cap, "read: %s", strerror(errno));
            free(image);
            return NULL;
        }
        if (n == 0) {
            break;
        }
        *nbytes += n > 0 ? (size_t)n : 0;
    }
    return image;
}

dtr__recording *dtr__recording_load(const char *path, char *why, size_t cap) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, cap, "open: %s", strerror(errno));
        return NULL;
    }
    size_t nbytes = 0;
    void *image = read_file(fd, &nbytes, why, cap);
    close(fd);
    dtr__recording *r = image != NULL ? dtr__recording_parse(image, nbytes, why, cap) : NULL;
    free(image);
    if (r != NULL) {
        snprintf(r->path, sizeof r->path, "%s", path);
    }
    return r;
}

void dtr__recording_free(dtr__recording *r) {
    if (r != NULL) {
        free(r->groups);
        free(r->members);
        free(r->records);
        free(r->spans);
        free(r->stacks);
        free(r);
    }
}

/* ---- looking things up ---- */

const dtr__rec_group *dtr__recording_group(const dtr__recording *r, uint32_t id) {
    for (size_t i = 0; i < r->n_groups; i++) {
        if (atomic_load(&r->groups[i].id) == id) {
            return &r->groups[i];
        }
    }
    return NULL;
}

const dtr__rec_group *dtr__recording_group_uid(const dtr__recording *r, uint64_t uid) {
    for (size_t i = 0; i < r->n_groups; i++) {
        if (r->groups[i].uid == uid) {
            return &r->groups[i];
        }
    }
    return NULL;
}

bool dtr__recording_entered(const dtr__recording *r, const dtr__rec_group *g, uint64_t *seq) {
    *seq = 0;
    for (size_t i = 0; i < r->n_records; i++) {
        if (r->records[i].group == atomic_load(&g->id) && r->records[i].seq > *seq) {
            *seq = r->records[i].seq;
        }
    }
    /* No record of the group in a ring that has gone round says nothing. */
    return *seq != 0 || r->n_records == 0 || r->records[0].number == 1;
}

int dtr__recording_member(const dtr__recording *r, const dtr__rec_group *g, int group_rank) {
    if (group_rank < 0 || group_rank >= g->size) {
        return -1;
    }
    int64_t rank = -1;
    if (g->stride != 0 || g->size == 1) {
        rank = g->start + (int64_t)group_rank * g->stride;
    } else if (g->members >= 0) {
        rank = r->members[g->members + group_rank];
    }
    return rank >= 0 && rank < r->head.world_size ? (int)rank : -1;
}

const dtr__record *dtr__recording_last(const dtr__recording *r, bool over) {
    for (size_t i = r->n_records; i > 0; i--) {
        const dtr__record *rec = &r->records[i - 1];
        if (!dtr__record_captured(rec) && dtr__record_over(rec) == over) {
            return rec;
        }
    }
    return NULL;
}

/* Appends to text[*at], never past cap. */
static void DTR_PRINTF(4, 5) add(char *text, size_t cap, size_t *at, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = *at + 1 < cap ? vsnprintf(text + *at, cap - *at, fmt, args) : 0;
    va_end(args);
    *at += n < 0 ? 0 : (size_t)n < cap - *at ? (size_t)n : cap - *at - 1;
}

/* "0->2", as sender and receiver stand; of a receive "2<-0". */
static void add_ends(char *text, size_t cap, size_t *at, const dtr__record *rec, const char *kind,
                     const dtr__rec_group *g) {
    const char *way = strncmp(kind, "send", 4) == 0 ? "->" : "<-";
    if (g == NULL) {
        add(text, cap, at, " ?%s", way);
    } else {
        add(text, cap, at, " %d%s", g->own_rank, way);
    }
    if (rec->root_or_peer < 0) {
        add(text, cap, at, "any");
    } else {
        add(text, cap, at, "%d", rec->root_or_peer);
    }
}

/* Operators of the program have a number and no name of their own. */
static const char *op_name(const dtr__recording *r, unsigned op, char *text, size_t cap) {
    if ((op & DTR__RECORDING_USER_OP) != 0) {
        snprintf(text, cap, "user op %u%s", op % DTR__RECORDING_OP_COMMUTES,
                 (op & DTR__RECORDING_OP_COMMUTES) != 0 ? " (commutes)" : "");
        return text;
    }
    return op < DTR__RECORDING_OPS ? r->head.op[op] : "";
}

const char *dtr__recording_title(const dtr__recording *r, const dtr__record *rec, char *text,
                                 size_t cap) {
    const char *kind = rec->kind < DTR__RECORDING_KINDS ? r->head.kind[rec->kind] : "";
    char own[32];
    const char *op = op_name(r, rec->op, own, sizeof own);
    const dtr__rec_group *g = dtr__recording_group(r, rec->group);
    size_t at = 0;
    text[0] = '\0';
    add(text, cap, &at, "%s #%llu", kind[0] != '\0' ? kind : "operation",
        (unsigned long long)dtr__record_seq(rec));
    bool many = strncmp(kind, "coalesced", 9) == 0 || strcmp(kind, "batch_p2p") == 0;
    if (many && rec->tag >= 0) {
        add(text, cap, &at, " (%d operation%s)", rec->tag, rec->tag == 1 ? "" : "s");
    } else if (rec->tag >= 0) {
        add_ends(text, cap, &at, rec, kind, g);
    }
    uint64_t count = rec->count_in > rec->count_out ? rec->count_in : rec->count_out;
    if (count > 0 && !many) { /* types may differ there */
        add(text, cap, &at, " %s x %llu", dtr_dtype_name((dtr_dtype)rec->dtype),
            (unsigned long long)count);
    }
    if (strstr(kind, "reduce") != NULL && op[0] != '\0') {
        add(text, cap, &at, " %s", op);
    }
    if (rec->tag >= 0 && !many) {
        add(text, cap, &at, " tag %d", rec->tag);
    } else if (rec->root_or_peer >= 0) {
        add(text, cap, &at, " root %d", rec->root_or_peer);
    }
    if (rec->label[0] != '\0') {
        add(text, cap, &at, " '%s'", rec->label);
    }
    if (g != NULL) {
        add(text, cap, &at, " group '%s'", g->name);
    }
    if (dtr__record_captured(rec)) {
        add(text, cap, &at, " (captured)");
    }
    return text;
}

static bool say(const dtr__recording *r, const dtr__record *rec, bool fits, dtr__called *called) {
    const dtr__rec_group *g = fits ? dtr__recording_group(r, rec->group) : NULL;
    *called = (dtr__called){ 0 };
    if (g == NULL) {
        return false;
    }
    *called = (dtr__called){ .uid = g->uid,
                             .seq = dtr__record_seq(rec),
                             .fingerprint = rec->fingerprint,
                             .count_in = rec->count_in,
                             .count_out = rec->count_out,
                             .root = rec->root_or_peer,
                             .kind = rec->kind,
                             .dtype = rec->dtype,
                             .op = rec->op };
    memcpy(called->site, rec->site, sizeof called->site);
    return true;
}

bool dtr__record_called(const dtr__recording *r, const dtr__record *rec, dtr__called *called) {
    bool fits = rec != NULL && dtr__record_collective(r, rec);
    return say(r, rec, fits, called);
}

bool dtr__record_message(const dtr__recording *r, const dtr__record *rec, dtr__called *called) {
    bool fits = rec != NULL && (rec->flags & DTR__REC_PAIRED) != 0;
    return say(r, rec, fits, called);
}

/* Of several unfinished operations the oldest is the one that holds up the others. */
const dtr__record *dtr__recording_open(const dtr__recording *r) {
    for (size_t i = 0; i < r->n_records; i++) {
        if (!dtr__record_over(&r->records[i]) && !dtr__record_captured(&r->records[i])) {
            return &r->records[i];
        }
    }
    return NULL;
}

const dtr__record *dtr__recording_waited(const dtr__recording *r) {
    const dtr__record *open = dtr__recording_open(r);
    const dtr__record *last = open == NULL ? dtr__recording_last(r, true) : NULL;
    return last != NULL && last->status == DTR_ERR_TIMEOUT ? last : open;
}

/* Its watchdog counts on while it runs, so that neither the time of a stopped process nor that
 * after a failure is taken for the call's. */
double dtr__recording_stuck(const dtr__recording *r, const char **inside) {
    const int64_t since = atomic_load(&r->head.progress_still_ns);
    const int64_t still = since != 0 ? atomic_load(&r->head.beat_ns) - since : 0;
    *inside = (const char *)r->head.progress_inside;
    return still >= STUCK_NS && atomic_load(&r->head.phase) != DTR__PHASE_CLOSED
               ? (double)still * 1e-9
               : 0;
}

static void add_stuck(const dtr__recording *r, char *text, size_t cap, size_t *at) {
    const char *inside = "";
    const double s = dtr__recording_stuck(r, &inside);
    if (s > 0) {
        add(text, cap, at, "; its progress thread %s been inside %s for %.1f s",
            r->alive ? "has" : "had", inside[0] != '\0' ? inside : "one callback or reduction", s);
    }
}

const char *dtr__recording_doing(const dtr__recording *r, int64_t now, char *text, size_t cap) {
    char title[256];
    const dtr__record *open = dtr__recording_open(r), *last = dtr__recording_last(r, true);
    const dtr__record *of = open != NULL ? open : last;
    const char *stopped = r->alive && r->state == 'T' ? " and stopped (SIGSTOP)" : "";
    size_t at = 0;
    text[0] = '\0';
    if (of == NULL) {
        add(text, cap, &at, "it %s not begun any operation%s", r->alive ? "has" : "had", stopped);
        add_stuck(r, text, cap, &at);
        return text;
    }
    const char *site = of->site[0] != '\0' ? of->site : "a place that was not noted";
    double age = (double)(now - (open != NULL ? open->t_issued : last->t_finished)) * 1e-9;
    dtr__recording_title(r, of, title, sizeof title);
    if (!r->alive) {
        add(text, cap, &at,
            open != NULL ? "it was inside %s, called at %s"
                         : "it was outside the library; its last finished operation was %s, called "
                           "at %s",
            title, site);
    } else if (open != NULL) {
        add(text, cap, &at, "it is inside %s since %.1f s%s, called at %s", title, age, stopped,
            site);
    } else if (last->status < 0) {
        add(text, cap, &at,
            "it is outside the library since %.1f s%s; its last operation, %s, called at %s, ended "
            "with %s",
            age, stopped, title, site, dtr_status_name((dtr_status)last->status));
    } else {
        add(text, cap, &at,
            "it is outside the library since %.1f s%s; its last finished operation is %s, called "
            "at %s",
            age, stopped, title, site);
    }
    if (r->alive && r->state != '\0' && r->state != '?' && (open == NULL || stopped[0] != '\0')) {
        add(text, cap, &at, " (alive but not progressing since %.1f s, last at %s)", age, site);
    }
    if (atomic_load(&r->head.local.version) != 0 && r->head.local.t > of->t_issued) {
        add(text, cap, &at, "; its last call failed: %.300s", r->head.local.text);
    }
    add_stuck(r, text, cap, &at);
    return text;
}

bool dtr__process_look(uint32_t pid, uint64_t *start, char *state) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (n <= 0) {
        return false;
    }
    line[n] = '\0';
    /* The name in parentheses may hold anything; the state is field 3, the start field 22. */
    const char *at = strrchr(line, ')');
    if (at == NULL || at[1] != ' ' || at[2] == '\0') {
        return false;
    }
    *state = at[2];
    at += 2;
    for (int field = 3; field < 22 && at != NULL; field++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    *start = at != NULL ? strtoull(at, NULL, 10) : 0;
    return at != NULL;
}
