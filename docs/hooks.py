"""What the documentation site needs beyond its plugins: formulas as MathML, the gallery's scripts, the playground.

mkdocs calls the functions named on_...; griffe, which reads the docstrings, uses the class `Docstrings`.
"""

import html
import importlib.util
import logging
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

import griffe
from latex2mathml.converter import convert_to_element
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^([ \t]*)\.\. math::[ \t]*(.*(?:\n(?:\1[ \t]+\S.*))*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(])")  # K**q, which Markdown would take for bold
LISTED = ("losses", "objectives")  # folders whose pages name themselves in the navigation and in a table
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Build into docs/_build/html, which mkdocs.yml may not name because it is inside docs."""
    if Path(config.site_dir) == ROOT / "site":  # the default; `mkdocs serve` has a directory of its own
        config.site_dir = str(ROOT / "docs/_build/html")
    for section in config.nav or []:
        for items in section.values():
            for folder in LISTED:
                if isinstance(items, list) and f"{folder}/index.md" in items[0].values():
                    items += [{title: f"{folder}/{name}"} for title, name, _ in _listed(folder)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Publish the scripts and notebooks of examples/, so that pages may link to them, and the changelog."""
    for file in sorted((ROOT / "examples").iterdir()):
        if file.suffix in (".py", ".ipynb"):
            files.append(File.generated(config, f"examples/{file.name}", content=file.read_text()))
    files.append(File.generated(config, "playground.html", content=_playground()))
    changelog = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))


def _playground() -> str:
    """The page of docs/playground, which is made with the library."""
    spec = importlib.util.spec_from_file_location("playground_build", ROOT / "docs/playground/build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return str(build.page())


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in the table of losses or objectives from the `row` that each page begins with, and the reference."""
    folder = page.file.src_uri.removesuffix("/index.md")
    if folder in LISTED:
        rows = [f"| [{title}]({name}) | {' | '.join(row)} |" for title, name, row in _listed(folder)]
        return markdown.replace("<!-- rows -->", "\n".join(rows))
    if page.file.src_uri == "reference.md":
        for folder in LISTED:
            missing = [title for title, _, _ in _listed(folder) if f"structloss.{title}\n" not in markdown]
            entries = [f"::: structloss.{title}\n    options:\n      members: []\n" for title in missing]
            markdown = markdown.replace(f"<!-- {folder} -->", "\n".join(entries))
    return markdown


def _listed(folder: str) -> list[tuple[str, str, list[str]]]:
    """The pages of a folder: title, file and row in the table, in the order of their `place`."""
    found = []
    for path in (ROOT / "docs" / folder).glob("*.md"):
        if path.name != "index.md":
            text, meta = get_data(path.read_text())
            title = text.lstrip().splitlines()[0].removeprefix("# ")
            found.append((meta.get("place", 1000), title, path.name, meta["row"]))
    return [(title, name, row) for _, title, name, row in sorted(found)]


def on_page_content(content: str, **_: Any) -> str:
    """Turn the formulas that the Markdown extension found into MathML."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    latex, display = html.unescape(found[3]).strip(), "inline" if found[2] == "(" else "block"
    formula = convert_to_element(latex.replace(r"\arg", r"\operatorname{arg}"), display=display)
    for node in formula.iter():
        node.text = html.unescape(node.text or "")
    for node in list(formula.iter()):
        _improve(node, display)
    result = tostring(formula, encoding="unicode")
    if "\\" in result:
        logging.getLogger("mkdocs.hooks").warning("no MathML for a command in the formula %s", latex)
    return result


def _improve(parent: Element, display: str) -> None:
    """Put what is below max and min there, and a little space after names of functions."""
    if parent.tag == "msub" and parent[0].text in ("max", "min") and display == "block":
        parent.tag = "munder"
    children = list(parent)
    for i in reversed(range(len(children) - 1)):
        if (
            children[i].text in ("log", "exp", "arg")
            and parent.tag == "mrow"
            and children[i + 1].text not in ("(", "[")
        ):
            parent.insert(i + 1, Element("mspace", width="0.17em"))


class Docstrings(griffe.Extension):
    """Docstrings write formulas as :math:`x` and `.. math:: x`; Markdown writes $x$ and $$x$$."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring, up to its example."""
        if obj.docstring is None:
            return
        text, example, code = obj.docstring.value.partition("\nExample:\n")
        text = INLINE.sub(lambda found: f"${' '.join(found[1].split())}$", BLOCK.sub(_display, text))
        examples = example.replace("Example", "Examples")  # the name by which griffe knows it for code
        obj.docstring.value = POWER.sub(r"\\*\\*", text) + examples + code


def _display(found: re.Match[str]) -> str:
    return f"\n{found[1]}$${' '.join(found[2].split())}$$\n"
