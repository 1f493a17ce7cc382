/* How much a rank does, from the records and steps that its recording holds: for dtr-top, and for
 * what nodes report to each other. */
#include "recorder/recording.h"

/* Numbers of a group's collectives or messages, from the newest record backwards. */
typedef struct series {
    uint32_t group;
    bool message;
    uint64_t next;
} series;

enum { SERIES = 64 };

/* How many calls behind `rec` have no record: they followed it closely, and readers make records of
 * the newest of those only. */
static uint64_t followers(series *all, size_t *n, const dtr__record *rec) {
    const bool message = rec->seq == 0;
    const uint64_t seq = dtr__record_seq(rec);
    size_t i = 0;
    while (i < *n && (all[i].group != rec->group || all[i].message != message)) {
        i++;
    }
    if (i == SERIES) {
        return 0;
    }
    if (i == *n) {
        all[(*n)++] = (series){ rec->group, message, seq };
        return 0;
    }
    const uint64_t next = all[i].next;
    all[i].next = seq;
    return next > seq && next - seq <= DTR__REC_RUN_MOST ? next - seq - 1 : 0;
}

static void find_operations(const dtr__recording *r, int64_t now, double window_s,
                            dtr__rates *rates) {
    series all[SERIES];
    size_t n = 0;
    uint64_t operations = 0, bytes = 0;
    int64_t from = now - (int64_t)(1e9 * window_s);
    if (r->n_records > 0 && r->records[0].number > 1) { /* what was before is not known */
        const int64_t oldest = r->records[0].t_issued;
        from = oldest > from ? oldest : from;
    }
    for (size_t i = r->n_records; i > 0; i--) {
        const dtr__record *rec = &r->records[i - 1];
        const bool part = (rec->flags & DTR__REC_MEMBER) != 0;
        const bool own = part || dtr__record_collective(r, rec) || rec->seq == 0;
        const uint64_t calls = 1 + (own && !part ? followers(all, &n, rec) : 0);
        if (own && dtr__record_over(rec) && rec->t_finished > from) {
            operations += part ? 0 : calls;
            bytes += calls * rec->nbytes;
        }
    }
    const double over_s = (double)(now - from) * 1e-9;
    rates->operations_per_s = over_s > 1e-6 ? (double)operations / over_s : 0;
    rates->gb_per_s = over_s > 1e-6 ? (double)bytes * 1e-9 / over_s : 0;
}

/* Of the newest steps, those of ten seconds, at least two. One that takes much longer than those
 * before it means that there are none now. */
static void find_steps(const dtr__recording *r, int64_t now, double window_s, dtr__rates *rates) {
    const dtr__rec_step *step[DTR__RECORDING_STEPS];
    const size_t n = dtr__recording_steps(r, step);
    const int64_t most = INT64_C(10000000000); /* ns */
    int64_t newest = 0, oldest = 0;
    double comm = 0, exposed = 0;
    uint64_t steps = 0;
    for (size_t i = n; i > 0; i--) {
        const dtr__rec_step *s = step[i - 1];
        const int64_t t = atomic_load(&s->t);
        newest = i == n ? t : newest;
        if (steps >= 2 && newest - t > most) {
            break;
        }
        if (atomic_load(&s->steps) > 0) {
            steps++;
            oldest = t;
        }
        comm += (double)atomic_load(&s->comm_ns);
        exposed += (double)atomic_load(&s->exposed_ns);
    }
    rates->steps_per_s = rates->exposed = -1;
    if (steps < 2 || newest <= oldest) {
        return;
    }
    const double each_s = (double)(newest - oldest) * 1e-9 / (double)(steps - 1);
    const double quiet_s = (double)(now - newest) * 1e-9;
    rates->steps_per_s = quiet_s > 2 * each_s + window_s ? 0 : 1 / each_s;
    if (comm > 0) {
        rates->exposed = exposed < comm ? exposed / comm : 1;
    }
}

void dtr__recording_rates(const dtr__recording *r, int64_t now, double window_s,
                          dtr__rates *rates) {
    find_operations(r, now, window_s, rates);
    find_steps(r, now, window_s, rates);
}
