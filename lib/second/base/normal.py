"""Code in a normal form: what does not compute is taken out, and every name that comes from outside
a definition is written as what it stands for."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lib.second.base.sources import Target

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Normaliser(ast.NodeTransformer):
    """Takes out docstrings, bare strings, type annotations, imports, checks, error texts and what
    is told to a progress bar.

    `resolve(name)` says what a name stands for where the definition was written (None: a builtin
    or nothing known); `refer(target)` gives the name to write and notes that it is used;
    `machinery(target)` says what computes nothing (bars, checks, the cache); `member` and
    `imported` are those of Sources. `attributes` gathers the names of all attributes that are
    used.
    """

    def __init__(
        self,
        resolve: Callable[[str], Target | None],
        refer: Callable[[Target], str],
        member: Callable[[Target, str], Target | None],
        imported: Callable[[ast.stmt], dict[str, Target | None]],
        machinery: Callable[[Target | None], bool],
    ):
        self.resolve, self.refer, self.member = resolve, refer, member
        self.imported, self.machinery = imported, machinery
        self.attributes: set[str] = set()
        self.scopes: list[tuple[ast.AST, dict[str, Target | None]]] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(getattr(node, "body", None), list) and not node.body:
            node.body = [ast.Pass()]
        return node

    # Names

    def stands_for(self, node: ast.AST) -> tuple[Target | None, list[str]]:
        """What a name or dotted name stands for, and the attributes that are left of it; (None,
        []) for a local name, a builtin and any other expression."""
        left = []
        while isinstance(node, ast.Attribute):
            left.insert(0, node.attr)
            node = node.value
        target = self._named(node.id) if isinstance(node, ast.Name) else None
        while target and left and (inner := self.member(target, left[0])):
            target = inner
            left.pop(0)
        return (target, left) if target else (None, [])

    def _named(self, name: str) -> Target | None:
        for depth, (node, bound) in enumerate(reversed(self.scopes)):
            # The names of a class body are seen by the body alone, not by its methods.
            if name in bound and (depth == 0 or not isinstance(node, ast.ClassDef)):
                return bound[name]
        return self.resolve(name)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        target, _ = self.stands_for(node)
        return ast.Name(self.refer(target), node.ctx) if target else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        target, left = self.stands_for(node)
        if target is None:
            self.attributes.add(node.attr)
            return self.generic_visit(node)
        found = ast.Name(self.refer(target), ast.Load())
        for name in left:
            self.attributes.add(name)
            found = ast.Attribute(found, name, node.ctx)
        return found

    # What is taken out

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        value = node.value
        bare = isinstance(value, ast.Constant) and isinstance(value.value, str)
        called = isinstance(value, ast.Call) and self.machinery(self.stands_for(value.func)[0])
        return None if bare or called else self.generic_visit(node)

    def visit_Import(self, node: ast.stmt) -> None:
        return None

    visit_ImportFrom = visit_Import

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = getattr(kind, "attr", getattr(kind, "id", None)) if kind else None
        return ast.Raise(ast.Name(name, ast.Load()) if name else None, None)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Assert(self.visit(node.test), None)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self.machinery(self.stands_for(node.func)[0]):
            node.keywords = []
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        value = node.value and self.visit(node.value)
        target = self.visit(node.target)
        if self.scopes and isinstance(self.scopes[-1][0], ast.ClassDef):
            # A field stays one: a dataclass tells it from a plain attribute.
            return ast.AnnAssign(target, ast.Constant(None), value, node.simple)
        return ast.Assign([target], value, lineno=0) if value else None

    # Scopes

    @contextmanager
    def scope(self, node: ast.AST) -> Iterator[None]:
        """The names bound by `node` hide those outside."""
        self.scopes.append((node, self._bound(node)))
        yield
        self.scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = self._decorators(node)
        node.returns = node.type_comment = None
        if hasattr(node, "type_params"):
            node.type_params = []
        with self.scope(node):
            inner = self._arguments(node.args)
            node.body = self._all(node.body) or [ast.Pass()]
        return inner(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        with self.scope(node):
            inner = self._arguments(node.args)
            node.body = self.visit(node.body)
        return inner(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = self._decorators(node)
        node.bases, node.keywords = self._all(node.bases), self._all(node.keywords)
        with self.scope(node):
            node.body = self._all(node.body) or [ast.Pass()]
        return node

    def _visit_comprehension(self, node: ast.AST) -> ast.AST:
        first = self.visit(node.generators[0].iter)  # belongs to the scope outside
        node.generators[0].iter = ast.Constant(None)
        with self.scope(node):
            self.generic_visit(node)
        node.generators[0].iter = first
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _all(self, nodes: list) -> list:
        return [new for node in nodes if (new := self.visit(node)) is not None]

    def _decorators(self, node: ast.AST) -> list:
        kept = [
            d
            for d in node.decorator_list
            if not self.machinery(self.stands_for(d.func if isinstance(d, ast.Call) else d)[0])
        ]
        return self._all(kept)

    def _arguments(self, args: ast.arguments) -> Callable[[ast.AST], ast.AST]:
        """Take out annotations; defaults belong to the scope outside: what is returned puts them
        back once that is left."""
        for arg in _parameters(args):
            arg.annotation = arg.type_comment = None

        def finish(node: ast.AST) -> ast.AST:
            args.defaults = self._all(args.defaults)
            args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]
            return node

        return finish

    def _bound(self, scope: ast.AST) -> dict[str, Target | None]:
        """The names that belong to a scope; None: a local value, else what its import stands
        for."""
        names: dict[str, Target | None] = {}
        free: set[str] = set()

        def look(node: ast.AST) -> None:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                names[node.name] = None
            elif isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.NamedExpr):  # := binds in the scope around
                        names[inner.target.id] = None
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update(self.imported(node))
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                free.update(node.names)
            else:
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                    names[node.id] = None
                for field in ("name", "rest"):  # except ... as name, case ... as name
                    if isinstance(getattr(node, field, None), str):
                        names[getattr(node, field)] = None
                for child in ast.iter_child_nodes(node):
                    look(child)

        if isinstance(scope, (*FUNCTIONS, ast.Lambda)):
            names.update((arg.arg, None) for arg in _parameters(scope.args))
        parts = scope.generators if isinstance(scope, _COMPREHENSIONS) else scope.body
        for part in parts if isinstance(parts, list) else [parts]:
            look(part)
        return {name: target for name, target in names.items() if name not in free}


def _parameters(args: ast.arguments) -> list[ast.arg]:
    single = [arg for arg in (args.vararg, args.kwarg) if arg]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *single]
