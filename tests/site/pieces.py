"""Programs of the pieces of C that a page shows: all of a page in one source, pieces.c, on top of given.h, which makes what they
presuppose. The program that it becomes runs the piece whose name it was started by, under its own name all without one."""
import os
import re

# For what a piece uses and does not declare.
GIVEN = {"world": "dtr_world *", "group": "dtr_group *", "pairs": "dtr_group *", "ddp": "dtr_ddp *", "zero": "dtr_zero *", "optim": "dtr_optim *",
         "sampler": "dtr_sampler *", "weight": "dtr_tensor *", "bias": "dtr_tensor *", "loss": "float ", "grid": "MPI_Comm ", "my_comm": "MPI_Comm "}
COMPILE = ("mpicc -std=c11 -Wall -Wextra -Wno-unused -Wno-missing-field-initializers -Werror -I%s pieces.c "
           "$(pkg-config --cflags --libs dtr) -Wl,-rpath,$(pkg-config --variable=libdir dtr) -o pieces" % os.path.dirname(__file__))


class Piece:
    """A block of C without main; `name` is that of its program, "" without one."""

    def __init__(self, name, line, text):
        self.name, self.line = name, line
        self.includes = "".join(re.findall(r"^#include .*\n", text, flags=re.M))
        body = re.sub(r"^#include .*$", "", text, flags=re.M)
        self.functions = re.findall(r"^static [^;{]*\) \{\n.*?^\}\n", body, flags=re.M | re.S)
        for function in self.functions:
            body = body.replace(function, "\n" * function.count("\n"))
        self.body = body

    def source(self, number, page):
        given = "".join("    %s%s = given_%s();\n    (void)%s;\n" % (kind, name, name, name) for name, kind in GIVEN.items()
                        if re.search(r"\b%s\b" % name, self.body) and not re.search(r"[\w*] \*?%s(?:\[\])? =|, %s =" % (name, name), self.body))
        own = "dtr_world *world = NULL;" in self.body and "dtr_world_destroy(world)" not in self.body
        return "%sstatic int piece_%d(void) {\n%s#line %d \"%s\"\n%s%s    return 0;\n}\n\n" % (
            "".join(self.functions), number, given, self.line, page, self.body, "    dtr_world_destroy(world);\n" if own else "")


def write(made, page, path):
    with open(path, "w", encoding="utf-8") as out:
        out.write("".join(piece.includes for piece in made) + '#include "given.h"\n\n')
        out.write("".join(piece.source(number, page) for number, piece in enumerate(made)))
        out.write("static const struct piece pieces[] = {\n")
        out.write("".join('    { "%s", "%s:%d", piece_%d },\n' % (piece.name, page, piece.line, number) for number, piece in enumerate(made)))
        out.write("};\n\nint main(int argc, char **argv) {\n    return run_pieces(argc, argv, pieces, sizeof pieces / sizeof *pieces);\n}\n")
