"""A digest of the code that computes a value, only as far as it is reached.

From a function every name is followed to its definition in this package, and on from there. What
enters is each definition's normal form (lib.second.base.normal), so comments, texts of errors, annotations
and the places of files cost nothing. Names of other packages enter with the package's version.
"""

import ast
import copy
import functools
import hashlib
import importlib.metadata
import inspect
import sys
from pathlib import Path
from types import FunctionType

from lib.second.base.live import PACKAGE, brought, in_process, live_source, outside, target_of
from lib.second.base.normal import FUNCTIONS, Normaliser
from lib.second.base.sources import Sources, Target

# What keeps values, shows bars or refuses bad input computes nothing: it is not followed, nor what
# it is told.
_BASE = ("bars", "cache", "checks", "code", "live", "normal", "sources", "steps")
MACHINERY = (*(f"second.base.{m}" for m in _BASE), "second.models.checks", "second.models.witness")
SHOWN = ("__repr__", "__str__", "__format__")  # what only shows a value
_HERE = Sources(PACKAGE, Path(__file__).resolve().parents[3])
_digests: dict[tuple, str] = {}


def code_digest(thing: FunctionType | type, handed: object = None) -> str:
    """Digest of the code of a function or class, and of that of the objects it is `handed`:
    their classes, and functions among them."""
    things = list(dict.fromkeys([inspect.unwrap(thing), *brought(handed, set())]))
    # Only the code is kept, for a function holds on to what it closes over.
    key = tuple(getattr(t, "__code__", t) for t in things)
    # A notebook may define again, at any time, what its functions use.
    fixed = all(_HERE.holds(t.__module__) or outside(t.__module__) for t in things)
    if not fixed or key not in _digests:
        first, *rest = (target_of(t, _HERE) for t in things)
        rest.sort(key=lambda t: t.name or getattr(t.where, "__qualname__", str(t.where)))
        _digests[key] = Trace(_HERE).digest([first, *rest])
    return _digests[key]


def source_digest(module: str, name: str, folder: Path) -> str:
    """Digest of the code of `name` in a module of a package that stands in `folder`, which is
    read and not imported."""
    return Trace(Sources(module.partition(".")[0], folder)).digest([Target("name", module, name)])


class Trace:
    """Follows names from definition to definition, in an order that depends on the code alone."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.order: dict[Target, int] = {}
        self.todo: list[Target] = []
        self.text: list[str] = []
        self.attributes: set[str] = set()
        self.packages: set[str] = set()
        self.waiting: dict[tuple, tuple] = {}

    def digest(self, starts: list[Target]) -> str:
        """The digest of all that is reached from `starts`."""
        for target in starts:
            self.refer(target)
            _, _, method = target.name.partition(".")
            self.attributes |= {method} - {""}
        while self.todo or (used := self._used()):
            if self.todo:
                self._define(self.todo.pop(0))
            else:
                for key in used:
                    self._write(*self.waiting.pop(key))
        versions = sorted(f"{p} {v}" for p in self.packages if (v := _version(p)))
        return hashlib.sha256("\n".join([*self.text, *versions]).encode()).hexdigest()

    def refer(self, target: Target) -> str:
        """What to write for a definition: its own name, and its place in the order of reach, for
        two may share a name."""
        if target.kind == "outside":
            self.packages.add(str(target.where).partition(".")[0])
            return str(target.where)
        if target.kind == "value":
            return str(target.where)
        if target.kind == "name":
            target = target._replace(name=target.name.partition(".")[0])
        name = target.name or getattr(target.where, "__name__", "module")
        if self.machinery(target):
            return name
        if target not in self.order:
            self.order[target] = len(self.order)
            self.todo.append(target)
        return f"{name}#{self.order[target]}"

    def machinery(self, target: Target | None) -> bool:
        """Whether something shows or keeps values and computes none."""
        if target is None or target.kind not in ("name", "module"):
            return False
        return target.where.partition(".")[2] in MACHINERY

    def _define(self, target: Target) -> None:
        """Write a definition, and so note what it uses."""
        title = f"#{self.order[target]}"
        if target.kind == "module":  # handed on as a whole
            names = self.sources.module(target.where).names
            used = [self.refer(Target("name", target.where, name)) for name in names]
            self.text.append(f"{title} {used}")
            return
        if target.kind == "live":
            nodes, compiled = live_source(target.where)
            resolve = functools.partial(in_process, target.where, sources=self.sources)
            module = ""
            self.text += [title, *compiled]
        else:
            module = target.where
            nodes = self.sources.module(module).names.get(target.name, [])
            resolve = functools.partial(self.sources.member, Target("module", module))
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._define_class(title, node, resolve, module)
            else:
                self._write(title, node, resolve, module)

    def _define_class(self, title: str, node: ast.ClassDef, resolve, module: str) -> None:
        """Write a class without its methods; they wait until something uses their name."""
        methods = [m for m in node.body if isinstance(m, FUNCTIONS)]
        open_to_others = self._has_outside_base(node, resolve)
        shell = copy.copy(node)
        shell.body = [s for s in node.body if s not in methods]
        self._write(title, shell, resolve, module)
        for place, method in enumerate(methods):
            name = method.name
            if name in SHOWN:
                continue
            special = open_to_others or (name.startswith("__") and name.endswith("__"))
            key = (title, name, place, special)
            self.waiting[key] = (f"{title}.{name}", method, resolve, module)

    def _used(self) -> list[tuple]:
        """The methods that wait and are used by now, by class and name."""
        used = [key for key in self.waiting if key[3] or key[1] in self.attributes]
        return sorted(used, key=lambda key: (int(key[0][1:]), key[1], key[2]))

    def _has_outside_base(self, node: ast.ClassDef, resolve) -> bool:
        """Whether code outside this package may call any method of a class (nn.Module calls
        `forward`)."""
        for base in node.bases:
            target, left = self._normaliser(resolve, "").stands_for(base)
            if target is None or left or target.kind != "name":
                return not (isinstance(base, ast.Name) and base.id == "object")
            above = self.sources.module(target.where).names[target.name]
            inner = functools.partial(self.sources.member, Target("module", target.where))
            if any(isinstance(n, ast.ClassDef) and self._has_outside_base(n, inner) for n in above):
                return True
        return False

    def _normaliser(self, resolve, module: str) -> Normaliser:
        def imported(node: ast.stmt) -> dict[str, Target | None]:
            found = self.sources.imported(node, module)
            return {name: self.sources.follow(target) for name, target in found.items()}

        return Normaliser(resolve, self.refer, self.sources.member, imported, self.machinery)

    def _write(self, title: str, node: ast.AST, resolve, module: str) -> None:
        normaliser = self._normaliser(resolve, module)
        new = normaliser.visit(copy.deepcopy(node))
        if new is None:
            return
        self.attributes |= normaliser.attributes
        names = {n.id.rpartition(".")[2] for n in ast.walk(new) if isinstance(n, ast.Name)}
        if names & {"getattr", "hasattr", "attrgetter", "methodcaller"}:
            strings = (n.value for n in ast.walk(new) if isinstance(n, ast.Constant))
            self.attributes |= {s for s in strings if isinstance(s, str)}
        self.text.append(f"{title}\n{ast.unparse(new)}")


@functools.cache
def _version(package: str) -> str | None:
    """Public part of the version of an installed package; None for the standard library."""
    if package in sys.stdlib_module_names:
        return None
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(package, [])
        found = importlib.metadata.version(names[0]) if names else ""
    return found.partition("+")[0]
