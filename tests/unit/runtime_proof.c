/* Proofs of the control plane (reliability: CP3). */
#include <string.h>

#include "tcp/proof.h"
#include "unit.h"

static dtr__proof_of some(void) {
    dtr__proof_of of = {
        .magic = UINT64_C(0x3230746e6f436474), .version = 1, .dialer = 3, .listener = 5
    };
    memset(of.dialer_nonce, 0xaa, sizeof of.dialer_nonce);
    memset(of.listener_nonce, 0xbb, sizeof of.listener_nonce);
    return of;
}

static void key_of(unsigned char *key) {
    for (int i = 0; i < DTR__KEY_BYTES; i++) {
        key[i] = (unsigned char)i;
    }
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* As Python's hmac has it, of the label with its 0, role, magic, version, ranks and nonces. */
START_TEST(CP3_known_answers) {
    static const unsigned char want[2][DTR__PROOF_BYTES] = {
        { 0x75, 0x62, 0xd0, 0x42, 0xdc, 0x49, 0xce, 0xab, 0xa2, 0x49, 0x48,
          0x45, 0x53, 0x01, 0x5c, 0x1d, 0xe8, 0x8e, 0xf4, 0xc8, 0x15, 0x9e,
          0xba, 0xb3, 0x00, 0xcb, 0xc3, 0xb6, 0x2f, 0xcb, 0x4e, 0xde },
        { 0x45, 0x2e, 0x17, 0x78, 0x23, 0xd8, 0xfa, 0x2c, 0x4d, 0x33, 0xfb,
          0x4a, 0x1c, 0x11, 0x80, 0xbf, 0x0e, 0x85, 0x67, 0x55, 0xcb, 0x38,
          0xc2, 0x86, 0x84, 0xb8, 0x9a, 0x10, 0x4c, 0x60, 0x9e, 0xa6 }
    };
    unsigned char key[DTR__KEY_BYTES], got[DTR__PROOF_BYTES];
    const dtr__proof_of of = some();
    key_of(key);
    for (int by = DTR__PROOF_DIALER; by <= DTR__PROOF_LISTENER; by++) {
        dtr__proof_make(true, key, &of, (dtr__proof_role)by, got);
        ck_assert_mem_eq(got, want[by - 1], sizeof got);
        ck_assert(dtr__proof_equal(got, want[by - 1]));
        ck_assert(!dtr__proof_equal(got, want[2 - by]));
    }
}
END_TEST
#endif

/* Whatever is said before the proof changes it: it serves once, one way, between two ranks. */
START_TEST(CP3_all_is_bound) {
    unsigned char key[DTR__KEY_BYTES], first[DTR__PROOF_BYTES], other[DTR__PROOF_BYTES];
    const dtr__proof_of of = some();
    key_of(key);
    dtr__proof_make(true, key, &of, DTR__PROOF_DIALER, first);
    for (int what = 0; what < 8; what++) {
        dtr__proof_of changed = of;
        unsigned char changed_key[DTR__KEY_BYTES];
        memcpy(changed_key, key, sizeof key);
        changed.magic += what == 0;
        changed.version += what == 1;
        changed.dialer += what == 2;
        changed.listener += what == 3;
        changed.dialer_nonce[31] ^= what == 4;
        changed.listener_nonce[0] ^= what == 5;
        changed_key[31] ^= what == 6;
        dtr__proof_make(true, changed_key, &changed,
                        what == 7 ? DTR__PROOF_LISTENER : DTR__PROOF_DIALER, other);
        ck_assert_msg(!dtr__proof_equal(first, other), "%d is not bound into the proof", what);
    }
}
END_TEST

/* Without HMAC the proof is the key, of either side. */
START_TEST(CP3_clear) {
    unsigned char key[DTR__KEY_BYTES], got[DTR__PROOF_BYTES];
    const dtr__proof_of of = some();
    key_of(key);
    dtr__proof_make(false, key, &of, DTR__PROOF_LISTENER, got);
    ck_assert(dtr__proof_equal(got, key));
    got[DTR__PROOF_BYTES - 1] ^= 1;
    ck_assert(!dtr__proof_equal(got, key));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("proof");
    tcase_add_test(tc, CP3_clear);
    if (dtr__proof_has_hmac()) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        tcase_add_test(tc, CP3_known_answers);
#endif
        tcase_add_test(tc, CP3_all_is_bound);
    }
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime proof", make);
}
