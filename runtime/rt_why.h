/* What dtr-info prints of the backends. The tool shows the runtime, so it reaches the layer above
 * through these, which the collectives define. */
#ifndef DTR_RT_WHY_H
#define DTR_RT_WHY_H

/* dtr-info --why CALL DTYPE SIZE [options]: `arg` begins with CALL. Returns the exit status: 0, 1
 * when nothing can serve the call, 2 for words it cannot make sense of. */
/* A line of dtr-info: NCCL as it was found. */
void dtr__print_nccl(void);
int dtr__why(int n_arg, char **arg);

#endif /* DTR_RT_WHY_H */
