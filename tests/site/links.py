"""Every link of the built site leads somewhere: files, anchors, style sheets, scripts and pictures. Nothing is fetched from elsewhere.

Usage: links.py HTML_DIR
"""
import os
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

root = sys.argv[1]
FETCHED = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.fetched = [], set(), []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append((given["href"], self.getpos()[0]))
        elif tag in FETCHED and given.get(FETCHED[tag]) and given.get("rel") not in ("canonical", "search"):
            self.fetched.append((given[FETCHED[tag]], self.getpos()[0]))


def html_files():
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            if name.endswith(".html"):
                yield os.path.normpath(os.path.join(folder, name))


def main():
    pages = {path: Page(path) for path in html_files()}
    problems, checked = [], 0
    for path, page in pages.items():
        where = os.path.relpath(path, root)
        for url, line in page.links + page.fetched:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https", "mailto"):
                if (url, line) in page.fetched:
                    problems.append("%s:%d: the page fetches %s" % (where, line, url))
                continue
            if parts.scheme == "data":
                continue
            checked += 1
            target = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path))) if parts.path else path
            if not os.path.isfile(target):
                problems.append("%s:%d: %s leads to no file" % (where, line, url))
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                problems.append("%s:%d: %s has no such anchor" % (where, line, url))
    if len(pages) < 50 or checked < 2000:
        problems.append("only %d pages and %d links found: is the check broken?" % (len(pages), checked))
    print("\n".join(problems[:100]) if problems else "ok: %d links of %d pages" % (checked, len(pages)))
    return bool(problems)


sys.exit(main())
