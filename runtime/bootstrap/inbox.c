/* Rings with one writer and one reader each, so that a rank that is killed at any place leaves
 * nothing locked. A message that does not fit is written in parts, as the reader makes room. To
 * ranks of other nodes messages go as notes over TCP. */
#include "bootstrap/inbox.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"

enum { RING_BYTES = 8192, LINE = 64 };
_Static_assert((RING_BYTES & (RING_BYTES - 1)) == 0, "counts of bytes wrap around");

/* Shared. Both counts only grow; written is the sender's, read the receiver's. */
typedef struct ring {
    _Alignas(LINE) _Atomic uint64_t written;
    _Alignas(LINE) _Atomic uint64_t read;
    _Alignas(LINE) unsigned char data[RING_BYTES];
} ring;

/* Shared, one per rank of the node. */
typedef struct owner {
    _Alignas(LINE) _Atomic uint64_t arrivals; /* grows after anything was written for it */
    _Atomic int pid;
    _Atomic uint64_t pids; /* in which namespace; set before pid */
} owner;

/* In front of the bytes of each message. */
typedef struct frame {
    uint32_t nbytes;
    int32_t tag;
    uint64_t uid;
} frame;

/* A message as it was sent, or as it comes. */
typedef struct message {
    struct message *next;
    int from;
    size_t done, nbytes; /* of frame and data, in the ring so far */
    frame frame;         /* the data follow without a gap */
    unsigned char data[];
} message;
_Static_assert(offsetof(message, data) == offsetof(message, frame) + sizeof(frame), "no gap");

typedef struct queue {
    message *first, *last;
} queue;

struct dtr__inbox {
    pthread_mutex_t lock; /* all but what is shared or constant */
    int rank, size, local, n_local;
    int *local_of;     /* [size], place on the node; -1: on another one */
    int *members;      /* [n_local], world ranks */
    int *host, n_host; /* all ranks of this host; NULL: those of the node */
    dtr__tcp *tcp;     /* NULL: there is one node */
    double limit_s;
    void *memory;
    size_t nbytes;
    owner *owner;            /* [n_local] */
    ring *ring;              /* [n_local][n_local], of sender and receiver */
    uint64_t seen;           /* arrivals up to here have been taken in */
    queue *out;              /* [n_local], not yet written as a whole */
    queue in;                /* received, oldest first */
    message **coming;        /* [n_local], of which a part is here */
    frame *head;             /* [n_local] */
    size_t *head_done;       /* [n_local], bytes of the next frame that are here */
    bool lost;               /* a message, for want of memory; the next receive says so */
    _Atomic int n_in, n_out; /* messages in these lists; written under lock, read without */
    _Atomic uint64_t looked; /* `seen`, for who does not hold the lock */
};

size_t dtr__inbox_bytes(int n_local) {
    const size_t n = (size_t)n_local;
    return LINE + n * sizeof(owner) + n * n * sizeof(ring);
}

/* Both are places on the node, as all that is indexed here. */
static ring *ring_of(const dtr__inbox *b, int from, int to) {
    return &b->ring[(size_t)from * (size_t)b->n_local + (size_t)to];
}

static void append(queue *q, message *m) {
    m->next = NULL;
    *(q->last != NULL ? &q->last->next : &q->first) = m;
    q->last = m;
}

static message *take(queue *q, message *before) {
    message **at = before != NULL ? &before->next : &q->first;
    message *m = *at;
    *at = m->next;
    q->last = q->last == m ? before : q->last;
    return m;
}

/* ---- rings ---- */

/* As much as there is place for. */
static size_t write_some(ring *r, const unsigned char *from, size_t nbytes) {
    const uint64_t w = atomic_load_explicit(&r->written, memory_order_relaxed);
    const uint64_t taken = w - atomic_load_explicit(&r->read, memory_order_acquire);
    const size_t n = nbytes < RING_BYTES - taken ? nbytes : (size_t)(RING_BYTES - taken);
    const size_t at = (size_t)(w % RING_BYTES), first = n < RING_BYTES - at ? n : RING_BYTES - at;
    memcpy(r->data + at, from, first);
    memcpy(r->data, from + first, n - first);
    atomic_store_explicit(&r->written, w + n, memory_order_release);
    return n;
}

/* As much as there is, nbytes at most; `to` NULL: it is of no use. */
static size_t read_some(ring *r, unsigned char *to, size_t nbytes) {
    const uint64_t c = atomic_load_explicit(&r->read, memory_order_relaxed);
    const uint64_t there = atomic_load_explicit(&r->written, memory_order_acquire) - c;
    const size_t n = nbytes < there ? nbytes : (size_t)there;
    const size_t at = (size_t)(c % RING_BYTES), first = n < RING_BYTES - at ? n : RING_BYTES - at;
    if (to != NULL) {
        memcpy(to, r->data + at, first);
        memcpy(to + first, r->data, n - first);
    }
    atomic_store_explicit(&r->read, c + n, memory_order_release);
    return n;
}

/* ---- sending; lock held ---- */

static void push_to(dtr__inbox *b, int to) {
    ring *r = ring_of(b, b->local, to);
    size_t n = 0;
    while (b->out[to].first != NULL) {
        message *m = b->out[to].first;
        const size_t some =
            write_some(r, (const unsigned char *)&m->frame + m->done, m->nbytes - m->done);
        m->done += some;
        n += some;
        if (m->done < m->nbytes) {
            break;
        }
        free(take(&b->out[to], NULL));
        atomic_fetch_sub(&b->n_out, 1);
    }
    if (n > 0) {
        atomic_fetch_add(&b->owner[to].arrivals, 1);
    }
}

static void push_all(dtr__inbox *b) {
    for (int to = 0; to < b->n_local && atomic_load(&b->n_out) > 0; to++) {
        push_to(b, to);
    }
}

dtr_status dtr__inbox_send(dtr__inbox *b, int to, int tag, uint64_t uid, const void *head,
                           size_t head_nbytes, const void *tail, size_t tail_nbytes) {
    const size_t nbytes = head_nbytes + tail_nbytes;
    const int at = b->local_of[to];
    if (at < 0) {
        return dtr__tcp_note(b->tcp, to, tag, uid, head, head_nbytes, tail, tail_nbytes);
    }
    message *m = malloc(sizeof *m + nbytes);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for a message of %zu bytes", nbytes);
    *m = (message){ .from = b->rank,
                    .nbytes = sizeof m->frame + nbytes,
                    .frame = { (uint32_t)nbytes, tag, uid } };
    memcpy(m->data, head, head_nbytes);
    if (tail_nbytes > 0) {
        memcpy(m->data + head_nbytes, tail, tail_nbytes);
    }
    pthread_mutex_lock(&b->lock);
    append(&b->out[at], m);
    atomic_fetch_add(&b->n_out, 1);
    push_to(b, at);
    pthread_mutex_unlock(&b->lock);
    return DTR_OK;
}

/* ---- receiving; lock held ---- */

/* The frame of the next message of a rank is here: memory for it. Without any it is read and
 * dropped, as the one behind it could not be found otherwise. */
static void begin(dtr__inbox *b, int from) {
    const frame f = b->head[from];
    message *m = malloc(sizeof *m + f.nbytes);
    if (m == NULL) {
        b->lost = true;
        return;
    }
    *m = (message){ .from = b->members[from], .nbytes = f.nbytes, .frame = f };
    b->coming[from] = m;
}

static void pull_from(dtr__inbox *b, int from) {
    ring *r = ring_of(b, from, b->local);
    for (;;) {
        size_t *head = &b->head_done[from];
        const size_t whole = sizeof(frame);
        if (*head < whole) {
            *head += read_some(r, (unsigned char *)&b->head[from] + *head, whole - *head);
            if (*head < whole) {
                return;
            }
            begin(b, from);
        }
        /* Of a dropped message the part that is still to come is counted behind its frame. */
        message *m = b->coming[from];
        const size_t done = m != NULL ? m->done : *head - whole;
        const size_t n =
            read_some(r, m != NULL ? m->data + done : NULL, b->head[from].nbytes - done);
        *(m != NULL ? &m->done : head) += n;
        if (done + n < b->head[from].nbytes) {
            return;
        }
        *head = 0;
        b->coming[from] = NULL;
        if (m != NULL) {
            append(&b->in, m);
            atomic_fetch_add(&b->n_in, 1);
        }
    }
}

/* One that has come over TCP, whose lock is held. */
static void take_note(void *arg, int from, int tag, uint64_t uid, const void *data, size_t nbytes) {
    dtr__inbox *b = arg;
    message *m = malloc(sizeof *m + nbytes);
    pthread_mutex_lock(&b->lock);
    b->lost |= m == NULL;
    if (m != NULL) {
        *m = (message){ .from = from, .nbytes = nbytes, .frame = { (uint32_t)nbytes, tag, uid } };
        memcpy(m->data, data, nbytes);
        append(&b->in, m);
    }
    atomic_fetch_add(&b->n_in, m != NULL);
    pthread_mutex_unlock(&b->lock);
}

static void pull_all(dtr__inbox *b) {
    const uint64_t arrivals = atomic_load(&b->owner[b->local].arrivals);
    if (arrivals != b->seen) {
        b->seen = arrivals;
        for (int from = 0; from < b->n_local; from++) {
            pull_from(b, from);
        }
        atomic_store(&b->looked, arrivals);
    }
}

static message *find(dtr__inbox *b, int tag, uint64_t uid, int from) {
    message *before = NULL;
    for (message *m = b->in.first; m != NULL; before = m, m = m->next) {
        if (m->frame.tag == tag && m->frame.uid == uid && (from < 0 || m->from == from)) {
            atomic_fetch_sub(&b->n_in, 1);
            return take(&b->in, before);
        }
    }
    return NULL;
}

/* Asked in every poll: where nothing has come and nothing waits, by three loads, and a look at the
 * clock where there are other nodes. */
static bool is_idle(const dtr__inbox *b) {
    return atomic_load_explicit(&b->owner[b->local].arrivals, memory_order_acquire) ==
               atomic_load_explicit(&b->looked, memory_order_relaxed) &&
           atomic_load_explicit(&b->n_in, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&b->n_out, memory_order_relaxed) == 0 &&
           (b->tcp == NULL || !dtr__tcp_is_due(b->tcp));
}

void dtr__inbox_poll(dtr__inbox *b) {
    if (b != NULL && b->tcp != NULL && dtr__tcp_is_due(b->tcp)) {
        dtr__tcp_poll(b->tcp);
    }
}

dtr_status dtr__inbox_receive(dtr__inbox *b, int tag, uint64_t uid, int from, void **data,
                              size_t *nbytes, int *source) {
    *data = NULL;
    if (is_idle(b)) {
        return DTR_OK;
    }
    dtr__inbox_poll(b);
    pthread_mutex_lock(&b->lock);
    push_all(b);
    pull_all(b);
    message *m = find(b, tag, uid, from);
    const bool lost = b->lost;
    b->lost = false;
    pthread_mutex_unlock(&b->lock);
    if (m != NULL) {
        *nbytes = m->nbytes;
        *source = m->from;
        *data = memmove(m, m->data, m->nbytes); /* to the start of what is freed */
    }
    DTR_REQUIRE(!lost, NULL, DTR_ERR_NOMEM, "no memory for a message of another rank: it is lost");
    return DTR_OK;
}

/* ---- whose it is ---- */

static uint64_t own_pids(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

int dtr__inbox_claim(dtr__inbox *b) {
    int other = 0;
    owner *own = &b->owner[b->local];
    atomic_store(&own->pids, own_pids());
    return atomic_compare_exchange_strong(&own->pid, &other, (int)getpid()) ? 0 : other;
}

int dtr__inbox_pid(const dtr__inbox *b, int rank) {
    const int at = b->local_of[rank];
    return at >= 0 ? atomic_load(&b->owner[at].pid) : (int)dtr__tcp_place_of(b->tcp, rank)->pid;
}

bool dtr__inbox_has_ended(const dtr__inbox *b, int rank) {
    const int at = b->local_of[rank];
    if (at < 0) {
        return dtr__tcp_has_ended(b->tcp, rank);
    }
    const int pid = dtr__inbox_pid(b, rank);
    if (pid == 0 || rank == b->rank || atomic_load(&b->owner[at].pids) != own_pids()) {
        return false; /* or it cannot be seen from here */
    }
    struct pollfd p = { .fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
    if (p.fd < 0) {
        return errno == ESRCH;
    }
    const bool ended = poll(&p, 1, 0) > 0; /* also one that nobody has waited for */
    close(p.fd);
    return ended;
}

const int *dtr__inbox_members(const dtr__inbox *b, int *n) {
    *n = b->n_local;
    return b->members;
}

const int *dtr__inbox_host(const dtr__inbox *b, int *n) {
    *n = b->host != NULL ? b->n_host : b->n_local;
    return b->host != NULL ? b->host : b->members;
}

dtr__tcp *dtr__inbox_tcp(const dtr__inbox *b) {
    return b->tcp;
}

double dtr__inbox_limit(const dtr__inbox *b) {
    return b->limit_s;
}

/* ---- life ---- */

static void free_all(queue *q) {
    while (q->first != NULL) {
        free(take(q, NULL));
    }
}

static void destroy(dtr__inbox *b) {
    for (int i = 0; i < b->n_local; i++) {
        if (b->out != NULL) {
            free_all(&b->out[i]);
        }
        if (b->coming != NULL) {
            free(b->coming[i]);
        }
    }
    free_all(&b->in);
    pthread_mutex_destroy(&b->lock);
    free(b->out);
    free((void *)b->coming);
    free(b->head);
    free(b->head_done);
    free(b->local_of);
    free(b->members);
    free(b->host);
    free(b);
}

/* Tables of a rank in a node of so many. */
static bool make_tables(dtr__inbox *b, const int *members) {
    const size_t n = (size_t)b->n_local;
    b->out = calloc(n, sizeof *b->out);
    b->coming = (message **)calloc(n, sizeof *b->coming);
    b->head = calloc(n, sizeof *b->head);
    b->head_done = calloc(n, sizeof *b->head_done);
    b->members = calloc(n, sizeof *b->members);
    b->local_of = calloc((size_t)b->size, sizeof *b->local_of);
    if (b->out == NULL || b->coming == NULL || b->head == NULL || b->head_done == NULL ||
        b->members == NULL || b->local_of == NULL) {
        return false;
    }
    memset(b->local_of, -1, (size_t)b->size * sizeof *b->local_of);
    for (int i = 0; i < b->n_local; i++) {
        b->members[i] = members[i];
        b->local_of[members[i]] = i;
    }
    b->local = b->local_of[b->rank];
    return true;
}

dtr__inbox *dtr__inbox_new(void *memory, size_t nbytes, int rank, int size, const int *members,
                           int n_members, double limit_s) {
    dtr__inbox *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return NULL;
    }
    pthread_mutex_init(&b->lock, NULL);
    b->rank = rank;
    b->size = size;
    b->n_local = n_members;
    b->limit_s = limit_s;
    if (!make_tables(b, members)) {
        destroy(b);
        return NULL;
    }
    b->memory = memory;
    b->nbytes = nbytes;
    b->owner = (owner *)(void *)((char *)memory + LINE);
    b->ring = (ring *)(void *)(b->owner + n_members);
    return b;
}

void dtr__inbox_use_tcp(dtr__inbox *b, dtr__tcp *tcp) {
    b->tcp = tcp;
    dtr__tcp_on_note(tcp, take_note, b);
}

void dtr__inbox_set_host(dtr__inbox *b, int *ranks, int n) {
    b->host = ranks;
    b->n_host = n;
}

void dtr__inbox_free(dtr__inbox *b) {
    if (b == NULL) {
        return;
    }
    dtr__backoff pause = { 0 };
    const double end = dtr__now() + 0.2;
    while (atomic_load(&b->n_out) > 0 && dtr__now() < end) {
        pthread_mutex_lock(&b->lock);
        push_all(b);
        pthread_mutex_unlock(&b->lock);
        dtr__backoff_pause(NULL, &pause);
    }
    dtr__tcp_free(b->tcp);
    munmap(b->memory, b->nbytes);
    destroy(b);
}
