/* The file that a rank's flight recorder lives in, and reading it: a live rank's mapping, a peer's,
 * or the file that a dead rank has left. All numbers are little or big endian as the host is; all
 * offsets are from the start of the file. */
#ifndef DTR_RT_RECORDING_H
#define DTR_RT_RECORDING_H

#include "base/world.h"
#include "recorder/recorder.h"

#define DTR__RECORDING_MAGIC UINT64_C(0x3130636552727444) /* "DtrRec01" on a little-endian host */
enum {
    DTR__RECORDING_VERSION = 12,
    DTR__RECORDING_GROUPS = 256,   /* live groups with full detail */
    DTR__RECORDING_MEMBERS = 8192, /* of groups whose members are not evenly spaced */
    DTR__RECORDING_KINDS = 64,
    DTR__RECORDING_OPS = 32,
    /* In a record's `op`: an operator of the program; whether it commutes; the rest is its number.
     */
    DTR__RECORDING_USER_OP = 128,
    DTR__RECORDING_OP_COMMUTES = 64,
    DTR__RECORDING_NAME = 24,
    DTR__RECORDING_INSIDE = 4, /* words of text */
    DTR__RECORDING_SETTINGS = 4096,
    DTR__RECORDING_ENTRIES_MAX = 1 << 20,
    DTR__RECORDING_SPANS = 4096,
    DTR__RECORDING_STEPS = 32, /* the newest of training */
    DTR__RECORDING_FRAMES = 8,
    DTR__RECORDING_MODULES = 64,
    DTR__RECORDING_RANKS_MAX = 1 << 20
};

/* An error text that is written while others may read: `version` is odd while it changes, 0 before
 * the first time. */
typedef struct dtr__rec_error {
    _Atomic uint32_t version;
    int32_t status;
    uint64_t seq;
    int64_t t; /* monotonic ns */
    char operation[40], group[64], text[1024];
} dtr__rec_error;
/* Of this process or of another one of the node. False: it is just being written. */
bool dtr__rec_error_copy(const dtr__rec_error *e, dtr__rec_error *copy);

/* A step of gradient averaging, or its times, where these are known later (steps is 0 then).
 * Readers copy word by word, in order: `done` is written last and looked at first. */
typedef struct dtr__rec_step {
    _Atomic uint64_t done; /* as of a record; 0: none */
    _Atomic uint64_t steps;
    _Atomic int64_t t; /* when it was noted, monotonic ns */
    _Atomic int64_t comm_ns, exposed_ns;
    _Atomic uint64_t begun;
} dtr__rec_step;

typedef struct dtr__rec_header {
    uint64_t magic;
    uint32_t version, header_bytes, record_bytes, group_bytes;
    uint64_t entries; /* records in the ring, a power of two */
    uint64_t groups_at, groups, members_at, members, ring_at, file_bytes;
    uint64_t nonce;  /* by which a peer recognises the file */
    uint64_t job_id; /* equal on all ranks of a world, never used twice */
    int32_t world_rank, world_size, local_rank, local_size, node, node_count;
    uint32_t pid, world_serial;
    uint64_t pid_start;       /* clock ticks since boot, as in /proc/PID/stat */
    int64_t mono_ns, real_ns; /* both clocks at the same moment */
    char host[64], library[32], command[256];
    char settings[DTR__RECORDING_SETTINGS]; /* NAME=value lines of what is not the default */
    char kind[DTR__RECORDING_KINDS][DTR__RECORDING_NAME];
    char op[DTR__RECORDING_OPS][DTR__RECORDING_NAME];
    /* What changes while the rank runs; atomic words, or errors as above. */
    _Atomic uint32_t phase;
    _Atomic uint32_t dump_requested;
    _Atomic int64_t beat_ns;       /* of the watchdog thread; 0: there is none */
    dtr__rec_error failure, local; /* the first that broke a group; the last refused call */
    /* dump_requested is raised by dtr-doctor, dump_asked by the rank itself once it wants dumps of
     * its node's ranks, for a reason; dumps counts those written. */
    char dump_reason[256];
    _Atomic uint32_t dump_asked, dumps;
    uint64_t spans_at, spans; /* in their ring, a power of two */
    /* As many as there are records, or 0; the modules are behind them. */
    uint64_t stacks_at, stacks;
    /* Of the progress thread: changes whenever it moves, 0 while it sleeps or there is none. Once
     * it has not moved for a round of the watchdog, which writes both: the native call that it is
     * inside, 0: none; and since when, monotonic ns, 0: it moves. */
    _Alignas(64) _Atomic uint64_t progress_beat;
    _Atomic uint64_t progress_inside[DTR__RECORDING_INSIDE];
    _Atomic int64_t progress_still_ns;
    /* What broke a group on another node, as it was reported to this rank; counts such reports. */
    _Atomic uint32_t remote_failures;
    char remote_failure[256];
    /* A ring: slot = number mod size; last_step counts all that were noted. */
    _Atomic uint64_t last_step;
    dtr__rec_step step[DTR__RECORDING_STEPS];
    /* Raised by dtr-top, which then reads what this rank knows of the ranks of other hosts
     * (diagnosis/remote_ranks.h). */
    _Atomic uint32_t remote_asked;
} dtr__rec_header;

typedef struct dtr__rec_group {
    _Atomic uint32_t id; /* 0: free; written last */
    uint32_t gone;       /* 1: destroyed */
    uint64_t uid;        /* equal on all members; one more than the id that people are shown */
    int32_t size, own_rank;
    int32_t start, stride; /* member i is start + i * stride; stride 0: see members */
    int32_t members;       /* index into the members, -1: not kept */
    int32_t status;        /* what broke it */
    char name[64];
    uint64_t reserved[3];
    dtr__rec_followers followers; /* of its newest record */
} dtr__rec_group;
_Static_assert(sizeof(dtr__rec_group) == 192 && offsetof(dtr__rec_group, followers) == 128,
               "part of the file format; whole cache lines");

/* A stretch of time that is no operation, as a backward pass: written when it is over. The ring is
 * one of its own, so that spans drive no operation out of the other. */
typedef struct dtr__rec_span {
    uint64_t number;        /* as of a record */
    int64_t t_begin, t_end; /* monotonic ns */
    uint64_t nbytes;
    uint32_t thread, reserved;
    char what[24], label[64]; /* cut where too long */
} dtr__rec_span;
_Static_assert(sizeof(dtr__rec_span) == 128, "part of the file format");

/* From where an operation was called, in the slot of its record, and what the addresses lie in. */
typedef struct dtr__rec_frames {
    uint64_t number;                       /* of the record */
    uint64_t frame[DTR__RECORDING_FRAMES]; /* innermost first: the module's place + 1 in the upper
                                              16 bits, the offset in it below; 0: no more */
    uint64_t unused[7];
} dtr__rec_frames;
typedef struct dtr__rec_module {
    _Atomic uint64_t base; /* 0: free; written last */
    char name[56];
} dtr__rec_module;
_Static_assert(sizeof(dtr__rec_frames) == 128 && sizeof(dtr__rec_module) == 64,
               "part of the file format");
static inline uint64_t dtr__rec_stack_bytes(uint64_t stacks) {
    return stacks == 0 ? 0
                       : stacks * sizeof(dtr__rec_frames) +
                             DTR__RECORDING_MODULES * sizeof(dtr__rec_module);
}

/* ---- writing (recorder/recorder.c, recorder/recorder_file.c) ---- */

/* Memory of a recorder: its file, or memory that a peer reaches through /proc, or plain memory. */
typedef struct dtr__rec_memory {
    dtr__rec_header *header;
    size_t nbytes;
    int fd;           /* -1: plain memory */
    char path[512];   /* "": no file */
    char folder[448]; /* "": nothing to remove, the user named it */
} dtr__rec_memory;
dtr_status dtr__rec_memory_open(dtr_world *world, uint64_t entries, dtr__rec_memory *m);
/* `keep`: the evidence of a failure stays. */
void dtr__rec_memory_close(dtr__rec_memory *m, bool keep);

/* The first look at a stack allocates memory, which is better done before there are operations
 * (recorder/stack.c). */
void dtr__rec_stack_warm(dtr__rec_header *h);

/* Note a span that has ended; no system call, no waiting. */
void dtr__rec_span_add(dtr_world *world, const char *what, const char *label, int64_t begin_ns,
                       int64_t end_ns, uint64_t nbytes);

/* Note `steps` of training that have ended now, and the time that communication took of steps, with
 * the part of it that was waited for. Any thread. */
void dtr__rec_step_add(dtr_world *world, uint64_t steps, double comm_s, double exposed_s);

dtr__rec_header *dtr__recorder_header(const dtr_world *world); /* NULL: no recorder (yet) */
/* One more line, "NAME=value", behind the settings in the header, while the world is made. */
void dtr__rec_add_setting(const dtr_world *world, const char *line);
const dtr__rec_memory *dtr__recorder_memory(const dtr_world *world);

/* ---- reading ---- */

/* Since a start, up to 73 years. */
static inline bool dtr__rec_is_time(int64_t ns) {
    return ns >= 0 && ns < INT64_C(1) << 61;
}

typedef struct dtr__recording {
    dtr__rec_header head; /* all texts end, all numbers are in range */
    dtr__rec_group *groups;
    size_t n_groups;
    int32_t *members;
    size_t n_members;
    dtr__record *records; /* oldest first: by number, then followers */
    size_t n_records, torn;
    dtr__rec_span *spans; /* by number, oldest first; none after a glance */
    size_t n_spans;
    dtr__rec_frames *stacks; /* as in the file, with the modules; NULL: none, and after a glance */
    uint64_t n_stacks;
    bool alive; /* set by who asks: the process that wrote it still runs */
    char state; /* and how, as in /proc */
    char path[512];
} dtr__recording;

/* Copies what an image of `nbytes` holds; the image may change meanwhile. NULL, and why, when it is
 * no recording, of another version, or cut off in its header. */
dtr__recording *dtr__recording_parse(const void *image, size_t nbytes, char *why, size_t cap);
/* The same with the newest `most` records only, which costs little; NULL: not to be read. */
dtr__recording *dtr__recording_glance(const void *image, size_t nbytes, size_t most);
/* From the `n` records in order, which stay at the front of `all`, those and their followers, of
 * these as many of the newest as there is room for; returns how many (recorder/runs.c). A batch's
 * entries lie behind it, and so do its followers' behind each of them. */
size_t dtr__runs_expand(const dtr__recording *r, dtr__record *all, size_t n, size_t capacity);
dtr__recording *dtr__recording_load(const char *path, char *why, size_t cap);
void dtr__recording_free(dtr__recording *r);

const dtr__rec_group *dtr__recording_group(const dtr__recording *r, uint32_t id);
const dtr__rec_group *dtr__recording_group_uid(const dtr__recording *r, uint64_t uid);
/* What it is inside, else what it gave up last for a time-out, for then it has waited in vain;
 * NULL: nothing of either. */
const dtr__record *dtr__recording_waited(const dtr__recording *r);
/* Newest collective number of the group that the rank has entered; false: the recording is too
 * short to say. */
bool dtr__recording_entered(const dtr__recording *r, const dtr__rec_group *g, uint64_t *seq);
/* World rank of a member, -1: not known. */
int dtr__recording_member(const dtr__recording *r, const dtr__rec_group *g, int group_rank);
/* "allreduce #17 f32 x 1024 sum 'grad.3' group 'world'" */
const char *dtr__recording_title(const dtr__recording *r, const dtr__record *rec, char *text,
                                 size_t cap);
/* "train+0x1234 < train+0x88 < libc.so.6+0x27", innermost first; "" where none is recorded. */
const char *dtr__recording_stack(const dtr__recording *r, const dtr__record *rec, char *text,
                                 size_t cap);
static inline uint64_t dtr__record_seq(const dtr__record *r) {
    return r->seq != 0 ? r->seq : r->p2p_seq;
}
static inline bool dtr__record_over(const dtr__record *r) {
    return r->state == DTR__REC_FINISHED || r->state == DTR__REC_FAILED;
}
/* A collective of the program, and not a call inside another one. */
static inline bool dtr__record_collective(const dtr__recording *r, const dtr__record *rec) {
    return rec->seq != 0 && rec->seq < UINT64_C(1) << 62 && (rec->flags & DTR__REC_MEMBER) == 0 &&
           rec->kind < DTR__RECORDING_KINDS && r->head.kind[rec->kind][0] != '\0';
}
static inline bool dtr__record_captured(const dtr__record *r) {
    return (r->flags & DTR__REC_CAPTURED) != 0;
}
/* What a rank has called, as far as ranks can disagree on it. Whole words: it is sent as it is. */
typedef struct dtr__called {
    uint64_t uid, seq; /* of the group, of the collective; seq 0: nothing */
    uint64_t fingerprint, count_in, count_out;
    int32_t root;                    /* of a message: the peer */
    uint8_t kind, dtype, op, unused; /* as in a record */
    char site[48];
} dtr__called;

/* What others compare of a collective; false, and seq 0: `rec` is NULL or something else. */
bool dtr__record_called(const dtr__recording *r, const dtr__record *rec, dtr__called *called);
/* The same of a message whose number its other end has too, which is its fingerprint; root is the
 * peer. */
bool dtr__record_message(const dtr__recording *r, const dtr__record *rec, dtr__called *called);
/* Newest record that has ended / that has not; NULL: none. Captured ones are neither. */
const dtr__record *dtr__recording_last(const dtr__recording *r, bool over);

const dtr__record *dtr__recording_open(const dtr__recording *r); /* oldest that has not ended */
/* "it is inside allreduce #17 ... since 2.1 s, called at train.c:15"; `now` on the rank's clock. */
const char *dtr__recording_doing(const dtr__recording *r, int64_t now, char *text, size_t cap);

/* Whether the progress thread has not moved for so long that it is worth a word: seconds, and the
 * call that it is inside, "" where it is in none. 0: it moves. */
double dtr__recording_stuck(const dtr__recording *r, const char **inside);

/* The newest steps that a recording holds, oldest first; returns how many (recorder/steps.c). */
size_t dtr__recording_steps(const dtr__recording *r,
                            const dtr__rec_step *step[DTR__RECORDING_STEPS]);

/* What dtr-top says of a rank in numbers. Whole words: it is sent as it is. */
typedef struct dtr__rates {
    double operations_per_s, gb_per_s; /* that have ended within the window */
    double steps_per_s, exposed;       /* of gradient averaging; < 0: there is none */
} dtr__rates;
/* `now` on the rank's clock, `window_s` until then (recorder/rates.c). */
void dtr__recording_rates(const dtr__recording *r, int64_t now, double window_s, dtr__rates *rates);

/* A file beside the recording `of`: its name with another end; false: it has none. */
bool dtr__recording_beside(const char *of, const char *end, char *path, size_t cap);

/* A process's start time and state letter from /proc; false when it is gone. */
bool dtr__process_look(uint32_t pid, uint64_t *start, char *state);

#endif /* DTR_RT_RECORDING_H */
