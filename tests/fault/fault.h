/* The program of tests/fault/run.py: what its files share. */
#ifndef FAULT_H
#define FAULT_H

#include <mpi.h>
#include <stdio.h>

#include <dtr/coll.h>
#include <dtr/group.h>
#include <dtr/work.h>
#include <dtr/world.h>

enum { N = 1000 };
extern dtr_world *world;
extern dtr_group *group;
extern int rank, size, victim;
extern const char *folder;
extern FILE *out;
extern float data[N];

void note(const char *name, dtr_status s); /* to the judge */
void nap(double seconds);
dtr_status allreduce(const char *label, double limit_s);
dtr_status call_asked(double limit_s); /* what meets the fault, in the way asked for */
/* Until `name` exists in the folder: how ranks outside the library wait for others. */
void await_file(const char *name);
void put_file(const char *name);
void await_others(void);
/* The others say that they are about to call; the victim gives them a moment to get inside. */
void go_ahead(void);
void wake_victim(void);

/* Cases in which threads and nodes fail (fault_nodes.c). */
void far_absent(void);
void far_stopped(void);
void killed_node(void);
void word_killed(void);
void word_stopped(void);
void hung(void);
void cut(void);
void far_dump(void);
void muted(void);
void flipped(void);
void busy(void);

#endif /* FAULT_H */
