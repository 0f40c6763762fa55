"""Jinja as chat templates need it, for templates that may be hostile.

jinja2's immutable sandbox keeps a template from reaching Python's internals. This adds what it lacks: every
operation that can loop or make something large goes through a Meter, and only what is listed can be called. The
hooks sit in the code generator, so a template pays for what it does and nothing watches it from outside.
Constants are not folded while compiling, for the same reason: 'x' * 10**10 must not be worked out there either.

As in transformers: trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson, raise_exception,
strftime_now. Imported only when a template is compiled: it imports Jinja.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter, safe_range
from jinja2.utils import Cycler, Joiner, Namespace

from llmcli.engine import template_text as text
from llmcli.engine.template_filters import bounded_filters
from llmcli.engine.template_meter import Meter, TemplateLimitError

# The largest templates in use have 20 KB and some 6,000 tokens.
_MOST_CHARS = 128 * 1024
_MOST_TOKENS = 30_000
_MOST_DATE_CHARS = 256


class RefusedError(TemplateError):
    """The template called raise_exception: these messages are not for it."""


class ChatExtension(Extension):
    """`{% generation %}`, which marks the assistant's text for training and prints its body; and a limit on tokens."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own protocol)

    def parse(self, parser: Parser) -> nodes.Node:
        """A scope of its own, as in transformers: variables set inside end with it."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Pass the tokens on, counted."""
        meter = cast("BoundedEnvironment", self.environment).meter
        for count, token in enumerate(stream):
            meter.tick()
            if count > _MOST_TOKENS:
                raise TemplateLimitError(f"has more than {_MOST_TOKENS:,} tokens of Jinja")
            yield token


class _BoundedCode(CodeGenerator):
    """Python code in which loops, containers, slices and `~` go through the environment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._iterated: set[int] = set()  # ids of the nodes that loops run over

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        cast("BoundedEnvironment", self.environment).meter.tick()
        if id(node) not in self._iterated:
            return super().visit(node, *args, **kwargs)
        self.write("environment.counted(")
        super().visit(node, *args, **kwargs)
        return self.write(")")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        self._iterated.add(id(node.iter))
        super().visit_For(node, frame)

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        environment = cast("BoundedEnvironment", self.environment)
        environment.meter.made(node.value)
        if isinstance(node.value, str):
            environment.literals.add(node.value)
        super().visit_Const(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._through("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._through("made", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._through("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            self._through("made", super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Frame) -> None:  # noqa: ARG002, N802
        # {% autoescape %} would bring Markup, whose methods are not those of str.
        self.fail("autoescape is not for chat templates", node.lineno)

    visit_ScopedEvalContextModifier = visit_EvalContextModifier  # noqa: N815

    def _through(self, name: str, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write(f"environment.{name}(")
        visit(node, frame)
        self.write(")")


class _Formatter(SandboxedFormatter):
    """str.format without wide fields, its length summed up while it is made."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        super().__init__(environment)
        self._meter = environment.meter
        self._length = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        self._meter.tick()
        self._meter.weigh(value)
        formatted = cast("str", super().format_field(value, text.checked_spec(format_spec)))
        self._length += len(formatted)
        self._meter.fits_text(self._length)
        return formatted


class _Namespace(Namespace):
    """Jinja's namespace, which prints its name only: one may hold itself, or others many times over."""

    def __repr__(self) -> str:
        return "<Namespace>"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """meter     set before each use; only one rendering at a time
    now       what strftime_now takes as the time
    literals  the strings written in the template, known once it is compiled
    """

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset(text.OPERATORS)
    meter: Meter
    now: datetime

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            extensions=[LoopControlExtension, ChatExtension],
        )
        self.meter = Meter()
        self.now = datetime.now()  # noqa: DTZ005 (local time, as in transformers)
        self.literals: set[str] = set()
        self.filters = bounded_filters(self)
        self.finalize = self._printed
        self.globals = {
            "range": safe_range,
            "dict": dict,
            "cycler": Cycler,
            "joiner": Joiner,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        self._callables = tuple(self.globals.values())

    def compile_source(self, source: str) -> Callable[[Mapping[str, Any]], Iterator[str]]:
        """The template as a function from its variables to the pieces of its text."""
        if len(source) > _MOST_CHARS:
            raise TemplateLimitError(f"has more than {_MOST_CHARS:,} characters")
        template = self.from_string(source)
        return lambda variables: template.root_render_func(template.new_context(dict(variables)))

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """`items` for a loop, with a look at the clock for each."""
        for item in items:
            self.meter.tick()
            yield item

    def made(self, value: Any) -> Any:
        """A container or a slice that the template just made."""
        return self.meter.made(value)

    def concat(self, pieces: Iterable[str]) -> str:
        """The text of a macro, a block or {% set %}...{% endset %}."""
        return text.concat(self.meter, pieces)

    def concat_values(self, values: tuple[Any, ...]) -> str:
        """What `a ~ b ~ c` gives."""
        return text.concat(self.meter, (text.text_of(self.meter, value) for value in values))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Do `obj.attribute`; the usual cases first, since Jinja's own checks cost more than all the rest of a loop."""
        kind = type(obj)
        if kind is dict and attribute in obj and not hasattr(dict, attribute):
            return obj[attribute]
        if kind is _Namespace and not attribute.startswith("_") and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        """Do `left + right` or another operation."""
        self.meter.tick()
        return self.meter.made(text.OPERATORS[operator](self.meter, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """obj(...), where obj is a macro, one of the globals, or a method in the list of template_text."""
        self.meter.tick()
        if isinstance(obj, types.BuiltinMethodType) and text.allowed_method(obj.__self__, obj.__name__):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return text.call_method(self.meter, obj, args, kwargs)
        if not self.is_safe_callable(obj):
            raise SecurityError(f"{getattr(obj, '__name__', type(obj).__name__)} is not for templates to call")
        size_bytes = self.meter.weigh_all(args, kwargs.values())
        if isinstance(obj, LoopContext):
            args = (self.counted(args[0]), *args[1:]) if args else args
        return self.meter.made(super().call(context, obj, *args, **kwargs), size_bytes)

    def is_safe_callable(self, obj: Any) -> bool:
        """Jinja's own objects and the globals; built-in methods never come here."""
        if isinstance(obj, types.MethodType):
            return isinstance(obj.__self__, (LoopContext, Cycler, Joiner)) or obj in self._callables
        known = (Macro, BlockReference, LoopContext, Joiner, _Format, self.undefined)
        return isinstance(obj, known) or obj in self._callables

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What stands for the methods str.format and str.format_map; None for any other attribute."""
        if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, str):
            if value.__name__ == "format":
                return _Format(self, value.__self__)
            if value.__name__ == "format_map":
                return _FormatMap(self, value.__self__)
        return None

    @pass_context  # keeps constants from being printed while compiling
    def _printed(self, _context: Context, value: Any) -> str:
        return text.text_of(self.meter, value)

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > _MOST_DATE_CHARS:
            raise TemplateLimitError(f"writes a date of more than {_MOST_DATE_CHARS} characters")
        return self.now.strftime(text.checked_spec(pattern))


class _Format:
    """The method str.format of one string."""

    def __init__(self, environment: BoundedEnvironment, pattern: str) -> None:
        self._environment, self._pattern = environment, pattern

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return _Formatter(self._environment).vformat(self._pattern, args, kwargs)


class _FormatMap(_Format):
    """The method str.format_map of one string."""

    def __call__(self, values: Mapping[str, Any]) -> str:
        return _Formatter(self._environment).vformat(self._pattern, (), values)


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))
