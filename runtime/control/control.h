/* The control plane between nodes: what the ranks of other nodes do, and that they have died, over
 * TCP between one acting rank of each node and the others. Lives on the watchdog threads and calls
 * no MPI after world creation. docs/internals/between-nodes.md says how. */
#ifndef DTR_RT_CONTROL_H
#define DTR_RT_CONTROL_H

#include "base/world.h"
#include "recorder/recording.h"

enum {
    DTR__REPORT_GROUPS = 12,
    DTR__REPORT_BEFORE = 8,
    DTR__REPORT_TEXT = 720,
    DTR__RANK_FAILURE_TEXT = 1100
};

/* What a rank does, as its node has reported it. Sent as it is: no pointers, whole words. */
typedef struct dtr__rank_report {
    int64_t seen_ns;  /* when it came, on this host's clock */
    int64_t fresh_ns; /* it was made after this moment of this host's clock, when its node was asked
                       * for one; 0: that is not known */
    int32_t rank;     /* of the world */
    uint32_t n_groups;
    uint64_t in_uid, in_seq; /* group and number of what it is inside or gave up; 0: nothing */
    uint64_t in_over;        /* 1: it gave it up */
    uint64_t state;          /* of its process, as in /proc: 'T' is stopped; 0: it has left */
    double since_s;          /* the newest operation began, or ended; < 0: none yet */
    dtr__rates rates;        /* over the last second */
    struct {
        uint64_t uid, seq; /* newest collective entered */
    } group[DTR__REPORT_GROUPS];
    dtr__called called;                     /* the collective it is inside, else the last one */
    dtr__called before[DTR__REPORT_BEFORE]; /* those of its group before that, newest first */
    dtr__called message;                    /* one of those that dtr__record_message knows */
    char doing[DTR__REPORT_TEXT];           /* as dtr__recording_doing says it */
} dtr__rank_report;
_Static_assert(sizeof(dtr__rank_report) % sizeof(uint64_t) == 0, "kept word by word");

typedef struct dtr__control dtr__control;
/* Called for failed ranks of other nodes, on the watchdog thread; it must not block. */
typedef void (*dtr__control_rank_failed)(dtr_world *world, int world_rank, dtr_status status,
                                         const char *text);

/* Collective over the world. Where there is one node, DTR_CONTROL_MS is 0 anywhere or no socket can
 * be made (one warning), the world does without. Only MPI and memory can fail. */
dtr_status dtr__control_open(dtr_world *world);
void dtr__control_close(dtr_world *world);

/* ---- the watchdog's; each does nothing where the world does without ---- */
int dtr__control_fd(const dtr_world *world); /* readable when there is something to do; -1: none */
void dtr__control_round(dtr_world *world, dtr__control_rank_failed rank_failed);
void dtr__control_report_failure(dtr_world *world, int world_rank); /* of this node */
void dtr__control_report_dump(dtr_world *world, const char *cause);
void dtr__control_rest(dtr_world *world);  /* the thread ends */
void dtr__control_leave(dtr_world *world); /* it has ended: say goodbye */

/* ---- any thread ---- */
void dtr__control_ended(dtr_world *world); /* all ranks have agreed to end: silence is no failure */
bool dtr__control_serves(const dtr_world *world); /* there is one, and its thread runs */
void dtr__control_wake(const dtr_world *world);   /* there is something to report */
/* The newest report of a rank of another node; false: none. */
bool dtr__control_report_of(const dtr_world *world, int world_rank, dtr__rank_report *out);
/* Its node is silent, or has been asked for a newer one in vain. */
bool dtr__control_old(const dtr_world *world, const dtr__rank_report *d);
/* It has come too long ago to be said without that: from every node one comes only now and then. */
bool dtr__control_aged(const dtr_world *world, const dtr__rank_report *d);
/* Asks the node of a rank for a report that is newer than `since_ns`, once, and never waits. True:
 * it has come, or none will; within about a second. */
bool dtr__control_ask(const dtr_world *world, int world_rank, int64_t since_ns);
/* Host and process of any rank; false: not known. */
bool dtr__control_where(const dtr_world *world, int world_rank, const char **host, uint32_t *pid);

/* ---- control/report.c ---- */
/* False where the rank, of this node, cannot be seen. */
bool dtr__rank_report_make(const dtr_world *world, int world_rank, dtr__rank_report *d);

/* ---- what reports are kept in (control/board.c) ---- */
/* One per rank of a node, in zeroed memory that the node shares: written by its owner only. It has
 * places for so many ranks, or for all where the world has fewer: */
enum { DTR__BOARD_REPORTS = 4096, DTR__BOARD_WANTS = 1024, DTR__BOARD_TEXTS = 1024 };
#define DTR__ANSWER_NS INT64_C(1000000000) /* after so long a question is in vain */

typedef struct dtr__want {
    int64_t ns;   /* a report is wanted that is made later than this; 0: none */
    int64_t rank; /* of the world */
} dtr__want;

typedef struct dtr__board dtr__board;
size_t dtr__board_bytes(int n_ranks, int n_nodes);
void dtr__board_init(dtr__board *b, int n_ranks, int n_nodes);
void dtr__board_put(dtr__board *b, int world_rank, const dtr__rank_report *d);
/* False: none has come, or that of another rank has its place. */
bool dtr__board_get(const dtr__board *b, int world_rank, dtr__rank_report *d);
/* When the owner has last received anything from that node; 0: never. */
void dtr__board_put_received(dtr__board *b, int node, int64_t ns);
int64_t dtr__board_received(const dtr__board *b, int node);
/* Once for each rank. */
void dtr__board_put_failure(dtr__board *b, int world_rank, dtr_status status, const char *text);
uint32_t dtr__board_failures(const dtr__board *b); /* how many */
/* The i-th. NULL: the text of so many is not kept. */
const char *dtr__board_failure(const dtr__board *b, uint32_t i, int *world_rank,
                               dtr_status *status);
/* What the owner's own threads want, one of them at a time. */
size_t dtr__board_n_wants(int n_ranks); /* places; a rank has the one of its number modulo that */
void dtr__board_want(dtr__board *b, int world_rank, int64_t ns);
dtr__want dtr__board_wanted(const dtr__board *b, size_t place);
uint32_t dtr__board_wants(const dtr__board *b); /* how many times */

#endif /* DTR_RT_CONTROL_H */
