/* What a module does on a CUDA device; the end of ddp_internal.h. */
#ifndef DTR_DDP_DEVICE_H
#define DTR_DDP_DEVICE_H

/* ---- ddp_device.c: nothing happens where the module is on the host ---- */
/* Of create, local: the device of the parameters, what it cannot do, its stream. */
dtr_status dtr__ddp_device_open(dtr_ddp *ddp);
void dtr__ddp_device_close(dtr_ddp *ddp);
/* DTR_ERR_UNSUPPORTED for calls that work on host memory only. */
dtr_status dtr__ddp_device_refuse(dtr_ddp *ddp, const char *entry);
/* The module's stream goes on after what `stream` holds now; and the other way round. */
dtr_status dtr__ddp_device_follow(dtr_ddp *ddp, void *stream);
dtr_status dtr__ddp_device_lead(dtr_ddp *ddp, void *stream);
/* `after` goes on when `before` has done what it holds now. */
dtr_status dtr__ddp_device_order(dtr_ddp *ddp, void *before, void *after);
/* The host waits for the module's stream. */
dtr_status dtr__ddp_device_synchronize(dtr_ddp *ddp);
/* Parameter i's gradient is final on `stream`; failures are noted. */
void dtr__ddp_device_feed(dtr_ddp *ddp, size_t i, void *stream);
/* Before a bucket is reduced: gather what has been put, behind all who contributed. */
dtr_status dtr__ddp_device_pack(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* Begin and end of backward_end on `stream`. */
dtr_status dtr__ddp_device_enter(dtr_ddp *ddp, void *stream);
dtr_status dtr__ddp_device_leave(dtr_ddp *ddp);
/* One rank alone: nothing travels, but its stream goes on behind all who contributed. */
dtr_status dtr__ddp_device_alone(dtr_ddp *ddp);
/* As dtr__ddp_send_all; ordered on the stream of the newest backward_end, or done on return. */
dtr_status dtr__ddp_device_send(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root);
/* The first collective waits for all ranks: have it behind us. */
dtr_status dtr__ddp_device_connect(dtr_ddp *ddp);
/* Let NCCL know the memory of new buckets as well as it can; collective, no bucket is in use. */
dtr_status dtr__ddp_device_tell(dtr_ddp *ddp);
void dtr__ddp_device_bucket_free(dtr_ddp_bucket *b);
/* `stream` goes on behind all who contributed to a bucket. */
dtr_status dtr__ddp_device_wait_for_feeds(dtr_ddp *ddp, dtr_ddp_bucket *b, void *stream);
/* ---- ddp_device_sparse.c ---- */
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
/* ---- ddp_device_cast.c ---- */
/* Of create: memory for the casts of `count` elements, stream and events. */
dtr_status dtr__ddp_device_cast_open(dtr_ddp *ddp, int64_t count);
void dtr__ddp_device_cast_close(dtr_ddp *ddp);
/* Values into shadows, behind the stream of the newest backward_end. */
dtr_status dtr__ddp_device_cast_params(dtr_ddp *ddp);
/* `stream` goes on when parameter i's cast is there. */
dtr_status dtr__ddp_device_cast_wait(dtr_ddp *ddp, const dtr__ddp_param *p, void *stream);
/* A hash of a tensor's bytes; the host waits. */
dtr_status dtr__ddp_device_hash(dtr_ddp *ddp, const dtr_tensor *t, uint64_t *hash);
/* ---- ddp_device_nan.c: nothing happens without DTR_DDP_CHECK_NAN ---- */
dtr_status dtr__ddp_device_nan_open(dtr_ddp *ddp);
void dtr__ddp_device_nan_close(dtr_ddp *ddp);
/* Behind what the module's stream holds, if parameter i's gradient has become ready. */
dtr_status dtr__ddp_device_nan_look(dtr_ddp *ddp, size_t i);
/* Of backward_end, before the ranks agree on errors: note what was found; the host waits. */
void dtr__ddp_device_nan_tell(dtr_ddp *ddp);

/* ---- ddp_timing.c: times of a step on a device, from events; the host waits for none of them.
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
