/* Looking things up in a job: groups and their members' records, and how ranks are called. */
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

/* ---- groups ---- */

static bool has(const doctor_group *all, size_t n, uint64_t uid) {
    for (size_t i = 0; i < n; i++) {
        if (all[i].uid == uid) {
            return true;
        }
    }
    return false;
}

static void join(const doctor_job *job, doctor_group *g, int index, int world_rank) {
    doctor_member *m = &g->member[index];
    const dtr__recording *r = world_rank >= 0 ? job->rank[world_rank].rec : NULL;
    const dtr__rec_group *own = r != NULL ? dtr__recording_group_uid(r, g->uid) : NULL;
    m->world_rank = world_rank;
    if (own == NULL) {
        return;
    }
    m->rec = r;
    m->id = atomic_load(&own->id);
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        if (rec->group == m->id && dtr__record_collective(r, rec) && rec->seq > m->highest) {
            m->highest = rec->seq;
        }
    }
}

static bool fill(const doctor_job *job, const dtr__recording *r, const dtr__rec_group *from,
                 doctor_group *g) {
    g->uid = from->uid;
    g->size = from->size;
    memcpy(g->name, from->name, sizeof g->name);
    g->member = calloc((size_t)g->size, sizeof *g->member);
    for (int i = 0; g->member != NULL && i < g->size; i++) {
        join(job, g, i, dtr__recording_member(r, from, i));
    }
    return g->member != NULL;
}

doctor_group *doctor_groups(const doctor_job *job, size_t *n) {
    size_t capacity = 0;
    for (int i = 0; i < job->size; i++) {
        capacity += job->rank[i].rec != NULL ? job->rank[i].rec->n_groups : 0;
    }
    doctor_group *all = calloc(capacity + 1, sizeof *all);
    *n = 0;
    for (int i = 0; all != NULL && i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        for (size_t k = 0; r != NULL && k < r->n_groups; k++) {
            if (!has(all, *n, r->groups[k].uid) && fill(job, r, &r->groups[k], &all[*n])) {
                (*n)++;
            }
        }
    }
    return all;
}

void doctor_groups_free(doctor_group *g, size_t n) {
    for (size_t i = 0; g != NULL && i < n; i++) {
        free(g[i].member);
    }
    free(g);
}

const dtr__record *doctor_record(const doctor_member *m, uint64_t seq) {
    for (size_t i = m->rec != NULL ? m->rec->n_records : 0; i > 0; i--) {
        const dtr__record *rec = &m->rec->records[i - 1];
        if (rec->group == m->id && rec->seq == seq && dtr__record_collective(m->rec, rec)) {
            return rec;
        }
    }
    return NULL;
}

/* ---- words ---- */

const char *doctor_who(const doctor_job *job, int rank, char *text, size_t cap) {
    const dtr__recording *r = job->rank[rank].rec;
    if (r == NULL) {
        snprintf(text, cap, "rank %d", rank);
    } else {
        snprintf(text, cap, "rank %d (host %s, pid %u)", rank, r->head.host, r->head.pid);
    }
    return text;
}

const char *doctor_ranks(const bool *in, int size, char *text, size_t cap) {
    size_t at = 0, count = 0;
    for (int i = 0; i < size; i++) {
        count += in[i];
    }
    at += (size_t)snprintf(text, cap, count == 1 ? "rank" : "ranks");
    const char *comma = " ";
    for (int i = 0; i < size && at + 32 < cap; i++) {
        int first = i;
        if (!in[i]) {
            continue;
        }
        while (i + 1 < size && in[i + 1]) {
            i++;
        }
        at +=
            (size_t)snprintf(text + at, cap - at, first == i ? "%s%d" : "%s%d-%d", comma, first, i);
        comma = ", ";
    }
    return text;
}

const char *doctor_site(const dtr__record *r) {
    return r->site[0] != '\0' ? r->site : "a place that was not noted";
}

const char *doctor_doing(const doctor_job *job, int rank, char *text, size_t cap) {
    dtr__recording *r = job->rank[rank].rec;
    if (r == NULL) {
        snprintf(text, cap, "it has left no recording");
        return text;
    }
    /* Of a rank on another host nobody knows here whether it lives. */
    r->alive = job->rank[rank].alive || (!job->rank[rank].here && !job->rank[rank].lost);
    r->state = job->rank[rank].state;
    return dtr__recording_doing(r, job->now - (r->head.real_ns - r->head.mono_ns), text, cap);
}
