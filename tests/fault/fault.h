/* The program of tests/fault/run.py: what its files share. */
#ifndef FAULT_H
#define FAULT_H

#include <mpi.h>
#include <stdio.h>

#include <dtr/coll.h>
#include <dtr/group.h>
#include <dtr/work.h>
#include <dtr/world.h>

enum { N = 1000, BIG = 300000 };
#define LIMIT_S 1.0 /* of those who wait for one that does not come */
extern dtr_world *world;
extern dtr_group *group;
extern int rank, size, victim;
extern const char *folder;
extern FILE *out;
extern float data[N];

double now(void); /* CLOCK_MONOTONIC, which the judge and the ranks of one machine share */
/* To the judge: the call is made, and a line "NAME STATUS @BEGUN-ENDED MESSAGE" tells of it. */
#define NOTE(name, call)                    \
    do {                                    \
        const double begun_ = now();        \
        note_since((name), begun_, (call)); \
    } while (0)
void note_since(const char *name, double begun, dtr_status s);
void mark_fault(void); /* for the judge: now it happens on this rank */
void die(void);        /* by SIGKILL, marked */
void nap(double seconds);
/* FAULT_DEVICE=cuda: data lies in device memory, where no call waits for its end. */
bool on_device(void);
dtr_buffer buffer(void *host, size_t n); /* at most BIG floats; on the device a block of its own */
void free_blocks(void);
dtr_status wait_for(dtr_work *w, double limit_s);
/* What the call gave that made the work, else what the work ends with. */
dtr_status wait_and_release(dtr_status s, dtr_work **w, double limit_s);
dtr_status allreduce(const char *label, double limit_s);
dtr_status call_asked(double limit_s); /* what meets the fault, in the way asked for */
/* Until `name` exists in the folder: how ranks outside the library wait for others. */
void await_file(const char *name);
void put_file(const char *name);
void meet_by_files(const char *name); /* every rank does `name` before any goes on */
void await_others(void);
/* The others say that they are about to call; the victim gives them a moment to get inside. */
void go_ahead(void);
void wake_victim(void);

/* Cases at the creation of groups and worlds (fault_creation.c). */
void creation(void);
void killed_creation(void);
void stopped_creation(void);
void no_creation(void);
void no_world(void);

/* Cases in which a rank is stopped (fault_stopped.c). */
void stopped(void);
void stopped_again(void);

/* Cases in which threads and nodes fail (fault_nodes.c). */
void far_absent(void);
void far_stopped(void);
void killed_inside(void);
void killed_told(void);
void killed_node(void);
void killed_node_barrier(void);
void killed_scan(void);
void vote_killed(void);
void vote_stopped(void);
void released(void);
void hung(void);
void cut(void);
void far_dump(void);
void muted(void);
void flipped(void);
void busy(void);

#endif /* FAULT_H */
