"""Code as the running process knows it: functions and classes of notebooks and tests, functions
inside functions, and what comes along with the objects a function is handed."""

import ast
import contextlib
import functools
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType

from lib.second.base.normal import FUNCTIONS
from lib.second.base.sources import Sources, Target

PACKAGE = __name__.partition(".")[0]
_INSTALLED = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib"))
_PLAIN = (bool, int, float, str, bytes, type(None))


def outside(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, not to us or a notebook."""
    if module == "__main__" or (module or "").partition(".")[0] == PACKAGE:
        return False
    if module not in sys.modules:
        return False
    file = getattr(sys.modules[module], "__file__", None)  # None: built into Python
    return file is None or file.startswith(_INSTALLED)


def target_of(value: object, sources: Sources) -> Target | None:
    """What an object of the running process is called in the sources; None if nothing."""
    if isinstance(value, ModuleType):
        inside = sources.holds(value.__name__)
        return Target("module" if inside else "outside", value.__name__)
    if isinstance(value, _PLAIN):
        return Target("value", repr(value))
    value = inspect.unwrap(value) if callable(value) else value
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if module is None or name is None:
        return None
    if sources.holds(module) and "<" not in name:
        return Target("name", module, name)
    return Target("outside", f"{module}.{name}") if outside(module) else Target("live", value)


def brought(value: object, seen: set[int]) -> Iterator[object]:
    """The classes and functions that come with a value, through containers, our own objects and
    closures."""
    if id(value) in seen or isinstance(value, _PLAIN):
        return
    seen.add(id(value))
    inner = ()
    if isinstance(value, (list, tuple, set, frozenset)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, CellType):
        with contextlib.suppress(ValueError):  # not assigned yet
            inner = [value.cell_contents]
    elif isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        inner = [value.__self__, value.__func__]
    elif hasattr(value, "__wrapped__"):
        inner = [value.__wrapped__]
    elif isinstance(value, FunctionType):
        yield value
        inner = value.__closure__ or ()
    elif isinstance(value, type):
        yield value
    else:
        yield type(value)
        ours = not outside(type(value).__module__)
        inner = getattr(value, "__dict__", {}).values() if ours else ()
    for part in inner:
        yield from brought(part, seen)


def live_source(thing: FunctionType | type) -> tuple[list[ast.AST], list[str]]:
    """The definition of a function or class of a notebook or a test, or of a function inside
    another; where no source is kept, the compiled code instead."""
    functions = [thing] if isinstance(thing, FunctionType) else vars(thing).values()
    codes = [f.__code__ for f in functions if isinstance(f, FunctionType)]
    if codes:
        lines = linecache.getlines(codes[0].co_filename)
        try:
            nodes = [n for n in ast.walk(ast.parse("".join(lines))) if _is(n, thing)]
        except SyntaxError:
            nodes = []
        if nodes:
            return nodes, []
    return [], [thing.__qualname__, *(str(_compiled(code)) for code in codes)]


def _is(node: ast.AST, thing: FunctionType | type) -> bool:
    if isinstance(thing, type):
        return isinstance(node, ast.ClassDef) and node.name == thing.__name__
    if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
        return False
    line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    name = getattr(node, "name", "<lambda>")
    return line == thing.__code__.co_firstlineno and name == thing.__code__.co_name


def _compiled(code: CodeType) -> tuple:
    inner = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code.hex(), code.co_names, inner


def in_process(thing: FunctionType | type, name: str, sources: Sources) -> Target | None:
    """What a name stands for in a function of the running process."""
    if isinstance(thing, type):
        space = vars(sys.modules.get(thing.__module__, object))
        return target_of(space[name], sources) if name in space else None
    cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True))
    if name in cells:
        try:
            value = cells[name].cell_contents
        except ValueError:  # not assigned yet
            return None
        return target_of(value, sources) if callable(value) else None  # values are inputs, not code
    if sources.holds(thing.__module__):
        return sources.member(Target("module", thing.__module__), name)
    if name not in thing.__globals__:
        return None
    value = thing.__globals__[name]
    if name.isupper() and _is_plain(value):
        return Target("value", repr(value))  # a constant
    return target_of(value, sources)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, _PLAIN) or (
        isinstance(value, (list, tuple)) and all(map(_is_plain, value))
    )
