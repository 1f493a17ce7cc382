/* Ends a stuck test: prints its name, the rank, what the library was doing and the stack, then
 * MPI_Abort. */
#ifndef TH_WATCHDOG_H
#define TH_WATCHDOG_H

void th_watchdog_limit(int seconds); /* largest limit of the cases added so far */
void th_watchdog_start(int rank);
void th_watchdog_stop(void);

#endif /* TH_WATCHDOG_H */
