#include "tcp/proof.h"

#include <string.h>
#include <sys/random.h>

#ifdef DTR_HAVE_NETTLE
#include <nettle/hmac.h>
#endif

_Static_assert(DTR__KEY_BYTES == DTR__PROOF_BYTES, "one may stand for the other");

bool dtr__proof_random(void *out, size_t nbytes) {
    return getrandom(out, nbytes, GRND_NONBLOCK) == (ssize_t)nbytes;
}

bool dtr__proof_equal(const unsigned char *a, const unsigned char *b) {
    volatile unsigned char differs = 0;
    for (int i = 0; i < DTR__PROOF_BYTES; i++) {
        differs = (unsigned char)(differs | (a[i] ^ b[i]));
    }
    return differs == 0;
}

#ifdef DTR_HAVE_NETTLE

bool dtr__proof_has_hmac(void) {
    return true;
}

static void make_hmac(const unsigned char *key, const dtr__proof_of *of, dtr__proof_role by,
                      unsigned char *out) {
    static const char label[] = "dtr control plane, proof 1"; /* of this use of the key */
    const uint32_t role = by;
    struct hmac_sha256_ctx ctx;
    hmac_sha256_set_key(&ctx, DTR__KEY_BYTES, key);
    hmac_sha256_update(&ctx, sizeof label, (const uint8_t *)label);
    hmac_sha256_update(&ctx, sizeof role, (const uint8_t *)&role);
    hmac_sha256_update(&ctx, sizeof of->magic, (const uint8_t *)&of->magic);
    hmac_sha256_update(&ctx, sizeof of->version, (const uint8_t *)&of->version);
    hmac_sha256_update(&ctx, sizeof of->dialer, (const uint8_t *)&of->dialer);
    hmac_sha256_update(&ctx, sizeof of->listener, (const uint8_t *)&of->listener);
    hmac_sha256_update(&ctx, sizeof of->dialer_nonce, of->dialer_nonce);
    hmac_sha256_update(&ctx, sizeof of->listener_nonce, of->listener_nonce);
    hmac_sha256_digest(&ctx, DTR__PROOF_BYTES, out);
}

#else

bool dtr__proof_has_hmac(void) {
    return false;
}

static void make_hmac(const unsigned char *key, const dtr__proof_of *of, dtr__proof_role by,
                      unsigned char *out) {
    (void)key, (void)of, (void)by; /* built without: nobody asks */
    memset(out, 0, DTR__PROOF_BYTES);
}

#endif

void dtr__proof_make(bool hmac, const unsigned char key[DTR__KEY_BYTES], const dtr__proof_of *of,
                     dtr__proof_role by, unsigned char out[DTR__PROOF_BYTES]) {
    if (hmac) {
        make_hmac(key, of, by, out);
    } else {
        memcpy(out, key, DTR__PROOF_BYTES);
    }
}
