"""One vocabulary. Names, comments, messages, settings and pages say what others in this field say (`OLD` below lists the words that
they do not use, with the word that stands for each), comments and messages state rules in words and not as the
numbers of a list that is not in the tree, and no file has more than 600 lines.

Usage: words.py [FOLDER]    with a folder (or file): every place in it, with its line
"""
import collections
import os
import re
import sys

from common import LAYERS, read, tree_files, verdict

LONGEST = 600
CODE = (".c", ".h", ".cu", ".def")
SHM, HIER, CAST = "collectives/backends/shm/", "collectives/backends/hier/", ("ddp/device/", "ddp/reducer/cast")

# What it is called now, parts of names that say otherwise, texts that do, and where (all files, if nothing is said). A part of a
# name is what stands between underscores.
OLD = [
    ("agreement", "meet meets meeting meetings", r"meetings?", None),
    ("coordinator", "chair", r"chair", None),
    ("backup", "deputy deputies", r"deput(?:y|ies)", None),
    ("control message", "letter letters", r"(?<!%d )letters?", "collectives/"),
    # MPI's word for a receive that has been called stays: "post a receive", "posted".
    ("slot", "post posts", r"posts?(?! (?:a|the|its|their|no) (?:receive|message|request))", "collectives/"),
    ("failure record, step status", "verdict verdicts", r"verdicts?", None),
    ("vote", "ballot ballots", r"ballots?", None),
    ("receive", "heard hear", r"heard", None),
    ("propagate, report", "tell tells telling", r"tells? (?:each other|(?:the|all) others?|(?:of|about) itself)|who is told", None),
    ("report failure", "accuse accused accuses", r"accus\w+", None),
    ("failure record", "account accounts", r"(?<!into )(?<!takes )accounts?(?! for)", None),
    ("notify", "notice notices news", r"news|(?<!can )(?<!to )notices?", None),
    ("peer failure", "death deaths", r"deaths?", None),
    ("early destroy", "ending", None, None),
    ("progress lock", "latch latches", r"latch\w*", None),
    # A memory fence is one.
    ("stream dependency", "fence fences fenced", r"(?<!memory )(?<!know )fences?", None),
    ("signature", "declare", None, "collectives/"),
    ("mismatch", "odd disagreement", r"odd one|disagreements?", None),
    ("deferred, stragglers", "late", None, ("collectives/", "runtime/")),
    ("on_destroy listener", "tenant tenants evict evicted", r"tenants?|evict\w*", None),
    ("fast path", "repeat repeats", r"(?:a|the|this|that|own|no) repeats?|of a sort", None),
    ("intra-node", "here", r"on \*?here\*?", HIER),
    ("inter-node", "wire", r"(?:the|a|on) \*?wire\*?", HIER),
    ("non-temporal", "past", r"past (?:the|its|their|all|both)(?: last)? caches?", None),
    ("oversubscribed", "crowded", r"crowded", None),
    ("spare cores", "roomy", r"roomy", None),
    ("polls", "looks", r"(?:few|some|many|two|of|between) looks?", None),
    ("run of equal calls", "row", r"in a row of", SHM),
    ("run-ahead", "lead", None, SHM),
    ("remote", "far", None, None),
    ("capacity", "room rooms", None, None),
    ("cast copy", "shadow shadows", r"shadows?", CAST),  # elsewhere join's word
    ("reported, user's call", "told said", None, None),
    ("call site", "dtr__place", r"notes? (?:no|a) place", None),
]
# Names and texts that keep such a word, and why.
SAME = {
    "atomic_thread_fence": "C11's name", "atomic_signal_fence": "C11's name", "sfence": "the instruction",
    "in_place": "MPI's word",
}
# These have their own meaning of a word: (word, start of a path).
ELSEWHERE = [
    ("row", SHM),  # of a table
    ("odd", "collectives/kernels/"), ("odd", "collectives/cuda/"),  # rounding to odd
    ("fence", "collectives/kernels/"),  # of memory
    # What a test or a program that measures comes to.
    *(("verdict", path) for path in ("scripts/", ".ci/", "CONTRIBUTING.md")),
    ("meet", "docs/internals/runtime.md"),  # dtr__mpi_meet, two barriers
    ("post", "collectives/backends/mpi/"),  # MPI's word for starting a send or receive
    ("here", "collectives/backends/hier/README"),  # a page, where it is the English word
]
CODES = re.compile(r"\b(?:U|COL|DES|NEW|N|T|R|K|O|Y|AB|E|F|G|P|S|V|W)[0-9]{1,2}[a-z]?\b(?! (?:byte|matrix))")
TWO_LETTERS = re.compile(r"\b[A-Z]{2}[0-9]{1,2}[a-z]?\b")  # these in messages too
NO_CODES = re.compile(r"^(?:R?O[0-3s]|[A-Z]8|E[45]|BF16)$")  # levels of optimisation; formats E4M3, E5M2; a type
folder = sys.argv[1].removeprefix("./") if len(sys.argv) > 1 else None
found = collections.defaultdict(list)  # what: places, as (path, line, text)
lengths = {}


def looked_at(path):
    if path.startswith(LAYERS) or path.startswith(("examples/", "cmake/")) and path.endswith(CODE + (".md", ".cmake")):
        return path.endswith(CODE + (".md", ".cmake", "CMakeLists.txt"))
    return path in ("README.md", "CONTRIBUTING.md") or path.startswith(("docs/", "scripts/", ".ci/")) and \
        path.endswith((".md", ".py", ".c", "run")) or path.startswith("scripts/") and "." not in os.path.basename(path)


def in_place(path, start):
    return start is None or path.startswith(start) or path.startswith("docs/internals")


def parts_of_c(text):
    """The program, and its comments and strings, each with all else blank, so that lines stay."""
    prose, last = [], 0
    code = []
    for match in re.finditer(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', text, flags=re.S):
        gap = text[last:match.start()]
        code.append(gap + re.sub(r"[^\n]", " ", match.group(0)))
        prose.append(re.sub(r"[^\n]", " ", gap) + match.group(0))
        last = match.end()
    code.append(text[last:])
    return "".join(code), "".join(prose)


public = set()
for path in tree_files(".h"):
    if "/include/dtr/" in path:
        public |= set(re.findall(r"\w+", re.sub(r"/\*.*?\*/", " ", read(path), flags=re.S)))
by_part = collections.defaultdict(list)
for entry in OLD:
    for part in entry[1].split():
        by_part[part].append(entry)
texts = [(entry, re.compile(r"(?<![\w`\"/.-])(?:%s)(?![\w-])" % entry[2], re.I)) for entry in OLD if entry[2]]


def note(path, text, at, word):
    found[word].append((path, text.count("\n", 0, at) + 1, text[text.rfind("\n", 0, at) + 1:(text + "\n").find("\n", at)].strip()))


def names_in(path, text):
    for match in re.finditer(r"[A-Za-z_]\w*", text):
        name = match.group(0)
        if name in public or name in SAME:
            continue
        for part in {name, *name.lower().split("_")}:
            for entry in by_part.get(part, ()):
                if in_place(path, entry[3]) and not any(part == word and path.startswith(start) for word, start in ELSEWHERE):
                    yield match.start(), part


def texts_in(path, text):
    for entry, pattern in texts:
        if not in_place(path, entry[3]):
            continue
        for match in pattern.finditer(text):
            word = match.group(0).lower()
            if not any(re.search(r"\b%s\b" % w, word) and path.startswith(start) for w, start in ELSEWHERE):
                yield match.start(), entry[1].split()[0]


seen = 0
for path in tree_files():
    if not looked_at(path):
        continue
    seen += 1
    text = read(path)
    c = path.endswith(CODE)
    program, prose = parts_of_c(text) if c else ("", text)
    lines = set()  # one place per word and line
    for at, word in [*names_in(path, program), *texts_in(path, prose)]:
        if (word, text.count("\n", 0, at)) not in lines:
            lines.add((word, text.count("\n", 0, at)))
            note(path, text, at, "word " + word)
    if not c:  # names that pages tell of
        for match in re.finditer(r"\b(?:dtr|DTR)__\w+", text):
            for at, word in names_in(path, match.group(0)):
                note(path, text, match.start(), "word " + word)
    if c:
        comments = re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: " " * len(m.group(0)), prose)
        for match in [*CODES.finditer(comments), *TWO_LETTERS.finditer(prose)]:
            if not NO_CODES.match(match.group(0)):
                note(path, text, match.start(), "code of a rule")
for path in tree_files(*CODE, ".f90", ".F90", ".py", ".sh", ".cmake", "CMakeLists.txt"):
    lines = len(read(path).splitlines())
    if lines > LONGEST:
        lengths[path] = lines

if folder is not None:
    for what, places in sorted(found.items()):
        for path, line, text in places:
            if path.startswith(folder):
                print("%s:%d: %s: %s" % (path, line, what.removeprefix("word "), text[:110]))
    sys.exit(0)

problems = []
instead = {part: entry[0] for entry in OLD for part in entry[1].split()}
for what, places in sorted(found.items()):
    word = what.removeprefix("word ")
    problems.append("%s: %d places%s; python3 tests/checks/words.py FOLDER shows those of a folder" %
                    (what, len(places), " (say: %s)" % instead[word] if word in instead else ""))
    problems += ["    %s:%d: %s" % place for place in places[:20]]
problems += ["%s has %d lines, %d are allowed: split it where two things meet" % (path, lines, LONGEST)
             for path, lines in sorted(lengths.items())]
if seen < 300:
    problems.append("only %d files looked at: is the check broken?" % seen)
verdict(problems, "%d files, no word of another vocabulary and no code of a rule, none over %d lines" % (seen, LONGEST))
