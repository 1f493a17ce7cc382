/* How the two ends of a connection show each other that they know the world's key. */
#ifndef DTR_RT_PROOF_H
#define DTR_RT_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DTR__KEY_BYTES = 32, DTR__NONCE_BYTES = 32, DTR__PROOF_BYTES = 32 };

typedef enum dtr__proof_role { DTR__PROOF_DIALER = 1, DTR__PROOF_LISTENER } dtr__proof_role;

/* What both ends say before either proves anything: all of it is bound into the proof, so that it
 * serves for one connection, one direction and one pair of ranks. */
typedef struct dtr__proof_of {
    uint64_t magic;
    uint32_t version;
    int32_t dialer, listener; /* world ranks */
    unsigned char dialer_nonce[DTR__NONCE_BYTES], listener_nonce[DTR__NONCE_BYTES];
} dtr__proof_of;

/* Whether this library was built with HMAC. */
bool dtr__proof_has_hmac(void);
/* HMAC-SHA256 with the key; where `hmac` is false, the key itself. */
void dtr__proof_make(bool hmac, const unsigned char key[DTR__KEY_BYTES], const dtr__proof_of *of,
                     dtr__proof_role by, unsigned char out[DTR__PROOF_BYTES]);
/* In a time that does not tell where they differ. */
bool dtr__proof_equal(const unsigned char *a, const unsigned char *b);
/* False without random numbers from the kernel. */
bool dtr__proof_random(void *out, size_t nbytes);

#endif /* DTR_RT_PROOF_H */
