/* Files that the library writes: nothing is followed that somebody has put there, nobody else can
 * read them, and their numbers have a point in every locale (reliability: O6; metrics and traces).
 */
#include <ctype.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dtr/mpi.h>

#include "harness.h"

enum { PATH = 256, WHOLE = 4 << 20 };

static char folder[PATH];

static const char *in_folder(char path[PATH + 64], const char *name) {
    snprintf(path, PATH + 64, "%s/%s", folder, name);
    return path;
}

/* Its end; "" where there is none. */
static char *content(const char *path) {
    char *text = calloc(1, WHOLE + 1);
    FILE *f = fopen(path, "r");
    if (f != NULL) {
        (void)!fread(text, 1, WHOLE, f);
        fclose(f);
    }
    return text;
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (f != NULL) {
        fputs(text, f);
        fclose(f);
    }
}

/* ---- a world that writes everything ---- */

static dtr_world *open_world(void) {
    char path[PATH + 64];
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    setenv("DTR_RECORDER_DIR", folder, 1);
    setenv("DTR_METRICS_FILE", in_folder(path, "metrics.%r.prom"), 1);
    setenv("DTR_TRACE", in_folder(path, "calls.%r.tsv"), 1);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    setenv("DTR_RECORDER_DIR", "none", 1);
    unsetenv("DTR_METRICS_FILE");
    unsetenv("DTR_TRACE");
    return w;
}

static void use(dtr_world *w) {
    for (int i = 0; i < 5; i++) {
        th_good_allreduce(dtr_world_group(w));
        th_sleep(0.002);
    }
}

static void remove_all(void) {
    char command[PATH + 32];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    (void)!system(command);
}

/* The one of this rank that ends so. */
static bool find_file(const char *end, char path[PATH + 64]) {
    char command[2 * PATH];
    snprintf(command, sizeof command, "ls '%s'/*rank%d%s 2>/dev/null", folder, th_rank(), end);
    FILE *f = popen(command, "r");
    bool found = f != NULL && fgets(path, PATH + 64, f) != NULL;
    if (f != NULL) {
        pclose(f);
    }
    path[found ? strcspn(path, "\n") : 0] = '\0';
    return found;
}

static unsigned mode_of(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 ? (unsigned)st.st_mode : 0;
}

/* ---- links and modes ---- */

static void plant(const char *victim, const char *at) {
    (void)unlink(at);
    TH_CHECK(symlink(victim, at) == 0, "symlink %s", at);
}

/* Links lie where a dump, the metrics and what they are made from go. */
static void write_over_links(unsigned want) {
    char victim[PATH + 64], recording[PATH + 64] = "", dump[PATH + 80], at[PATH + 96];
    char metrics[PATH + 64], name[32];
    in_folder(victim, "victim");
    snprintf(name, sizeof name, "metrics.%d.prom", th_rank());
    in_folder(metrics, name);
    if (th_rank() == 0) {
        put(victim, "precious");
    }
    th_barrier();
    plant(victim, metrics);
    snprintf(at, sizeof at, "%s.new", metrics);
    plant(victim, at);
    dtr_world *w = open_world();
    TH_CHECK(find_file(".rec*", recording), "there is no recording");
    *strrchr(recording, '.') = '\0';
    snprintf(dump, sizeof dump, "%s.dump.json", recording);
    plant(victim, dump);
    snprintf(at, sizeof at, "%s.new", dump);
    plant(victim, at);
    use(w);
    TH_IS(dtr_world_dump(w, "a test"), DTR_OK);
    TH_CHECK(mode_of(dump) == (S_IFREG | 0600), "the dump has mode %o", mode_of(dump));
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(mode_of(metrics) == (S_IFREG | want), "the metrics have mode %o", mode_of(metrics));
    char *text = content(victim);
    TH_CHECK(strcmp(text, "precious") == 0, "a link was followed");
    free(text);
    text = content(metrics);
    TH_CHECK(strstr(text, "dtr_operations_total") != NULL, "the metrics are not whole");
    free(text);
    TH_AGREE();
}

START_TEST(links_are_not_followed) {
    mode_t before = umask(0);
    write_over_links(0600);
    umask(before);
}
END_TEST

/* A collector of another user asks for it. */
START_TEST(metrics_for_others) {
    mode_t before = umask(077);
    setenv("DTR_METRICS_PUBLIC", "1", 1);
    write_over_links(0644);
    unsetenv("DTR_METRICS_PUBLIC");
    umask(before);
}
END_TEST

/* What is appended to: a link of this user is his wish, one of another user a trap. */
START_TEST(traces_through_links) {
    char real[PATH + 64], link[PATH + 64], name[32];
    snprintf(name, sizeof name, "calls.%d.tsv", th_rank());
    in_folder(link, name);
    snprintf(name, sizeof name, "elsewhere.%d", th_rank());
    in_folder(real, name);
    plant(real, link);
    dtr_world *w = open_world();
    use(w);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(mode_of(real) == (S_IFREG | 0600), "the trace has mode %o", mode_of(real));
    TH_AGREE();
    if (geteuid() == 0) { /* nobody else can give a link away */
        put(real, "precious");
        TH_CHECK(lchown(link, 65534, 65534) == 0, "lchown");
        w = open_world();
        use(w);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        char *text = content(real);
        TH_CHECK(strcmp(text, "precious") == 0, "another user's link was followed");
        free(text);
    }
    TH_AGREE();
}
END_TEST

/* ---- numbers ---- */

static bool has_comma(void) {
    return strcmp(localeconv()->decimal_point, ",") == 0;
}

/* One that is there, or one made for the occasion. */
static bool set_comma_locale(void) {
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8" };
    char command[2 * PATH];
    for (int i = 0; i < 4; i++) {
        if (setlocale(LC_ALL, names[i]) != NULL && has_comma()) {
            return true;
        }
    }
    snprintf(command, sizeof command,
             "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", folder);
    if (th_rank() == 0) {
        (void)!system(command);
    }
    th_barrier();
    setenv("LOCPATH", folder, 1);
    bool fine = setlocale(LC_ALL, "de_DE.UTF-8") != NULL && has_comma();
    unsetenv("LOCPATH");
    return fine;
}

/* A comma between two digits outside strings, which no list of ours has. NULL: there is none. */
static const char *comma_in(const char *text) {
    bool quoted = false;
    for (const char *c = text; c[0] != '\0' && c[1] != '\0'; c++) {
        quoted ^= *c == '"' && (c == text || c[-1] != '\\');
        if (!quoted && isdigit((unsigned char)c[0]) && c[1] == ',' &&
            isdigit((unsigned char)c[2])) {
            return c;
        }
    }
    return NULL;
}

static void expect_points(const char *path, const char *what) {
    char *text = content(path);
    const char *comma = comma_in(text);
    TH_CHECK(text[0] != '\0', "there is no %s", path);
    TH_CHECK(comma == NULL, "%s has '%.12s'", what, comma != NULL ? comma : "");
    free(text);
}

START_TEST(numbers_have_points) {
    char path[PATH + 64], name[32];
    uint64_t comma = set_comma_locale(), all[64], able = 1;
    th_gather_u64(comma, all);
    for (int r = 0; r < th_size(); r++) {
        able = able && all[r];
    }
    if (!able) {
        setlocale(LC_ALL, "C");
        th_skip("numbers_have_points", "no locale with a decimal comma, and none can be made");
        return;
    }
    setenv("DTR_TIMEOUT", "77.5", 1);
    dtr_world *w = open_world();
    unsetenv("DTR_TIMEOUT");
    use(w);
    TH_IS(dtr_world_dump(w, "a test"), DTR_OK);
    TH_CHECK(find_file(".dump.json", path), "there is no dump");
    expect_points(path, "the dump");
    char *text = content(path);
    TH_CHECK(strstr(text, "77.5") != NULL, "the dump has no setting 77.5");
    free(text);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    snprintf(name, sizeof name, "metrics.%d.prom", th_rank());
    expect_points(in_folder(path, name), "the metrics");
    snprintf(name, sizeof name, "calls.%d.tsv", th_rank());
    expect_points(in_folder(path, name), "the trace");
    TH_CHECK(has_comma(), "the program's locale was changed");
    setlocale(LC_ALL, "C");
    TH_AGREE();
}
END_TEST

static void make_folder(void) {
    char nonce[32] = "";
    uint64_t mine = (uint64_t)getpid(), all[64];
    th_gather_u64(mine, all);
    snprintf(nonce, sizeof nonce, "%llx", (unsigned long long)all[0]);
    snprintf(folder, sizeof folder, "/tmp/dtr-files-%s", nonce);
    (void)mkdir(folder, 0700);
    th_barrier();
}

static void drop_folder(void) {
    th_barrier();
    if (th_rank() == 0) {
        remove_all();
    }
    th_barrier();
}

static void make(Suite *s) {
    TCase *tc = th_case(s, "files", 120);
    tcase_add_checked_fixture(tc, make_folder, drop_folder);
    th_add(tc, links_are_not_followed, 1, 0);
    th_add(tc, metrics_for_others, 1, 0);
    th_add(tc, traces_through_links, 1, 0);
    th_add(tc, numbers_have_points, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "files", make);
}
