/* What the files of built-in hooks share. */
#ifndef DTR_DDP_HOOK_BUILTIN_H
#define DTR_DDP_HOOK_BUILTIN_H

#include "ddp_internal.h"

/* Plain average of what the bucket shows. */
dtr_status dtr__hook_average(void *state, dtr_ddp_bucket *b, dtr_work **work);

dtr_status dtr__hook_q8_make(dtr__ddp_hook *h);
dtr_status dtr__hook_q8_make_device(const dtr_ddp *ddp, dtr__ddp_hook *h);
/* What is wrong with element `at` of a bucket, which is NaN or infinite. */
enum { DTR__Q8_TEXT = 256 };
void dtr__hook_q8_text(const dtr_ddp_bucket *b, size_t at, char text[DTR__Q8_TEXT]);
dtr_status dtr__hook_powersgd_save(dtr_ddp *ddp, void *state, dtr_bytes *out);
dtr_status dtr__hook_powersgd_restore(dtr_ddp *ddp, void *state, dtr_bytes in);
dtr_status dtr__hook_powersgd_make(const dtr_hook_options *o, dtr__ddp_hook *h);

#endif /* DTR_DDP_HOOK_BUILTIN_H */
