/* A rank that runs another program by exec is gone, and the others are told so by name before their
 * limit (reliability: N4). The launcher ends the job as it likes, so each survivor says what it was
 * told. */
#include <dtr/coll.h>
#include <dtr/world.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    dtr_world *w = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    char words[64], line[4096];
    o.timeout_s = 120;
    if (dtr_world_create(&o, &w) != DTR_OK) {
        return 1;
    }
    dtr_group *g = dtr_world_group(w);
    int rank = dtr_world_rank(w), victim = dtr_world_size(w) - 1;
    dtr_status s = dtr_barrier(g, NULL, NULL);
    if (rank == victim) {
        execl("/bin/sleep", "sleep", "100", (char *)NULL);
        return 1;
    }
    snprintf(words, sizeof words, "rank %d (host", victim);
    s = s == DTR_OK ? dtr_barrier(g, NULL, NULL) : s;
    const char *told = dtr_last_error_message();
    bool fine = s == DTR_ERR_REMOTE && strncmp(told, words, strlen(words)) == 0 &&
                strstr(told, "runs another program (exec)") != NULL;
    int n = snprintf(line, sizeof line, "rank %d %s: %s\n", rank,
                     fine ? "was told" : "was NOT told", told);
    (void)!write(STDOUT_FILENO, line, (size_t)n);
    sleep(3); /* the launcher ends all with the first; late words are lost words */
    _exit(0);
}
