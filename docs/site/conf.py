"""Sphinx builds the site from a folder of links to the pages (scripts/docs/stage.py), in the layout of the tree."""
import os
import pathlib
import re

project = "dtr"
author = "the dtr authors"
copyright = author  # noqa: A001 - Sphinx wants this name
version = release = os.environ.get("DTR_VERSION", "")
root_doc = "docs/site/index"
extensions = ["myst_parser"]
myst_heading_anchors = 5
myst_enable_extensions = ["colon_fence"]
# A first table row that is a comment, or output in a block of C, is no error of the page.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"
html_theme = "furo"
html_title = "dtr " + release
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["dtr.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d5c8f", "color-brand-content": "#1d5c8f"},
    "dark_css_variables": {"color-brand-primary": "#7fb8e6", "color-brand-content": "#7fb8e6"},
}


def mend_theme(app, _):
    """Debian's furo takes a style sheet from a web server's /javascript, a module that a page opened as a file may not load, and has
    lost the rule that follows a reader's wish for a dark page. All three are put right in what was written."""
    static = pathlib.Path(app.outdir, "_static")
    sheet, script = static / "styles/furo.css", static / "scripts/furo.js"
    text = sheet.read_text(encoding="utf-8")
    lost = re.search(r"@import url\(/javascript/(\S+)\);", text)
    if lost:
        there = pathlib.Path("/usr/share/javascript", lost.group(1))
        text = text.replace(lost.group(0), there.read_text(encoding="utf-8") if there.exists() else "html, body { margin: 0; }")
    dark = re.search(r'body\[data-theme="dark"\] \{([^}]*--color-background-primary[^}]*)\}', text)
    if dark and "prefers-color-scheme" not in text:
        text += '\n@media screen and (prefers-color-scheme: dark) {\n  body:not([data-theme="light"]) {%s}\n}\n' % dark.group(1)
        text += ('@media screen and (prefers-color-scheme: dark) {\n  html body:not([data-theme="light"]) .only-light { display: none !important; }\n'
                 '  body:not([data-theme="light"]) .only-dark { display: block !important; }\n}\n')
    sheet.write_text(text, encoding="utf-8")
    code = script.read_text(encoding="utf-8")
    module = re.match(r'import Gumshoe from "\./([\w.-]+)";', code)
    if module:
        script.write_text((static / "scripts" / module.group(1)).read_text(encoding="utf-8") + code[module.end():], encoding="utf-8")
    pathlib.Path(app.outdir, "index.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>dtr</title>'
        '<meta http-equiv="refresh" content="0; url=docs/site/index.html"><a href="docs/site/index.html">dtr</a></html>\n', encoding="utf-8")


def setup(app):
    app.connect("build-finished", mend_theme)
