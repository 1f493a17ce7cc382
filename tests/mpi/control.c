/* The port of the control plane against strangers, cut connections and want of descriptors: nodes
 * of pretended hosts (reliability: CP2, CP3). What the library sends and accepts goes through this
 * program, so that it can look at the one and spoil the other. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <dtr/version.h>

#include "control/control_internal.h"
#include "harness.h"
#include "settings.h"
#include "world/world.h"

enum { FDS_MOST = 1024, STRANGERS = STRANGERS_MOST + 40 };

static dtr__control *control(void) {
    return th_world()->control.plane;
}

static bool is_far(int r) {
    return th_world()->node_of[r] != th_world()->node;
}

/* ---- what the library calls ---- */

static _Atomic int n_to_reset; /* connections that are to be reset as soon as they are accepted */
static atomic_bool no_descriptors; /* to accept one with */
static _Atomic int n_refused;      /* attempts to */
static _Atomic int n_key_sent;     /* messages that held a part of the key */
static _Atomic bool watches_key;   /* there is one, and it is not to be sent */

int real_accept4(int fd, struct sockaddr *from, socklen_t *nbytes,
                 int flags) __asm__("__real_accept4");
int our_accept4(int fd, struct sockaddr *from, socklen_t *nbytes,
                int flags) __asm__("__wrap_accept4");
bool real_has_hmac(void) __asm__("__real_dtr__proof_has_hmac");
bool our_has_hmac(void) __asm__("__wrap_dtr__proof_has_hmac");
ssize_t real_send(int fd, const void *data, size_t nbytes, int flags) __asm__("__real_send");
ssize_t our_send(int fd, const void *data, size_t nbytes, int flags) __asm__("__wrap_send");

/* As if the last rank had been built without. */
bool our_has_hmac(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank != NULL ? rank : getenv("PMI_RANK");
    return real_has_hmac() &&
           (getenv("TEST_WITHOUT_HMAC") == NULL || rank == NULL || atoi(rank) == 0);
}

int our_accept4(int fd, struct sockaddr *from, socklen_t *nbytes, int flags) {
    if (atomic_load(&no_descriptors)) {
        atomic_fetch_add(&n_refused, 1);
        errno = EMFILE;
        return -1;
    }
    int got = real_accept4(fd, from, nbytes, flags);
    if (got >= 0 && atomic_load(&n_to_reset) > 0) {
        const struct linger at_once = { .l_onoff = 1 };
        atomic_fetch_sub(&n_to_reset, 1);
        (void)setsockopt(got, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(got);
        errno = ECONNABORTED;
        got = -1;
    }
    return got;
}

ssize_t our_send(int fd, const void *data, size_t nbytes, int flags) {
    if (atomic_load(&watches_key)) {
        for (size_t i = 0; i + 8 <= DTR__KEY_BYTES; i++) {
            atomic_fetch_add(&n_key_sent, memmem(data, nbytes, &control()->key[i], 8) != NULL);
        }
    }
    return real_send(fd, data, nbytes, flags);
}

/* ---- strangers ---- */

/* To the first port of a rank, over loopback where that leads there. */
static int call_rank(int r) {
    const offer *o = dtr__control_offer(th_world(), r);
    const bool here = dtr__control_same_machine(th_world(), r);
    const struct in6_addr at = here ? dtr__socket_ipv4(htonl(INADDR_LOOPBACK))
                                    : dtr__control_place(th_world(), r)->address[0];
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(o->port[0]) };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6,
                                .sin6_port = htons(o->port[0]),
                                .sin6_addr = at };
    const bool old = IN6_IS_ADDR_V4MAPPED(&at);
    memcpy(&four.sin_addr, &at.s6_addr[12], sizeof four.sin_addr);
    int fd = socket(old ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int code = old ? connect(fd, (const struct sockaddr *)&four, sizeof four)
                   : connect(fd, (const struct sockaddr *)&six, sizeof six);
    if (fd >= 0 && code != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Until the other side has closed it. */
static bool is_closed(int fd, int limit_ms) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    char byte;
    while (poll(&p, 1, limit_ms) == 1) {
        if (recv(fd, &byte, 1, 0) <= 0) {
            return true;
        }
    }
    return false;
}

static int port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *),
                   struct in6_addr *address) {
    struct sockaddr_storage of = { .ss_family = AF_UNSPEC };
    socklen_t nbytes = sizeof of;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    if (name(fd, (struct sockaddr *)&of, &nbytes) != 0) {
        return -1;
    }
    memcpy(&four, &of, sizeof four);
    memcpy(&six, &of, sizeof six);
    if (of.ss_family == AF_INET) {
        *address = dtr__socket_ipv4(four.sin_addr.s_addr);
        return ntohs(four.sin_port);
    }
    *address = six.sin6_addr;
    return of.ss_family == AF_INET6 ? ntohs(six.sin6_port) : -1;
}

static bool is_port_of(int r, int port) {
    const offer *o = dtr__control_offer(th_world(), r);
    bool found = false;
    for (int i = 0; i < ADDRESSES; i++) {
        found |= port > 0 && o->port[i] == port;
    }
    return found;
}

/* All connections that this rank has dialed to ranks of other nodes. */
static int cut_links(const int *keep, int n_keep) {
    int n = 0;
    for (int fd = 3; fd < FDS_MOST; fd++) {
        struct in6_addr address;
        int port = port_of(fd, getpeername, &address);
        bool ours = false;
        for (int i = 0; i < n_keep; i++) {
            ours |= keep[i] == fd;
        }
        for (int r = 0; r < th_size() && !ours; r++) {
            if (is_far(r) && is_port_of(r, port)) {
                n += shutdown(fd, SHUT_RDWR) == 0;
                break;
            }
        }
    }
    return n;
}

/* Until a report of every rank of the other nodes is younger than that; false: one is dead. */
static bool await_reports(int64_t since_ns) {
    for (int r = 0; r < th_size(); r++) {
        dtr__rank_report d;
        while (is_far(r) && !(dtr__control_report_of(th_world(), r, &d) && d.seen_ns > since_ns)) {
            if (dtr__rank_failed(th_world(), r)) {
                return false;
            }
            th_sleep(0.02);
        }
    }
    return true;
}

static void check_reports(const char *when) {
    const int64_t now = dtr__now_ns(); /* what was under way does not count */
    TH_ALL(await_reports(now + 600 * MS), "%s a rank of another node counts as dead", when);
    th_good_allreduce(th_group());
}

/* CP2: strangers fill the ports of all ranks, and then the connections between the nodes are cut.
 * Ranks that live find each other again. */
START_TEST(CP2_strangers_and_a_cut) {
    int fd[STRANGERS];
    check_reports("at first");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < STRANGERS; i++) {
            fd[i] = call_rank((th_rank() + 1) % th_size());
            TH_CHECK(fd[i] >= 0, "stranger %d: %s", i, strerror(errno));
        }
        th_barrier();
        (void)cut_links(fd, STRANGERS);
        check_reports("after a cut among strangers");
        for (int i = 0; i < STRANGERS; i++) {
            close(fd[i]);
        }
    }
}
END_TEST

/* CP2: a connection that is reset is no refused one. */
START_TEST(CP2_reset_is_not_refused) {
    check_reports("at first");
    for (int round = 0; round < 3; round++) {
        atomic_store(&n_to_reset, 4);
        th_barrier();
        (void)cut_links(NULL, 0);
        check_reports("after resets");
        atomic_store(&n_to_reset, 0);
        th_barrier();
    }
}
END_TEST

static void await_beats(int n) {
    const dtr__rec_header *h = dtr__recorder_header(th_world());
    for (int64_t seen = atomic_load(&h->beat_ns); n > 0; n--) {
        while (atomic_load(&h->beat_ns) == seen) {
            th_sleep(0.005);
        }
        seen = atomic_load(&h->beat_ns);
    }
}

/* CP3: want of descriptors for a while, in which the connections end too. Who cannot answer for
 * that long is not dead, and the ports are open again afterwards. */
START_TEST(CP3_no_descriptors) {
    int fd = -1;
    check_reports("at first");
    atomic_store(&n_refused, 0);
    atomic_store(&no_descriptors, true);
    th_barrier();
    if (th_rank() == 0) {
        fd = call_rank(th_size() - 1);
        TH_CHECK(fd >= 0 && send(fd, "no message of the library", 25, MSG_NOSIGNAL) == 25,
                 "the stranger: %s", strerror(errno));
    }
    (void)cut_links(&fd, 1);
    while (th_rank() == th_size() - 1 && atomic_load(&n_refused) == 0) {
        th_sleep(0.005);
    }
    await_beats(60); /* more than DTR_NODE_SILENCE */
    for (int r = 0; r < th_size(); r++) {
        TH_CHECK(!dtr__rank_failed(th_world(), r), "rank %d counts as dead", r);
    }
    th_barrier();
    atomic_store(&no_descriptors, false);
    TH_ALL(th_rank() != 0 || is_closed(fd, 30000), "the port has stayed shut");
    TH_ALL(atomic_load(&n_refused) < 1000, "%d attempts", atomic_load(&n_refused));
    if (fd >= 0) {
        close(fd);
    }
    check_reports("after want of descriptors");
}
END_TEST

/* CP3: who says nothing, and who says a little now and then, is shown the door. */
START_TEST(CP3_half_open) {
    const int next = (th_rank() + 1) % th_size();
    const dtr__wire_head head = { .nbytes = sizeof(dtr__wire_hello), .kind = DTR__WIRE_HELLO };
    int idle = call_rank(next), slow = call_rank(next);
    bool open = true;
    for (int i = 0; i < 300 && open; i++) {
        const char byte = i < (int)sizeof head ? ((const char *)&head)[i] : 0;
        if (i < (int)sizeof head + 20) {
            (void)send(slow, &byte, 1, MSG_NOSIGNAL);
        }
        open = !is_closed(slow, 200);
    }
    TH_CHECK(!open, "who sends a byte at a time keeps its place");
    TH_CHECK(is_closed(idle, 60000), "who says nothing keeps its place");
    TH_AGREE();
    close(idle);
    close(slow);
}
END_TEST

static bool send_message(int fd, dtr__wire_kind kind, const void *data, size_t nbytes) {
    const dtr__wire_head head = { .nbytes = (uint32_t)nbytes, .kind = (uint32_t)kind };
    return send(fd, &head, sizeof head, MSG_NOSIGNAL) == (ssize_t)sizeof head &&
           send(fd, data, nbytes, MSG_NOSIGNAL) == (ssize_t)nbytes;
}

/* All that comes until the other side closes, or says no more. */
static size_t receive_all(int fd, void *data, size_t cap) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    size_t n = 0;
    ssize_t got = 1;
    while (n < cap && got > 0 && poll(&p, 1, 30000) == 1) {
        got = recv(fd, (char *)data + n, cap - n, 0);
        n += got > 0 ? (size_t)got : 0;
    }
    return n;
}

/* CP3: a stranger who knows all but the key gets a challenge and nothing else, whatever he
 * answers: nonsense, or what the rank itself has said to another connection. */
START_TEST(CP3_without_the_key) {
    const int next = (th_rank() + 1) % th_size();
    dtr__wire_hello h = { .magic = DTR__WIRE_MAGIC, .rank = th_rank(), .version = DTR_VERSION };
    const size_t challenge = sizeof(dtr__wire_head) + DTR__NONCE_BYTES;
    char got[512];
    unsigned char proof[DTR__PROOF_BYTES] = { 7 };
    for (int way = 0; way < 4; way++) {
        int fd = call_rank(next);
        (void)dtr__proof_random(h.nonce, sizeof h.nonce);
        bool sent = way == 3 || send_message(fd, DTR__WIRE_HELLO, &h, sizeof h);
        if (way == 1) { /* reflected: its own nonce back as a challenge to it */
            sent = sent && send_message(fd, DTR__WIRE_CHALLENGE, h.nonce, sizeof h.nonce);
        } else if (way == 2) {
            sent = sent && send_message(fd, DTR__WIRE_BEAT, "", 0);
        } else {
            sent = sent && send_message(fd, DTR__WIRE_PROOF, proof, sizeof proof);
        }
        size_t n = receive_all(fd, got, sizeof got);
        TH_CHECK(fd >= 0 && n <= (way == 3 ? 0 : challenge), "way %d: sent %d, %zu bytes came back",
                 way, sent, n);
        close(fd);
    }
    TH_AGREE();
    check_reports("after bad proofs");
}
END_TEST

/* CP3: the key does not leave the process, though connections are made over and over. */
START_TEST(CP3_key_is_not_sent) {
    TH_ALL(control()->hmac == (real_has_hmac() && getenv("TEST_WITHOUT_HMAC") == NULL), "HMAC: %d",
           (int)control()->hmac);
    atomic_store(&watches_key, control()->hmac);
    for (int round = 0; round < 3; round++) {
        th_barrier();
        (void)cut_links(NULL, 0);
        check_reports("after a cut");
    }
    TH_ALL(atomic_load(&n_key_sent) == 0, "the key was sent");
    atomic_store(&watches_key, false);
}
END_TEST

/* CP3: ports are open on the named interface and on no other. */
START_TEST(CP3_one_interface) {
    const offer *o = dtr__control_offer(th_world(), th_rank());
    const location *at = dtr__control_place(th_world(), th_rank());
    int n = 0;
    for (int fd = 3; fd < FDS_MOST; fd++) {
        int listens = 0;
        socklen_t nbytes = sizeof listens;
        struct in6_addr address;
        int port = port_of(fd, getsockname, &address);
        (void)getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &nbytes);
        if (listens && is_port_of(th_rank(), port)) {
            bool offered = IN6_IS_ADDR_UNSPECIFIED(&address) && at->any;
            for (int i = 0; i < at->n_addresses; i++) {
                offered |= !at->any && memcmp(&address, &at->address[i], sizeof address) == 0 &&
                           o->port[i] == port;
            }
            n++;
            TH_CHECK(offered, "port %d is open on an address that was not named", port);
        }
    }
    TH_CHECK(n == (at->any ? 1 : at->n_addresses), "%d ports are open", n);
    TH_CHECK(at->any == (getenv("DTR_CONTROL_INTERFACE") == NULL), "on any: %d", (int)at->any);
    TH_AGREE();
}
END_TEST

/* CP3: no such interface: one warning, and the world does without. */
START_TEST(CP3_no_such_interface) {
    dtr_world *w = NULL;
    const char *before = getenv("DTR_CONTROL_INTERFACE");
    char *kept = before != NULL ? strdup(before) : NULL;
    setenv("DTR_CONTROL_INTERFACE", "nosuch0", 1);
    TH_OK(dtr_world_create(NULL, &w));
    TH_ALL(!dtr__control_serves(w) && dtr__control_fd(w) < 0, "there is a control plane");
    TH_OK(dtr_world_destroy(w));
    if (kept != NULL) {
        setenv("DTR_CONTROL_INTERFACE", kept, 1);
    } else {
        unsetenv("DTR_CONTROL_INTERFACE");
    }
    free(kept);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "control", 300);
    th_add(tc, CP2_strangers_and_a_cut, 2, 0);
    th_add(tc, CP2_reset_is_not_refused, 2, 0);
    th_add(tc, CP3_no_descriptors, 2, 0);
    th_add(tc, CP3_half_open, 2, 0);
    th_add(tc, CP3_without_the_key, 2, 0);
    th_add(tc, CP3_key_is_not_sent, 2, 0);
    th_add(tc, CP3_one_interface, 2, 0);
    th_add(tc, CP3_no_such_interface, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "control", make);
}
