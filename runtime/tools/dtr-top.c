/* dtr-top: what the ranks of a job do, from the recordings that they write anyway. */
#include <stdlib.h>
#include <string.h>

#include "top.h"

const char doctor_program[] = "dtr-top";

static const char usage[] =
    "usage: dtr-top\n"
    "       dtr-top [--once [--json]] [--interval S] [--sort KEY] [--reverse] FOLDER|FILE...\n"
    "       dtr-top --version\n"
    "\n"
    "Shows what the ranks of a job do, the one that holds up the others first. Without arguments\n"
    "the jobs whose recordings are on this host, the newest first.\n"
    "\n"
    "  FOLDER        where the recordings are (DTR_RECORDER_DIR, or dtr-<uid>-<job> in TMPDIR or\n"
    "                /tmp). Ranks of other hosts are shown as they were reported last;\n"
    "                give the folders of all hosts, where they can be read, to see more\n"
    "  --once        print one table and end\n"
    "  --json        with --once: for programs\n"
    "  --interval S  look every S seconds, 0.1 to 3600 (1); rates are over the last S seconds\n"
    "  --sort KEY    held (ranks that hold up others, or died), rank, state, steps, ops, gb,\n"
    "                exposed, last, lag\n"
    "  --reverse     the other way round\n"
    "\n"
    "step/s and exposed (the part of the communication that the program waited for) are those of\n"
    "gradient averaging; last in: into how many of the newest operations the rank was the last,\n"
    "and by ms how long after the median rank; holds: how many ranks wait for it.\n"
    "Keys: arrows, F6 or < > sort, F4 or / filter, space pauses, F1 or h helps, F10 or q quits.\n"
    "\n"
    "Exit status: 0, or 2 where nothing could be read or shown. Needs no MPI.\n";

typedef struct settings {
    bool once, json;
    double every_s;
} settings;

static const doctor_need needs[] = {
    { "--interval", "a number of seconds from 0.1 to 3600" },
    { "--sort", "one of held, rank, state, steps, ops, gb, exposed, last, lag" }
};

/* One option, and how many arguments it is; 0: it is none. */
static int parse_one(char **arg, settings *set, top_table *t) {
    if (strcmp(*arg, "--once") == 0) {
        set->once = true;
    } else if (strcmp(*arg, "--json") == 0) {
        set->json = true;
    } else if (strcmp(*arg, "--reverse") == 0) {
        t->reversed = true;
    } else if (strcmp(*arg, "--interval") == 0 && doctor_number(arg[1], 0.1, 3600, &set->every_s)) {
        return 2;
    } else if (strcmp(*arg, "--sort") == 0 && top_key_find(arg[1], &t->key)) {
        return 2;
    } else {
        return 0;
    }
    return 1;
}

/* What follows the options; NULL after saying what is wrong. */
static char **parse(char **arg, settings *set, top_table *t) {
    while (*arg != NULL && (*arg)[0] == '-') {
        const int n = parse_one(arg, set, t);
        if (n == 0) {
            doctor_refuse(*arg, needs, sizeof needs / sizeof needs[0]);
            fputs(usage, stderr);
            return NULL;
        }
        arg += n;
    }
    const char *wrong = set->json && !set->once ? "--json goes with --once"
                        : *arg == NULL          ? "which folder?"
                                                : NULL;
    if (wrong != NULL) {
        fprintf(stderr, "dtr-top: %s\n%s", wrong, usage);
        return NULL;
    }
    return arg;
}

static int once(top_table *t, bool json) {
    top_ask(t, 3);
    if (!top_rows(t)) {
        fprintf(stderr, "dtr-top: no memory for the table\n");
        return 2;
    }
    (json ? top_print_json : top_print)(t, stdout);
    return 0;
}

#ifndef DTR_TOP_SCREEN
int top_screen(top_table *t, char *const *path, double every_s) {
    (void)t, (void)path, (void)every_s;
    fprintf(stderr,
            "dtr-top: built without ncurses, so without a live view; --once prints a table\n");
    return 2;
}
#endif

int main(int argc, char **argv) {
    settings set = { .every_s = 1 };
    top_table t = { .key = TOP_HELD };
    int code = 2;
    if (doctor_asks_no_job(argc, argv, usage, "shows what its ranks do", &code)) {
        return code;
    }
    char **path = parse(argv + 1, &set, &t);
    t.window_s = set.every_s;
    if (path != NULL && doctor_read_first(&t.job, path)) {
        code = set.once ? once(&t, set.json) : top_screen(&t, path, set.every_s);
    }
    top_forget(&t);
    return code;
}
