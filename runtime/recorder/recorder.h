/* The flight recorder as those see it who record operations: one fixed 256-byte record per
 * operation in a ring, slot = number mod size. */
#ifndef DTR_RT_RECORDER_H
#define DTR_RT_RECORDER_H

#include "base/world.h"

dtr_status dtr__recorder_open(dtr_world *world);
void dtr__recorder_close(dtr_world *world);
/* Something failed or was asked for, so what the job has written stays after its end. */
bool dtr__recorder_is_evidence(const dtr_world *world);

typedef enum dtr__rec_state {
    DTR__REC_ISSUED = 1,
    DTR__REC_ENQUEUED,
    DTR__REC_STARTED,
    DTR__REC_FINISHED,
    DTR__REC_FAILED
} dtr__rec_state;
/* What an operation is, in dtr__record.flags. */
enum {
    DTR__REC_P2P = 1,
    DTR__REC_MEMBER = 2,   /* inside the operation recorded before it, with the same number */
    DTR__REC_CAPTURED = 4, /* kept in a graph of CUDA: has no end, and its runs no record */
    DTR__REC_BLOCKING = 8,
    DTR__REC_TOGETHER = 32, /* of a batch's entries: they end when its own record says so */
    DTR__REC_PAIRED = 64,   /* of a message: `fingerprint` is its number, equal at its other end */
    DTR__REC_APART = 128 /* of a message that followed others (dtr__rec_follow): instead of that */
};
typedef struct dtr__record {
    uint64_t number; /* position since the start of the world, from 1; in the ring 0 before the
                        first use and UINT64_MAX while being written */
    uint32_t group, world_serial;
    uint64_t seq, p2p_seq, op_id;
    uint8_t kind, backend, state, dtype;
    uint8_t flags, op;
    int16_t device;
    int32_t root_or_peer, tag; /* -1: none; of a batch or scope `tag` says of how many operations */
    uint64_t count_in, count_out, nbytes, fingerprint;
    char label[40]; /* cut with a trailing '~' */
    char site[48];  /* file and line, or module and address: the name is cut with a trailing '~' */
    uint32_t thread;
    int32_t status;
    int64_t t_issued, t_enqueued, t_started, t_finished, deadline; /* monotonic ns, 0 = not yet */
    /* In the ring: how many calls have followed it closely (dtr__rec_follow), with how many records
     * before it they follow as well in the upper half, and when the last of them was issued.
     * Readers make records of those, which have the number of the one they followed, and their
     * place behind it here; times are estimates. 0: not one of those. */
    uint64_t follower;
    int64_t t_follower;
    uint64_t hash_in, hash_out; /* of the bytes, with DTR_HASH=1; 0: none */
} dtr__record;
_Static_assert(sizeof(dtr__record) == 256, "the ring is read by other programs");
/* Starts a record; the fields that describe the operation are copied from `r`. Returns its number
 * (from 1). */
uint64_t dtr__rec_begin(dtr_world *world, const dtr__record *r);
/* The same of a record that is kept from call to call: all that describes the operation stays as it
 * was, with its state and times it is complete. */
uint64_t dtr__rec_begin_again(dtr_world *world, dtr__record *r);
/* Notes a state and its time; does nothing when the slot was reused. */
void dtr__rec_mark(dtr_world *world, uint64_t number, dtr__rec_state state, dtr_status status);
/* When an operation began on its device; does nothing when the slot was reused. */
void dtr__rec_began(dtr_world *world, uint64_t number, int64_t at_ns);
/* With DTR_HASH=1: the bytes that the operation has given, before its end is noted. */
void dtr__rec_hash_out(dtr_world *world, uint64_t number, uint64_t hash);
/* With DTR_RECORDER_STACK=1, else nothing: who called the public function that returns to
 * `return_address`, by the thread that is inside it. */
void dtr__rec_stack(dtr_world *world, uint64_t number, const void *return_address);
/* Success at a time just looked at, noted by the thread that issued the operation. */
void dtr__rec_finish(dtr_world *world, uint64_t number, int64_t now_ns);

/* A call that is made again and again, each time right after the one before, does not need a record
 * each time, nor do the entries of a batch: of those that follow one the recording has the last
 * one's number and time, which are a few words per group. What makes a difference ends the run:
 * another record of any group, another thread, a pause, a call that takes long. So does every
 * DTR__REC_RUN_MOST'th number, so that all ranks have records of the same calls; a run of messages
 * has as many. With metrics there are no runs. Of messages some may come in turn, as a send and a
 * receive: then each follows the one that it is like. */
enum {
    DTR__REC_RUN_MOST = 64,
    DTR__REC_RUN_ENTRIES = 8, /* of a batch in a run */
    DTR__REC_RUN_TURNS = 4    /* messages in turn */
};
typedef struct dtr__rec_followers { /* in the recording; one writer, atomic words */
    _Atomic uint64_t record;        /* number of the one they follow, 0: none; written last */
    _Atomic uint64_t begun, ended;  /* sequence numbers of the last ones; at first the record's */
    _Atomic int64_t t_begun;
    _Atomic uint64_t turns;   /* records that they follow in turn: `record` and those before it */
    _Atomic uint64_t waiting; /* bit number % 64 of each that is still under way, beside the last */
    uint64_t reserved[2];
} dtr__rec_followers;
/* A message that has a record: its sort, its number, the record's. */
typedef struct dtr__rec_turn {
    uint64_t sort, seq, number;
} dtr__rec_turn;
typedef struct dtr__rec_run {
    dtr__rec_followers *words;         /* NULL: the recording has no room for the group's */
    uint64_t sort[DTR__REC_RUN_TURNS]; /* of calls, as they come in turn */
    uint32_t turns, turn;              /* how many; whose it is */
    uint64_t number;                   /* of the record; 0: there is no run */
    uint64_t last;        /* number of its last entry's record, without entries its own */
    uint64_t first, next; /* sequence numbers: the record's, and what may follow */
    uint64_t end;         /* the first that may not */
    uint64_t waiting;     /* as in the words */
    int64_t t;            /* of the last call */
    uint32_t thread;
    uint32_t n_recent; /* messages with records so far; the newest of them: */
    dtr__rec_turn recent[DTR__REC_RUN_TURNS];
} dtr__rec_run;
/* A record for a call of some sort, by which a run begins; those of its `entries` are to come right
 * behind it. Returns its number. */
uint64_t dtr__rec_run_begin(dtr_world *world, dtr__rec_run *run, uint64_t sort,
                            const dtr__record *r, uint64_t entries);
/* The same of a message whose record is kept from call to call (dtr__rec_begin_again). Its run
 * begins once it is clear what comes in turn. */
uint64_t dtr__rec_run_message(dtr_world *world, dtr__rec_run *run, uint64_t sort, dtr__record *r);
/* Whether call `seq`, of messages its number among these, follows closely; then it is noted as
 * begun, and dtr__rec_follower_ended or dtr__rec_run_begin is to come. */
bool dtr__rec_follow(const dtr_world *world, dtr__rec_run *run, uint64_t sort, uint64_t seq,
                     int64_t now_ns);
static inline void dtr__rec_follower_ended(const dtr__rec_run *run, uint64_t seq) {
    atomic_store_explicit(&run->words->ended, seq, memory_order_release);
}
/* The same of a message that is over, or is left under way while others may follow; of the latter
 * dtr__rec_message_came tells when it has ended well. One that fails, and all that are still under
 * way when the run is to end, need records of their own before, with DTR__REC_APART. */
bool dtr__rec_follow_message(const dtr_world *world, dtr__rec_run *run, uint64_t sort, uint64_t seq,
                             int64_t now_ns, bool over);
static inline void dtr__rec_message_came(dtr__rec_run *run, uint64_t seq) {
    run->waiting &= ~(UINT64_C(1) << seq % DTR__REC_RUN_MOST);
    atomic_store_explicit(&run->words->waiting, run->waiting, memory_order_release);
}

/* Copies the newest records, oldest first; returns how many (at most cap). For dumps and tests. */
size_t dtr__rec_read(const dtr_world *world, dtr__record *out, size_t cap);

typedef enum dtr__world_phase {
    DTR__PHASE_OPENING = 1,
    DTR__PHASE_RUNNING,
    DTR__PHASE_EXITED,     /* exit() or return from main while the world was open */
    DTR__PHASE_DESTROYING, /* inside dtr_world_destroy, all peers have agreed or cannot */
    DTR__PHASE_CLOSED,
    DTR__PHASE_ABANDONED /* a progress thread was left behind; peers wait in vain */
} dtr__world_phase;

/* The rest of a recording (recorder/recorder_file.c). Groups as they are made and destroyed; what
 * kinds and operators are called; with this thread's last error: what broke a group, and a call
 * that was refused. */
void dtr__rec_phase(dtr_world *world, dtr__world_phase phase);
dtr__rec_followers *dtr__rec_group_add(dtr_world *world, uint32_t id, uint64_t uid,
                                       const char *name, int own_rank, int size,
                                       const int *world_ranks);
void dtr__rec_group_end(dtr_world *world, uint32_t id);
void dtr__rec_names(dtr_world *world, const char *(*kind)(int), int kinds, const char *(*op)(int),
                    int ops);
void dtr__rec_failure(dtr_world *world, uint32_t group, dtr_status s);
void dtr__rec_refused(dtr_world *world, dtr_status s);
/* A group has broken on another node, by this cause, of which 255 bytes count: the watchdogs of
 * this node's ranks read of it and dump. On the watchdog thread. */
void dtr__rec_remote_failure(dtr_world *world, const char *cause);
/* The progress thread has ended, so that it is not stuck. */
void dtr__rec_progress_moves(dtr_world *world);

#endif /* DTR_RT_RECORDER_H */
