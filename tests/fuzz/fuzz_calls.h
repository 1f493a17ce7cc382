/* What the files of fuzz_calls share: values out of the input, and the verdict on a status. */
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include <dtr/dtr.h>

extern dtr_world *world;
extern dtr_group *group;

unsigned byte(void);
unsigned pick(unsigned n);
int number(int sound); /* mostly sound, now and then far out */
dtr_buffer buffer(void);
double seconds(void);
const dtr_coll_options *options(void);
dtr_op operator_of(void);
extern dtr_op own_operator;
void judge(dtr_status s);
/* Of host memory, full of ones; a shape of at most two dimensions. */
dtr_tensor *tensor_of(dtr_dtype d, int ndim, int64_t a, int64_t b);

/* Of a folder that goes with the process. */
const char *scratch_file(void);

/* One call, or a few that belong together. */
void fuzz_calls_runtime(dtr_group *g);
void fuzz_calls_tensors(dtr_group *g, dtr_work **work);
void fuzz_calls_modules(dtr_group *g);

#endif /* FUZZ_CALLS_H */
