/* Make a world and say how large it is. With "killed" the process then ends as if the kernel had
 * killed it, with "wait" once its standard input has ended. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <dtr/world.h>

int main(int argc, char **argv) {
    dtr_world *world = NULL;
    dtr_status s = dtr_world_create(NULL, &world);
    if (s < 0) {
        fprintf(stderr, "%s: %s\n", dtr_status_name(s), dtr_last_error_message());
        return 1;
    }
    printf("world of %d\n", dtr_world_size(world));
    fflush(stdout);
    if (argc > 1) {
        while (strcmp(argv[1], "wait") == 0 && getchar() != EOF) {
        }
        raise(SIGKILL);
    }
    return dtr_world_destroy(world) < 0;
}
