/* Between the CUDA and the NCCL side of dtr-bench --device cuda: what bench_nccl.c has. */
#ifndef DTR_BENCH_CUDA_H
#define DTR_BENCH_CUDA_H

#include <cuda_runtime_api.h>

#include "bench.h"

/* A communicator of all ranks as a program without this library makes one. Collective; false, on
 * all ranks, where it cannot be had, which bench_nccl_text explains. */
bool bench_nccl_open(int rank, int size);
void bench_nccl_close(void);
const char *bench_nccl_text(void); /* "NCCL 2.28.9" */
bool bench_nccl_has(const bench_case *c);
void bench_nccl_call(const bench_case *c, const contender *who, cudaStream_t stream);

#endif /* DTR_BENCH_CUDA_H */
