"""Nothing grows unseen: what a process keeps between calls is bounded, and known by name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import structloss as sl
from structloss.structures.factor_graph import beliefs, elimination

PACKAGE = Path(sl.__file__).parent
CONTAINERS = {"dict", "list", "set", "OrderedDict", "defaultdict", "Counter", "deque"}
KNOWN = {
    "losses/base.py: named",  # the losses that have a name: one for each class
    "objectives.py: named",
    "structures/compiled.py: _OBJECTS",  # objectives, and classes of structures, as long as they live: weak references
}


def kept(tree: ast.Module) -> Iterator[str]:
    """Names of empty containers of modules and classes, and functions whose every result is kept."""
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in scope.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and grows(node.value):
                yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name) and stored(name))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            yield from (function.name for decorator in function.decorator_list if without_bound(decorator))


def stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def grows(value: ast.expr | None) -> bool:
    """Whether it is an empty container, which something must be meant for."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func).split(".")[-1]
        return (called in CONTAINERS or called.startswith("Weak")) and not value.args
    return isinstance(value, ast.Dict | ast.List) and not ast.unparse(value).strip("{}[]")


def without_bound(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator).removeprefix("functools.")
    return text == "cache" or text.replace(" ", "") in ("lru_cache(None)", "lru_cache(maxsize=None)")


@pytest.mark.parametrize("code", ["x = {}", "x: dict[str, int] = {}", "x = OrderedDict()", "class A:\n    x = []"])
def test_what_may_grow_is_found(code: str) -> None:
    assert list(kept(ast.parse(code))) == ["x"]
    assert not list(kept(ast.parse("x = {1: 2}\ny = dict(a=1) if True else 0\n@lru_cache(maxsize=8)\ndef f(): ...")))
    assert list(kept(ast.parse("@functools.cache\ndef f(): ..."))) == ["f"]


def test_nothing_but_what_is_known_is_kept_between_calls() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in kept(ast.parse(path.read_text()))
    }
    assert found == KNOWN


def test_plans_of_elimination_are_bounded() -> None:
    assert elimination.remembered_order.cache_info().maxsize == beliefs._shares.cache_info().maxsize == 512
