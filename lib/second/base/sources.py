"""The source files of a package, read and not imported: what a name in a module stands for."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Target(NamedTuple):
    """What a name stands for."""

    kind: str
    """name: a definition at the top of a module of the package; module: one of its modules;
    outside: a dotted name of another package; live: a function or class known only to the running
    process; value: a plain value"""
    where: object
    """the module, or the object itself where `kind` is live"""
    name: str = ""


@dataclass(frozen=True)
class Module:
    """The top level of one file."""

    names: dict[str, list[ast.stmt]]
    """every statement that defines or changes a name, in the order of the file"""
    imports: dict[str, Target]
    """what each imported name stands for, as the import says it"""


class Sources:
    """The modules of the package `package`, a folder of that name in `folder`."""

    def __init__(self, package: str, folder: Path):
        self.package, self.folder = package, folder
        self.module = cache(self._module)

    def holds(self, module: str) -> bool:
        """Whether a dotted name belongs to the package."""
        return module.partition(".")[0] == self.package

    def member(self, target: Target, name: str) -> Target | None:
        """What `name` stands for in a module, through every import that hands it on; None if the
        module has no such name."""
        if target.kind == "outside":
            return Target("outside", f"{target.where}.{name}")
        if target.kind != "module" or (module := self.module(target.where)) is None:
            return None
        if name in module.names:
            return Target("name", target.where, name)
        if name in module.imports:
            return self.follow(module.imports[name])
        inner = f"{target.where}.{name}"
        return Target("module", inner) if self._path(inner) else None

    def follow(self, target: Target) -> Target | None:
        """The definition that an import ends at."""
        if target.kind != "name":
            return target
        return self.member(Target("module", target.where), target.name)

    def imported(self, node: ast.Import | ast.ImportFrom, module: str) -> dict[str, Target]:
        """The names that an import in `module` binds."""
        if isinstance(node, ast.Import):
            full = {a.asname or a.name.partition(".")[0]: a for a in node.names}
            names = {n: a.name if a.asname else n for n, a in full.items()}
            return {
                n: Target("module" if self.holds(m) else "outside", m) for n, m in names.items()
            }
        origin = node.module or ""
        if node.level:  # relative: counted from the folder that the file stands in
            is_room = self._path(module).name == "__init__.py"
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + is_room]
            origin = ".".join([*parts, *([origin] if origin else [])])
        if not self.holds(origin):
            return {a.asname or a.name: Target("outside", f"{origin}.{a.name}") for a in node.names}
        return {a.asname or a.name: Target("name", origin, a.name) for a in node.names}

    def _path(self, module: str) -> Path | None:
        base = self.folder.joinpath(*module.split("."))
        found = (p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file())
        return next(found, None)

    def _module(self, module: str) -> Module | None:
        path = self._path(module)
        if path is None:
            return None
        names, imports = {}, {}
        for statement in ast.parse(path.read_bytes()).body:
            for node in _same_scope(statement):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    imports |= self.imported(node, module)
            for name in _changed(statement):
                names.setdefault(name, []).append(statement)
        return Module(names, imports)


def _same_scope(node: ast.AST):
    """`node` and what stands in it, without the bodies of functions and classes."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _same_scope(child)


def _changed(statement: ast.stmt) -> list[str]:
    """Names that a statement at the top of a module binds, or whose values it changes
    (`X["a"] = 1`, `X.append(1)`)."""
    found = []
    for node in _same_scope(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.append(node.id)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            root = node
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if isinstance(root, ast.Name) and (isinstance(node.ctx, ast.Store) or called):
                found.append(root.id)
    return list(dict.fromkeys(found))
