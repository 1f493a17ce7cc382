/* What the files of soak share: the plan that all ranks draw alike, and what is checked. */
#ifndef SOAK_H
#define SOAK_H

#include <dtr/coll.h>
#include <dtr/ddp.h>
#include <dtr/group.h>
#include <dtr/work.h>
#include <dtr/world.h>

enum { RANKS_MOST = 1024, PARAMS_MOST = 4 };

typedef struct member_group {
    dtr_group *group; /* NULL: this rank is no member */
    bool live;
    int size, ranks[RANKS_MOST];
    dtr_ddp *ddp; /* NULL: none, or no member */
    bool has_module;
    int n_params;
    size_t numel[PARAMS_MOST];
} member_group;

extern dtr_world *world;
extern int rank, size;
extern uint64_t plan, mine; /* states of the generators: of all ranks alike, of this one */

unsigned below(uint64_t *state, unsigned n);
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *fmt, ...);
void must(dtr_status s, const char *what);
void dawdle(void);

/* All ranks draw each; the members of the group do it, wait for it and check it. */
void soak_bytes(const member_group *g);
void soak_batch(const member_group *g);
void soak_tensors(const member_group *g);
void soak_step(const member_group *g);

/* ---- soak_faults.c ---- */
void soak_start_stopper(void); /* before MPI starts */
/* All ranks draw it; a group is made, aborted while its members call it, and destroyed. */
void soak_abort(uint64_t now);
/* Of this rank alone. */
void soak_fork(void);
void soak_stop(void);
/* Memory of aborted groups that must not have changed. */
void soak_look_at_resting(uint64_t operation);
void soak_faults_end(void);

/* A module over the group, or none, and its end. */
void soak_module_open(member_group *g);
void soak_module_close(member_group *g);

#endif /* SOAK_H */
