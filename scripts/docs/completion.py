"""Shell completion for the tools, from what they print for --help.

Usage: completion.py OUT_FOLDER TOOL...
Writes OUT_FOLDER/bash/NAME and OUT_FOLDER/zsh/_NAME. Options that name a file or folder complete to files; calls are words.
"""
import os
import re
import sys

from man import help_of, write

FILES = re.compile(r"FILE|FOLDER|OUT|DIR")


def options_of(text):
    """{option: its value's name or ''}, in the order of the text."""
    found = {}
    text = re.sub(r"^ *mpirun .*$", "", text, flags=re.M)  # the launcher's options
    for match in re.finditer(r"(?<![\w-])(--[a-z][\w-]*|-[a-zA-Z])(?:,? ?(?:(?<=,)\s*)?(--[a-z][\w-]*))?(?:[ =]([A-Z][A-Z0-9_.|]*))?", text):
        short, long, value = match.groups()
        for option in filter(None, (short, long)):
            if not found.get(option):
                found[option] = value or ""
    return found


def words_of(text):
    """What can be called: the names behind "calls:", without the remarks in brackets."""
    match = re.search(r"^calls: (.*?)\n\n", text, flags=re.M | re.S)
    words = []
    for word in re.findall(r"\b([a-z_]+)(\(v\))?", re.sub(r"\((?!v\)).*?\)", "", match.group(1), flags=re.S) if match else ""):
        words += [word[0]] + ([word[0] + "v"] if word[1] else [])
    return [w for w in words if w not in ("default", "or", "a", "v")]


def bash(name, options, words):
    files = "|".join(option for option, value in options.items() if FILES.search(value))
    values = "|".join(option for option, value in options.items() if value and not FILES.search(value))
    function = "_" + name.replace("-", "_")
    lines = ["# bash completion for %s, made from its --help" % name, function + "() {", '    local word=${COMP_WORDS[COMP_CWORD]}',
             "    COMPREPLY=()", "    case ${COMP_WORDS[COMP_CWORD - 1]} in"]
    if files:
        lines += ["        %s) mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return ;;" % files]
    if values:
        lines += ["        %s) return ;;" % values]
    lines += ["        *) ;;", "    esac", "    if [[ $word == -* ]]; then",
              "        mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\")" % " ".join(options), "    else",
              "        mapfile -t COMPREPLY < <(compgen %s -- \"$word\")" % ("-W '%s'" % " ".join(words) if words else "-f"), "    fi", "}",
              "complete -o filenames -F %s %s" % (function, name)]
    return "\n".join(lines) + "\n"


def zsh(name, options, words):
    lines = ["#compdef %s" % name, "# made from its --help", "_arguments \\"]
    for option, value in options.items():
        action = ":%s:%s" % (value.lower(), "_files" if FILES.search(value) else "") if value else ""
        lines.append("    '%s%s' \\" % (option, action))
    lines.append("    '*:%s'" % ("call:(%s)" % " ".join(words) if words else "file:_files"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    out, *tools = sys.argv[1:]
    for tool in tools:
        name, text = os.path.basename(tool), help_of(tool)
        options, words = options_of(text), words_of(text)
        write(os.path.join(out, "bash"), name, bash(name, options, words))
        write(os.path.join(out, "zsh"), "_" + name, zsh(name, options, words))
