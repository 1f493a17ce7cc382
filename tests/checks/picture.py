"""docs/rooms.svg shows the rooms of each layer, lowest at the bottom, and who includes whose interface: an arrow for each pair that
follows from no other two. The build says which rooms there are and in which order; DTR_PICTURE_KEEP=1 ctest -R check_picture draws
the picture anew.

Usage: picture.py TARGET... (of the rooms, lowest first)
"""
import os
import re
import sys

from common import LAYERS, ROOT, read, tree_files, verdict

PICTURE = "docs/rooms.svg"
WIDTH, STEP, BOX, HEIGHT = 250, 34, 140, 24  # of a layer's column; between two rooms; a room's box
TOP, MARGIN, LANE = 46, 16, 7


def folder_of(target):
    """dtr_collectives_backends_shm: ('collectives', 'backends/shm')"""
    layer = next(name for name in LAYERS if target.startswith("dtr_%s_" % name))
    rest = target.removeprefix("dtr_%s_" % layer)
    for name in (rest, rest.replace("_", "/")):
        if os.path.isdir(os.path.join(ROOT, layer, name)):
            return layer, name
    sys.exit("there is no folder of %s" % target)


rooms = [folder_of(target) for target in sys.argv[1:]]
level = {room: i for i, room in enumerate(rooms)}


def room_of(path):
    return max((room for room in rooms if path.startswith("%s/%s/" % room)), key=lambda room: len(room[1]), default=None)


def included(room, name):
    """The room that an include leads to, None for the own one, public headers and others'."""
    for layer in LAYERS[LAYERS.index(room[0])::-1]:
        if os.path.exists(os.path.join(ROOT, layer, name)):
            found = room_of("%s/%s" % (layer, name))
            return found if found != room else None
    return None


calls = {room: set() for room in rooms}
for path in tree_files(".c", ".h"):
    room = room_of(path)
    if room:
        for name in re.findall(r'^#include "([\w/]+/\w+\.(?:h|def))"', read(path), flags=re.M):
            other = included(room, name)
            if other and other[0] == room[0]:
                calls[room].add(other)


def reaches(start, end, seen=()):
    return start == end or any(reaches(r, end, (*seen, start)) for r in calls[start] if level[r] < level[start] and r not in seen)


arrows = []
for room in rooms:
    for other in sorted(calls[room], key=level.get):
        down = level[other] < level[room]
        if not down or not any(r != other and level[r] < level[room] and reaches(r, other) for r in calls[room]):
            arrows.append((room, other, down))


def draw():
    columns = [[room for room in rooms if room[0] == layer] for layer in LAYERS]
    height = TOP + MARGIN + STEP * max(len(column) for column in columns)
    place, out = {}, []
    for i, column in enumerate(columns):
        for k, room in enumerate(column):
            place[room] = (MARGIN + WIDTH * i + WIDTH - BOX - 2 * MARGIN, height - MARGIN - STEP * (k + 1) + (STEP - HEIGHT))
    out.append('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">' %
               (WIDTH * len(columns) + MARGIN, height))
    out.append('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
               '<path d="M0 1 L7 4 L0 7 z" fill="#456"/></marker></defs>')
    out.append('<rect width="100%" height="100%" fill="#fff"/>')
    for i, layer in enumerate(LAYERS):
        x = MARGIN + WIDTH * i
        out.append('<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="#f4f6f8"/>' % (x, 10, WIDTH - MARGIN, height - 20))
        out.append('<text x="%d" y="%d" font-weight="bold">%s/</text>' % (x + WIDTH - BOX - 2 * MARGIN, 32, layer))
    for room, other, down in arrows:
        (x, y), (_, to) = place[room], place[other]
        steps = abs(to - y) // STEP
        if down and steps == 1:  # the next one
            out.append('<path d="M%d %d V%d" fill="none" stroke="#456" marker-end="url(#tip)"/>' % (x + BOX // 2, y + HEIGHT, to - 1))
            continue
        bend = x - 6 - LANE * min(steps, 9)
        out.append('<path d="M%d %d C%d %d %d %d %d %d" fill="none" stroke="%s" marker-end="url(#tip)"/>' %
                   (x, y + HEIGHT // 2 + 3, bend, y + HEIGHT // 2 + 3, bend, to + HEIGHT // 2 - 3, x - 1, to + HEIGHT // 2 - 3,
                    "#456" if down else "#c00"))
    for room in rooms:
        x, y = place[room]
        out.append('<a href="../%s/%s/README.md"><rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="#fff" stroke="#456"/>'
                   '<text x="%d" y="%d" text-anchor="middle">%s</text></a>' %
                   (*room, x, y, BOX, HEIGHT, x + BOX // 2, y + 16, room[1]))
    out.append("</svg>")
    return "\n".join(out) + "\n"


drawn = draw()
if os.environ.get("DTR_PICTURE_KEEP") == "1":
    with open(os.path.join(ROOT, PICTURE), "w", encoding="utf-8") as file:
        file.write(drawn)
problems = []
if not os.path.exists(os.path.join(ROOT, PICTURE)) or read(PICTURE) != drawn:
    problems.append("%s shows other rooms or arrows; DTR_PICTURE_KEEP=1 ctest -R check_picture draws it anew" % PICTURE)
if len(rooms) < 20 or len(arrows) < 20:
    problems.append("only %d rooms and %d arrows: is the check broken?" % (len(rooms), len(arrows)))
verdict(problems, "%d rooms, %d arrows" % (len(rooms), len(arrows)))
