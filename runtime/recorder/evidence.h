/* The folders that jobs leave in TMPDIR or /tmp: which of them are in use, and their age. */
#ifndef DTR_RT_EVIDENCE_H
#define DTR_RT_EVIDENCE_H

#include <sys/types.h>

#include "recorder/recording.h"

/* "dtr-<uid>-<job>" of a folder for one job's recordings; false: it is no such name. */
bool dtr__evidence_name(const char *name, uid_t *uid, uint64_t *job);
/* TMPDIR or /tmp, where they are. */
const char *dtr__evidence_base(void);

/* The header of an open recording, with all texts ended; false: it has none (yet), or that of
 * another version. */
bool dtr__evidence_head(int fd, dtr__rec_header *h);
/* Its process runs on this host, or somebody holds the lock that it has while it runs. */
bool dtr__evidence_in_use(int fd, const dtr__rec_header *h);

/* Remove this user's folders of ended jobs but the newest `keep`; returns how many are gone. */
int dtr__evidence_age(const char *base, uint64_t keep);

#endif /* DTR_RT_EVIDENCE_H */
