/* Ranks of other hosts, as a rank of this one knows them from the control plane. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "top.h"

/* ---- asking ---- */

/* The rank of this host whose watchdog has moved last: it answers soonest. NULL: none runs. */
static const dtr__recording *whom(const doctor_job *job) {
    const dtr__recording *found = NULL;
    int64_t newest = 0;
    for (int i = 0; i < job->size; i++) {
        const doctor_rank *k = &job->rank[i];
        const int64_t beat = k->alive ? atomic_load(&k->rec->head.beat_ns) : 0;
        if (beat > newest && k->state != 'T' && k->state != 't') {
            found = k->rec;
            newest = beat;
        }
    }
    return found;
}

void top_ask(top_table *t, double wait_s) {
    const struct timespec nap = { 0, 10000000 };
    const dtr__recording *r = t->job.n_read < t->job.size ? whom(&t->job) : NULL;
    const bool others = r != NULL && r->head.node_count > 1;
    const uint32_t asked = others ? doctor_raise(r, offsetof(dtr__rec_header, remote_asked)) : 0;
    const int64_t until = doctor_clock() + (int64_t)(1e9 * wait_s);
    for (bool answered = asked == 0; !answered; answered |= doctor_clock() > until) {
        dtr__remote_ranks *now = dtr__remote_ranks_load(r->path, t->job.id, t->job.size);
        if (now != NULL) { /* an older one is better than none */
            free(t->remote);
            t->remote = now;
        }
        answered = now != NULL && now->answered == asked;
        (void)(answered || nanosleep(&nap, NULL));
    }
}

/* ---- rows ---- */

static const char *state_of(const dtr__remote_rank *r) {
    if (r->status == DTR_ERR_REMOTE) {
        return "died";
    }
    if (r->report.state == 0) {
        return "ended";
    }
    return r->silent != 0                                     ? "silent"
           : r->report.state == 'T' || r->report.state == 't' ? "stopped"
                                                              : "running";
}

void top_remote_row(const top_table *t, const dtr__remote_rank *r, top_row *row) {
    const dtr__rank_report *d = &r->report;
    const bool known = d->seen_ns != 0;
    row->rank = r->rank;
    row->remote = r;
    row->age_s = known ? (double)(t->remote->now_ns - d->seen_ns) * 1e-9 : -1;
    row->host = r->host;
    row->pid = r->pid;
    row->node = r->node;
    row->state = state_of(r);
    row->site = d->called.site;
    row->open = known && d->in_uid != 0 && d->in_over == 0;
    row->since_s = known ? d->since_s : -1;
    row->rates = known ? d->rates : (dtr__rates){ .steps_per_s = -1, .exposed = -1 };
    row->last_share = -1;
    snprintf(row->operation, sizeof row->operation, "%.255s",
             known ? d->doing : "nothing was reported of it");
}

/* ---- who waits for whom ---- */

typedef struct place {
    uint64_t uid, seq; /* of a collective; uid 0: none */
} place;

/* What it is inside. */
static place inside(const top_row *row) {
    if (row->rec == NULL) {
        const dtr__rank_report *d = &row->remote->report;
        return row->open ? (place){ d->in_uid, d->in_seq } : (place){ 0 };
    }
    const dtr__record *open = dtr__recording_open(row->rec);
    const dtr__rec_group *g = open != NULL ? dtr__recording_group(row->rec, open->group) : NULL;
    return g != NULL && open->seq != 0 ? (place){ g->uid, open->seq } : (place){ 0 };
}

/* The newest collective of that group that it has entered; false: it has no such group, or that is
 * not known. */
static bool entered(const top_row *row, uint64_t uid, uint64_t *seq) {
    if (row->rec != NULL) {
        const dtr__rec_group *g = dtr__recording_group_uid(row->rec, uid);
        return g != NULL && dtr__recording_entered(row->rec, g, seq);
    }
    const dtr__rank_report *d = &row->remote->report;
    for (uint32_t i = 0; i < d->n_groups; i++) {
        if (d->group[i].uid == uid) {
            *seq = d->group[i].seq;
            return true;
        }
    }
    return false;
}

/* Of the two one at least is on another host: recordings of both say more. */
static bool waits(place at, const top_row *b) {
    uint64_t seq = 0;
    if (!entered(b, at.uid, &seq) || seq > at.seq) {
        return false;
    }
    const place there = inside(b);
    const bool still = strcmp(b->state, "running") != 0;
    return seq < at.seq || (still && there.uid == at.uid && there.seq == at.seq);
}

void top_remote_waits(top_table *t) {
    for (size_t i = 0; t->remote != NULL && i < t->n; i++) {
        const top_row *a = &t->row[i];
        const place at = inside(a);
        for (size_t k = 0; at.uid != 0 && k < t->n; k++) {
            const top_row *b = &t->row[k];
            if (i != k && (a->rec == NULL || b->rec == NULL)) {
                a->waits[b->rank] = waits(at, b);
            }
        }
    }
}
