/* The live view of dtr-top. It draws what was read last; a key or the time makes it read or draw
 * anew. */
#include <curses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "top.h"

enum { HEADER = 5, FOOTER = 4, LINE = 1024, FILTER = 64, TICK_MS = 100, ESCAPE = 27 };
#define ANSWER_S 0.15 /* keys wait meanwhile; what was answered before is good enough */

typedef enum mode { NORMAL, HELP, SORT, TYPING } mode;

typedef struct view {
    top_table *t;
    char *const *path;
    double every_s;
    mode mode;
    bool paused, ended;
    int chosen_rank;     /* -1: none yet */
    size_t chosen, from; /* of the rows shown: the chosen one's place, the first on the screen */
    size_t shown;        /* rows that pass the filter */
    int choice;          /* of the menu of keys */
    char filter[FILTER];
} view;

static volatile sig_atomic_t asked_to_end;

static void on_signal(int number) {
    (void)number;
    asked_to_end = 1;
}

/* ---- rows ---- */

static bool passes(const view *v, const top_row *r) {
    char line[LINE];
    top_line(r, line, sizeof line);
    return strstr(line, v->filter) != NULL || strstr(r->host, v->filter) != NULL;
}

/* The i'th row that passes the filter. */
static const top_row *row_at(const view *v, size_t i) {
    for (size_t k = 0; k < v->t->n; k++) {
        if (passes(v, &v->t->row[k]) && i-- == 0) {
            return &v->t->row[k];
        }
    }
    return NULL;
}

static size_t visible(void) {
    return LINES > HEADER + FOOTER ? (size_t)(LINES - HEADER - FOOTER) : 1;
}

/* The chosen rank stays chosen wherever it is sorted to. */
static void settle(view *v) {
    v->shown = 0;
    size_t at = v->chosen;
    for (size_t k = 0; k < v->t->n; k++) {
        if (passes(v, &v->t->row[k])) {
            at = v->t->row[k].rank == v->chosen_rank ? v->shown : at;
            v->shown++;
        }
    }
    v->chosen = at < v->shown ? at : v->shown > 0 ? v->shown - 1 : 0;
    v->from = v->chosen < v->from ? v->chosen : v->from;
    v->from = v->chosen >= v->from + visible() ? v->chosen - visible() + 1 : v->from;
}

static void choose(view *v, long at) {
    const long last = v->shown > 0 ? (long)v->shown - 1 : 0;
    v->chosen = (size_t)(at < 0 ? 0 : at > last ? last : at);
    const top_row *r = row_at(v, v->chosen);
    v->chosen_rank = r != NULL ? r->rank : -1;
    settle(v);
}

/* What was read last stays when there is nothing to be read any more. */
static bool look(view *v) {
    top_table next = *v->t;
    next.job = (doctor_job){ .id = v->t->job.id };
    next.row = NULL;
    next.waits = NULL;
    next.remote = NULL;
    if (!doctor_read(&next.job, v->path)) {
        doctor_forget(&next.job);
        v->ended = true;
        return true;
    }
    top_ask(&next, ANSWER_S);
    const bool fine = top_rows(&next);
    top_forget(v->t);
    *v->t = next;
    v->ended = !doctor_runs(&v->t->job);
    return fine;
}

/* ---- drawing ---- */

static void put(int y, int x, const char *text) {
    if (y >= 0 && y < LINES && x < COLS) {
        mvaddnstr(y, x, text, COLS - x);
    }
}

static void fill(int y, const char *text, attr_t how) {
    attron(how);
    mvhline(y, 0, ' ', COLS);
    put(y, 0, text);
    attroff(how);
}

static void draw_header(const view *v) {
    char text[LINE] = "", *bytes = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&bytes, &n);
    if (to != NULL) {
        doctor_print_job(&v->t->job, to);
        (void)fclose(to);
        for (char *c = bytes; c != NULL && *c != '\0'; c++) {
            *c = *c < 0x20 || *c >= 0x7f ? ' ' : *c;
        }
        put(0, 0, bytes != NULL ? bytes : "");
        free(bytes);
    }
    top_summary(v->t, text, sizeof text);
    put(1, 0, text);
    top_unseen(v->t, text, sizeof text);
    put(2, 0, text);
    snprintf(text, sizeof text, "sorted by %s%s%s%s%s%s", top_key_name(v->t->key),
             v->t->reversed ? ", reversed" : "", v->filter[0] != '\0' ? ", only lines with " : "",
             v->filter, v->paused ? ", PAUSED" : "", v->ended ? ", the job has ended" : "");
    put(3, 0, text);
    top_head(text, sizeof text);
    fill(HEADER - 1, text, A_REVERSE);
}

static attr_t look_of(const top_row *r) {
    const bool bad = strcmp(r->state, "running") != 0 && strcmp(r->state, "ended") != 0;
    return bad || r->held_s > 1 ? A_BOLD : A_NORMAL;
}

/* Who is chosen, in full, in the two lines above the last one. */
static void draw_chosen(const view *v, const top_row *r) {
    char doing[768], text[LINE];
    if (r != NULL) {
        snprintf(text, sizeof text, "rank %d (host %s, pid %u): %s", r->rank, r->host, r->pid,
                 r->rec != NULL ? doctor_doing(&v->t->job, r->rank, doing, sizeof doing)
                                : r->remote->report.doing);
        for (char *c = text; *c != '\0'; c++) {
            *c = *c < 0x20 || *c >= 0x7f ? '?' : *c;
        }
        put(LINES - 3, 0, text);
        if (strlen(text) > (size_t)COLS) {
            put(LINES - 2, 0, text + COLS);
        }
    }
}

static void draw_rows(const view *v) {
    char text[LINE];
    for (size_t i = 0; i < visible() && v->from + i < v->shown; i++) {
        const top_row *r = row_at(v, v->from + i);
        if (r != NULL) {
            top_line(r, text, sizeof text);
            fill(HEADER + (int)i, text,
                 look_of(r) | (v->from + i == v->chosen ? A_STANDOUT : A_NORMAL));
        }
    }
}

static const char *const help[] = {
    "Each line is a rank. \"holds\" is how many ranks wait for it, \"waits\" for whom it waits.",
    "step/s and exposed, the part of the communication that is waited for, are those of",
    "gradient averaging; op/s and GB/s count operations that have ended. \"last in\": into how",
    "many of the newest operations it was the last, \"by ms\" behind the median rank.",
    "",
    "  up down, PgUp PgDn, Home End   choose a rank; what it does stands below",
    "  < >                            sort by the column before, after",
    "  F6                             choose what to sort by",
    "  I                              sort the other way round",
    "  F4 /                           show only lines with a text; Esc shows all again",
    "  space                          pause",
    "  F10 q                          quit",
    "",
    "Any key goes back."
};

static void draw_menu(const view *v) {
    fill(HEADER - 1, "sort by (arrows, Enter; Esc leaves it as it is)", A_REVERSE);
    for (int k = 0; k < TOP_KEYS; k++) {
        fill(HEADER + k, top_key_name((top_key)k), k == v->choice ? A_STANDOUT : A_NORMAL);
    }
}

static void draw(const view *v) {
    char text[LINE];
    erase();
    if (v->mode == HELP) {
        for (int i = 0; i < (int)(sizeof help / sizeof help[0]); i++) {
            put(i, 0, help[i]);
        }
    } else {
        draw_header(v);
        if (v->mode == SORT) {
            draw_menu(v);
        } else {
            draw_rows(v);
            draw_chosen(v, row_at(v, v->chosen));
        }
        snprintf(text, sizeof text, v->mode == TYPING ? "filter: %s_" : "%s",
                 v->mode == TYPING
                     ? v->filter
                     : "F1 Help  F4 Filter  F6 Sort  <> Column  Space Pause  F10 Quit");
        fill(LINES - 1, text, A_REVERSE);
    }
    refresh();
}

/* ---- keys ---- */

static void sort_by(view *v, int key) {
    v->t->key = (top_key)((key + TOP_KEYS) % TOP_KEYS);
    top_sort(v->t);
    settle(v);
}

static void type(view *v, int key) {
    const size_t n = strlen(v->filter);
    if (key == '\n' || key == '\r' || key == KEY_ENTER) {
        v->mode = NORMAL;
    } else if (key == ESCAPE) {
        v->filter[0] = '\0';
        v->mode = NORMAL;
    } else if ((key == KEY_BACKSPACE || key == 127 || key == '\b') && n > 0) {
        v->filter[n - 1] = '\0';
    } else if (key >= ' ' && key < 127 && n + 1 < sizeof v->filter) {
        v->filter[n] = (char)key;
        v->filter[n + 1] = '\0';
    }
    settle(v);
}

static void pick(view *v, int key) {
    if (key == KEY_UP || key == KEY_DOWN) {
        v->choice = (v->choice + (key == KEY_UP ? TOP_KEYS - 1 : 1)) % TOP_KEYS;
    } else if (key == '\n' || key == '\r' || key == KEY_ENTER) {
        v->mode = NORMAL;
        sort_by(v, v->choice);
    } else if (key == ESCAPE || key == 'q' || key == KEY_F(6)) {
        v->mode = NORMAL;
    }
}

/* False: quit. */
static bool command(view *v, int key) {
    const long at = (long)v->chosen, page = (long)visible();
    if (key == KEY_UP || key == KEY_DOWN) {
        choose(v, key == KEY_UP ? at - 1 : at + 1);
    } else if (key == KEY_PPAGE || key == KEY_NPAGE) {
        choose(v, key == KEY_PPAGE ? at - page : at + page);
    } else if (key == KEY_HOME || key == KEY_END) {
        choose(v, key == KEY_HOME ? 0 : (long)v->shown);
    } else if (key == '<' || key == '>') {
        sort_by(v, (int)v->t->key + (key == '<' ? -1 : 1));
    } else if (key == 'I') {
        v->t->reversed = !v->t->reversed;
        sort_by(v, (int)v->t->key);
    } else if (key == KEY_F(6)) {
        v->mode = SORT;
        v->choice = (int)v->t->key;
    } else if (key == KEY_F(4) || key == '/') {
        v->mode = TYPING;
    } else if (key == KEY_F(1) || key == 'h' || key == '?') {
        v->mode = HELP;
    } else if (key == ESCAPE) {
        v->filter[0] = '\0';
        settle(v);
    } else if (key == ' ') {
        v->paused = !v->paused;
    }
    return key != 'q' && key != KEY_F(10);
}

static bool take(view *v, int key) {
    if (v->mode == HELP) {
        v->mode = NORMAL;
    } else if (v->mode == SORT) {
        pick(v, key);
    } else if (v->mode == TYPING) {
        type(v, key);
    } else {
        return command(v, key);
    }
    return true;
}

/* ---- life ---- */

/* False: no memory. */
static bool run(view *v) {
    int64_t next = doctor_clock() + (int64_t)(1e9 * v->every_s);
    bool fine = top_rows(v->t), goes_on = true, changed = true;
    v->ended = !doctor_runs(&v->t->job);
    while (fine && goes_on && !asked_to_end) {
        if (changed) {
            settle(v);
            draw(v);
        }
        const int key = getch();
        changed = key != ERR;
        goes_on = key == ERR || key == KEY_RESIZE || take(v, key);
        if (doctor_clock() >= next) {
            next = doctor_clock() + (int64_t)(1e9 * v->every_s);
            if (!v->paused && !v->ended) {
                fine = look(v);
                changed = true;
            }
        }
    }
    return fine;
}

int top_screen(top_table *t, char *const *path, double every_s) {
    view v = { .t = t, .path = path, .every_s = every_s, .chosen_rank = -1 };
    struct sigaction end = { .sa_handler = on_signal };
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        fprintf(stderr, "dtr-top: this is no terminal; --once prints a table\n");
        return 2;
    }
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (screen == NULL) {
        fprintf(stderr, "dtr-top: the terminal \"%s\" (TERM) is not known; --once prints a table\n",
                getenv("TERM") != NULL ? getenv("TERM") : "");
        return 2;
    }
    (void)sigaction(SIGINT, &end, NULL);
    (void)sigaction(SIGTERM, &end, NULL);
    (void)sigaction(SIGHUP, &end, NULL);
    (void)cbreak();
    (void)noecho();
    (void)curs_set(0);
    (void)keypad(stdscr, TRUE);
    set_escdelay(25);
    timeout(TICK_MS);
    const bool fine = run(&v);
    (void)endwin();
    delscreen(screen);
    if (!fine) {
        fprintf(stderr, "dtr-top: no memory for the table\n");
    }
    return fine ? 0 : 2;
}
