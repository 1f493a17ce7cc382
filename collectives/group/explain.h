/* What dtr-info prints of the backends. */
#ifndef DTR_GROUP_EXPLAIN_H
#define DTR_GROUP_EXPLAIN_H

/* A line of dtr-info: NCCL as it was found. */
void dtr__print_nccl(void);
/* dtr-info --why CALL DTYPE SIZE [options]: `arg` begins with CALL. Returns the exit status: 0, 1
 * when nothing can serve the call, 2 for words it cannot make sense of. */
int dtr__why(int n_arg, char **arg);

#endif /* DTR_GROUP_EXPLAIN_H */
