/* Functions that everything that calls NCCL looks up: the backend, and what measures beside it. */
#ifndef DTR_NCCL_NAMES_H
#define DTR_NCCL_NAMES_H

#define DTR__NCCL_COMMON(X)   \
    X(ncclGetVersion)         \
    X(ncclGetUniqueId)        \
    X(ncclCommInitRankConfig) \
    X(ncclCommDestroy)        \
    X(ncclCommAbort)          \
    X(ncclGetErrorString)     \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclAllReduce)          \
    X(ncclBroadcast)          \
    X(ncclReduce)             \
    X(ncclAllGather)          \
    X(ncclReduceScatter)      \
    X(ncclSend)               \
    X(ncclRecv)

#endif /* DTR_NCCL_NAMES_H */
