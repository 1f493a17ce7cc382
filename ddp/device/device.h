/* What a module does on a CUDA device. */
#ifndef DTR_DDP_DEVICE_H
#define DTR_DDP_DEVICE_H

#include "core/ddp_internal.h"
#include "memory/device.h"

enum { DTR__FLAGS = 2 };

/* Of a module on a CUDA device (device.c). */
typedef struct dtr__ddp_gpu {
    const dtr__device_ops *ops;
    int index;            /* these two as in ddp->at */
    void *stream;         /* buckets are gathered there and reduced behind it */
    bool has_out;         /* there was a backward_end, so ddp->out has a stream of the program */
    pthread_mutex_t lock; /* event, all feeds, samples of times */
    void *event;
    dtr_tensor *staging;      /* what many small tensors are sent from; made when needed */
    const char *registration; /* how NCCL knows the buckets, NULL: not; ddp->stats.lock */
    /* Times of steps (device_timing.c). `now` is the open iteration's: set before anybody adds to
     * it and taken after. */
    void *timing_stream;                    /* follows the buckets on their way */
    struct dtr__ddp_sample *now;            /* NULL: this step is not timed */
    struct dtr__ddp_sample *waiting, *idle; /* oldest first; to be used again; lock */
    size_t n_waiting;                       /* lock */
    /* Casts of parameters: their own stream, an event for each MiB or so, memory for all. */
    void *cast_stream, **cast;
    size_t n_cast;
    dtr_tensor *casts;
    void *rows_stream; /* on which sparse gradients come to the host; NULL: there are none */
    /* The first NaN of each parameter (device_nan.c), there and on the host; NULL: nobody asked. */
    uint64_t *nan_there, *nan_here;
    /* The flags of the newest two iterations (device_flag.c), pinned, and events behind their
     * copies; NULL: none travel. */
    char *flags;
    void *flag_event[DTR__FLAGS];
    void *step_stream; /* of steps per bucket (reducer/step.c); NULL: none were ever set */
    /* Sums of squares of gradients (optim/clip_device.c), there and pinned; NULL: not yet. */
    void *sums_there, *sums_here;
} dtr__ddp_gpu;

/* A stream that wrote gradients, and an event for the point where it had done so. */
typedef struct dtr__ddp_feed {
    void *stream, *event;
} dtr__ddp_feed;

/* Whether a stream of the program is known that averages go out on. */
static inline bool dtr__ddp_has_out(const dtr_ddp *ddp) {
    return ddp->gpu != NULL && ddp->gpu->has_out;
}

/* ---- device.c: nothing happens where the module is on the host ---- */
/* Of create, local: the device of the parameters, its stream. */
dtr_status dtr__ddp_device_open(dtr_ddp *ddp);
/* All but the struct, which lives as long as the module. */
void dtr__ddp_device_close(dtr_ddp *ddp);
void dtr__ddp_device_free(dtr_ddp *ddp);
/* The program's streams are not known. */
void dtr__ddp_device_forget_out(dtr_ddp *ddp);
/* DTR_ERR_UNSUPPORTED for calls that work on host memory only. */
dtr_status dtr__ddp_device_refuse(dtr_ddp *ddp, const char *entry);
/* The module's stream goes on after what `stream` holds now; and the other way round. */
dtr_status dtr__ddp_device_follow(dtr_ddp *ddp, void *stream);
dtr_status dtr__ddp_device_lead(dtr_ddp *ddp, void *stream);
/* `after` goes on when `before` has done what it holds now. */
dtr_status dtr__ddp_device_order(dtr_ddp *ddp, void *before, void *after);
/* The host waits for the module's stream; for that and what steps are queued on. */
dtr_status dtr__ddp_device_synchronize(dtr_ddp *ddp);
void dtr__ddp_device_finish(dtr_ddp *ddp);
/* The stream that steps are queued on; made when it is first asked for. */
dtr_status dtr__ddp_device_step_open(dtr_ddp *ddp);
/* Parameter i's gradient, or what it stands for, is final on `stream`; failures are noted. */
void dtr__ddp_device_feed(dtr_ddp *ddp, dtr__ddp_feeds *feeds, size_t i, void *stream);
/* Before a bucket is reduced: gather what has been put, behind all who contributed. */
dtr_status dtr__ddp_device_pack(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* Begin and end of backward_end on `stream`. */
dtr_status dtr__ddp_device_enter(dtr_ddp *ddp, void *stream);
dtr_status dtr__ddp_device_leave(dtr_ddp *ddp);
/* One rank alone: nothing travels, but its stream goes on behind all who contributed. `fill`:
 * slots are read although nothing is to be copied out. */
dtr_status dtr__ddp_device_alone(dtr_ddp *ddp, bool fill);
/* As dtr__ddp_send_all; ordered on the stream of the newest backward_end, or done on return. */
dtr_status dtr__ddp_device_send(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root);
/* The first collective waits for all ranks: have it behind us. */
dtr_status dtr__ddp_device_connect(dtr_ddp *ddp);
/* Let NCCL know the memory of new buckets as well as it can; collective, no bucket is in use. */
dtr_status dtr__ddp_device_register(dtr_ddp *ddp);
/* The size of a bucket's memory, of so many bytes at least, that NCCL can know so well. */
size_t dtr__ddp_device_whole(const dtr_ddp *ddp, size_t nbytes);
void dtr__ddp_device_feeds_free(dtr_ddp *ddp, dtr__ddp_feeds *feeds);
/* `stream` goes on behind all who contributed. */
dtr_status dtr__ddp_device_wait_for_feeds(dtr_ddp *ddp, dtr__ddp_feeds *feeds, void *stream);
/* ---- device_sparse.c ---- */
dtr_status dtr__ddp_rows_open(dtr_ddp *ddp);
void dtr__ddp_rows_close(dtr_ddp *ddp);
/* Bring rows here, behind all who contributed to p's bucket; the host waits. */
dtr_status dtr__ddp_rows_fetch(dtr_ddp *ddp, dtr__ddp_param *p, const dtr_tensor *from_rows,
                               const dtr_tensor *from_values, dtr_tensor **rows,
                               dtr_tensor **values);
/* Take a result to the device, behind the stream of backward_end; the host goes on. */
dtr_status dtr__ddp_rows_store(dtr_ddp *ddp, const dtr__ddp_param *p, const dtr_tensor *from_rows,
                               const dtr_tensor *from_values, dtr_tensor **rows,
                               dtr_tensor **values);
/* ---- device_cast.c ---- */
/* Of create: memory for the casts of `count` elements, stream and events. */
dtr_status dtr__ddp_device_cast_open(dtr_ddp *ddp, int64_t count);
void dtr__ddp_device_cast_close(dtr_ddp *ddp);
/* Cast the values into their copies, behind the stream of the newest backward_end. */
dtr_status dtr__ddp_device_cast_params(dtr_ddp *ddp);
/* `stream` goes on when parameter i's cast is there. */
dtr_status dtr__ddp_device_cast_wait(dtr_ddp *ddp, const dtr__ddp_param *p, void *stream);
/* A hash of a tensor's bytes; the host waits. */
dtr_status dtr__ddp_device_hash(dtr_ddp *ddp, const dtr_tensor *t, uint64_t *hash);
/* ---- device_nan.c: nothing happens without DTR_DDP_CHECK_NAN ---- */
dtr_status dtr__ddp_device_nan_open(dtr_ddp *ddp);
void dtr__ddp_device_nan_close(dtr_ddp *ddp);
/* Behind what the module's stream holds, if parameter i's gradient has become ready. */
dtr_status dtr__ddp_device_find_nan(dtr_ddp *ddp, size_t i);
/* Of backward_end, before the ranks agree on errors: note what was found; the host waits. */
void dtr__ddp_device_note_nans(dtr_ddp *ddp);

/* ---- device_flag.c: only with DTR_DDP_LATE_ERRORS ---- */
dtr_status dtr__ddp_device_flag_open(dtr_ddp *ddp);
void dtr__ddp_device_flag_close(dtr_ddp *ddp);
/* Behind what the module's stream holds: this rank's flag into b's status slot. */
dtr_status dtr__ddp_device_flag_write(dtr_ddp *ddp, const dtr_ddp_bucket *b, bool bad);
/* Behind what the stream of backward_end holds: the slot comes to place k on the host. */
dtr_status dtr__ddp_device_flag_fetch(dtr_ddp *ddp, const dtr_ddp_bucket *b, int k);
/* The host waits for that copy, up to the group's limit; its first `nbytes` are one element. */
dtr_status dtr__ddp_device_flag_read(dtr_ddp *ddp, size_t nbytes, int k, bool *bad);

/* ---- device_timing.c: times of a step on a device, from events; the host waits for none of them.
 * Nothing happens on the host, and in steps that are not timed. ---- */
typedef enum dtr__ddp_point {
    DTR__AT_FORWARD,
    DTR__AT_FORWARD_END,
    DTR__AT_OPEN,  /* of the backward pass */
    DTR__AT_ENTER, /* into backward_end */
    DTR__N_POINTS
} dtr__ddp_point;
/* A synchronised iteration opens, in `point`, on `stream`. */
void dtr__ddp_timing_open(dtr_ddp *ddp, dtr__ddp_point point, void *stream);
void dtr__ddp_timing_mark(dtr_ddp *ddp, dtr__ddp_point point, void *stream);
/* Bucket b is complete on the module's stream; it has its average when `work` is done, or what the
 * module's stream holds now where that is NULL. */
void dtr__ddp_timing_ready(dtr_ddp *ddp, size_t b);
void dtr__ddp_timing_done(dtr_ddp *ddp, size_t b, dtr_work *work);
/* The step has been counted, as number n; 0: it failed. */
void dtr__ddp_timing_close(dtr_ddp *ddp, const dtr_ddp_step *step, uint64_t n);
/* Count what the device has done. */
void dtr__ddp_timing_collect(dtr_ddp *ddp);
void dtr__ddp_timing_free(dtr_ddp *ddp);

#endif /* DTR_DDP_DEVICE_H */
