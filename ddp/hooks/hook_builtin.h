/* What the files of built-in hooks share. */
#ifndef DTR_DDP_HOOK_BUILTIN_H
#define DTR_DDP_HOOK_BUILTIN_H

#include "hooks.h"

/* The average of a buffer over a group, labelled as the bucket and on its stream. */
dtr_status dtr__hook_average_of(const dtr_ddp_bucket *b, dtr_group *group, dtr_buffer buffer,
                                dtr_work **work);
/* Plain average of what the bucket shows. */
dtr_status dtr__hook_average(void *state, dtr_ddp_bucket *b, dtr_work **work);

/* What a hook keeps of every bucket, made at its first use; the state of such a hook begins with
 * it. */
typedef struct dtr__hook_buckets {
    const dtr_ddp *ddp;
    size_t n, each; /* bytes of one bucket's */
    char *of;       /* [n], NULL: no bucket has one */
    void (*release)(const dtr_ddp *ddp, void *one);
} dtr__hook_buckets;
/* Makes h one that calls fn, with a zeroed state of `size` bytes that keeps `each` bytes of every
 * bucket. */
dtr_status dtr__hook_make(const dtr_ddp *ddp, dtr__ddp_hook *h, dtr_ddp_hook fn, size_t size,
                          size_t each, void (*release)(const dtr_ddp *ddp, void *one));
/* What is kept of a bucket, zeroed when it is new; NULL: no memory. if: NULL where it was not used.
 */
void *dtr__hook_bucket_state(dtr__hook_buckets *all, size_t bucket);
void *dtr__hook_bucket_state_if(const dtr__hook_buckets *all, size_t bucket);
void dtr__hook_forget(void *state); /* gives all of it back */
/* A block of memory where the module is. */
dtr_status dtr__hook_memory(const dtr_ddp *ddp, dtr_dtype dtype, size_t count, dtr_tensor **t);

dtr_status dtr__hook_q8_make(const dtr_ddp *ddp, dtr__ddp_hook *h);
dtr_status dtr__hook_q8_make_device(const dtr_ddp *ddp, dtr__ddp_hook *h);
/* What is wrong with element `at` of a bucket, which is NaN or infinite. */
enum { DTR__Q8_TEXT = 256 };
void dtr__hook_q8_text(const dtr_ddp_bucket *b, size_t at, char text[DTR__Q8_TEXT]);
dtr_status dtr__hook_powersgd_make(const dtr_ddp *ddp, const dtr_hook_options *o, dtr__ddp_hook *h);

#endif /* DTR_DDP_HOOK_BUILTIN_H */
