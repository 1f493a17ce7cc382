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

/* ---- who waits for whom ---- */

/* Operations of a kind between two members with a tag. */
static uint64_t count_p2p(const doctor_member *m, const char *kind, int peer, int tag) {
    uint64_t n = 0;
    for (size_t i = 0; m->rec != NULL && i < m->rec->n_records; i++) {
        const dtr__record *r = &m->rec->records[i];
        n += r->group == m->id && r->kind < DTR__RECORDING_KINDS &&
             strcmp(m->rec->head.kind[r->kind], kind) == 0 && r->root_or_peer == peer &&
             r->tag == tag;
    }
    return n;
}

bool doctor_unmatched(const doctor_group *g, int self, const dtr__record *r) {
    const doctor_member *m = &g->member[self];
    const char *kind = r->kind < DTR__RECORDING_KINDS ? m->rec->head.kind[r->kind] : "";
    const bool send = strcmp(kind, "send") == 0;
    const int peer = r->root_or_peer;
    return (send || strcmp(kind, "recv") == 0) && peer >= 0 && peer < g->size &&
           g->member[peer].rec != NULL &&
           count_p2p(&g->member[peer], send ? "recv" : "send", self, r->tag) <
               count_p2p(m, kind, peer, r->tag);
}

/* It has not entered the operation that others are in, or cannot come to its end. */
static bool holds_up(const doctor_job *job, const doctor_member *m, uint64_t seq) {
    const doctor_rank *k = &job->rank[m->world_rank];
    const char *inside = "";
    if (m->highest < seq) {
        return true;
    }
    const bool still = k->lost || (k->here && !k->alive) || k->state == 'T' || k->state == 't' ||
                       dtr__recording_stuck(m->rec, &inside) > 0;
    const dtr__record *r = still ? doctor_record(m, seq) : NULL;
    return r != NULL && !dtr__record_over(r);
}

const dtr__record *doctor_waits(const doctor_job *job, int rank, const doctor_group *groups,
                                size_t n, bool *on) {
    const dtr__recording *r = job->rank[rank].rec;
    const dtr__record *open = r != NULL ? dtr__recording_open(r) : NULL;
    const dtr__rec_group *own = open != NULL ? dtr__recording_group(r, open->group) : NULL;
    memset(on, 0, (size_t)job->size * sizeof *on);
    for (size_t i = 0; own != NULL && i < n; i++) {
        for (int m = 0; groups[i].uid == own->uid && m < groups[i].size; m++) {
            const doctor_member *of = &groups[i].member[m];
            if (of->rec != NULL && of->world_rank >= 0) {
                const bool held = open->seq != 0
                                      ? of->world_rank != rank && holds_up(job, of, open->seq)
                                      : m == open->root_or_peer &&
                                            doctor_unmatched(&groups[i], own->own_rank, open);
                on[of->world_rank] = held;
            }
        }
    }
    return open;
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

const char *doctor_state(const doctor_rank *k) {
    const uint32_t phase = atomic_load(&k->rec->head.phase);
    if (k->alive) {
        return k->state == 'T' || k->state == 't' ? "stopped" : "running";
    }
    if (phase >= DTR__PHASE_DESTROYING) {
        return "ended";
    }
    return k->here || k->lost ? "died" : "unknown";
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
    return dtr__recording_doing(r, doctor_own_time(r, job->now), text, cap);
}
