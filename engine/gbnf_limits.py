"""Grammars of correct syntax that libllama cannot carry: left recursion, and what would crash or stall it.

Works on rules by number, as libllama numbers them; knows no text and no names. Why each limit (llama-grammar.cpp):

* Its search for left recursion visits a rule once per path that leads there (16 million visits take 0.4 s, and each
  `a ::= b | b` doubles them) and recurses once per rule on the path (80,000 overflow a stack of 8 MB).
* It takes a rule for possibly empty only where one of its alternates has no symbol at all, so it misses left
  recursion behind `a ::= b` with an empty `b`. Where the recursion is the last symbol of its alternate this is
  harmless, for a stack seen before is dropped (`(space item?)*` is of this kind); where something follows, each
  round makes a deeper stack until the memory is gone.
* A rule that can neither start with a character nor be empty leaves no stack, and libllama aborts.
* Every way to reach the next character is a stack of its own, compared with all others: 16,000 of two levels take 1 s,
  65,000 take 30 s.

What cannot be known ahead is left out: an ambiguous recursion such as `e ::= "(" e ")" | "(" e "]" | "x"` doubles
the stacks with each "(" the model writes.
"""

from __future__ import annotations

from dataclasses import dataclass

TERMINAL = -1  # stands for a whole literal, set, dot or token: what follows it does not matter here
Alternates = list[list[int]]  # a rule: sequences of TERMINAL and numbers of rules
_Edge = tuple[int, bool]  # a rule that may be expanded first, and whether its sequence ends with it

MAX_SEARCH_NS = 1_500_000_000  # at 30 ns a visit and 2 ns an element, on the slow side of what was measured
MAX_DEPTH = 4000  # an optional repetition of 2,000 possibly empty symbols is 2,000 deep
MAX_STACKS = 20_000
MAX_STACK_ELEMENTS = 5_000_000  # 8 bytes each
MAX_EXPANDED_STACKS = 200_000  # by `_expand`, over the whole check: about 1 s

_FEW_PATHS = "fewer paths from rule to rule before the first character"
_FEW_STACKS = f"at most {MAX_STACKS:,} ways to the first character"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a rule; `found` has a place for the rule's {name}."""

    rule_id: int
    expected: str
    found: str
    hint: str


def find_fault(rules: list[Alternates], n_elements: list[int], root: int) -> Fault | None:
    """The first fault of the grammar, or None. Every number in `rules` must be the index of a rule.

    n_elements      per rule, the elements libllama holds for it
    """
    declared_empty = [any(not sequence for sequence in rule) for rule in rules]
    return _search_fault(rules, n_elements, declared_empty) or _expansion_fault(rules, _possibly_empty(rules), root)


def _first_rules(rule: Alternates, empty: list[bool]) -> list[_Edge]:
    """The rules that may be expanded before a character is read, as often as they are."""
    edges = []
    for sequence in rule:
        for index, item in enumerate(sequence):
            if item == TERMINAL:
                break
            edges.append((item, index == len(sequence) - 1))
            if not empty[item]:
                break
    return edges


def _components(edges: list[list[_Edge]]) -> tuple[list[list[int]], list[int]]:
    """Tarjan's strongly connected components, each after those it leads to; and the rules where a walk in order began.

    Iterative: a chain of 100,000 rules would overflow Python's stack.
    """
    order, low = [0] * len(edges), [0] * len(edges)  # order counts from 1; 0 is not visited yet
    components: list[list[int]] = []
    starts, pending = [], []
    n_visited = 0
    for start in range(len(edges)):
        if order[start]:
            continue
        starts.append(start)
        walk = [(start, iter(edges[start]))]
        while walk:
            rule_id, rest = walk[-1]
            if not order[rule_id]:
                n_visited += 1
                order[rule_id] = low[rule_id] = n_visited
                pending.append(rule_id)
            for child, _ in rest:
                if not order[child]:
                    walk.append((child, iter(edges[child])))
                    break
                low[rule_id] = min(low[rule_id], low[child])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[rule_id])
                if low[rule_id] == order[rule_id]:
                    cut = len(pending) - 1
                    while pending[cut] != rule_id:
                        cut -= 1
                    components.append(pending[cut:])
                    del pending[cut:]
                    for member in components[-1]:
                        low[member] = len(edges) + 1  # closed: no later rule may take it for a way back
    return components, starts


def _search_fault(rules: list[Alternates], n_elements: list[int], empty: list[bool]) -> Fault | None:
    """Left recursion as libllama sees it, and what its search for it costs."""
    edges = [_first_rules(rule, empty) for rule in rules]
    components, starts = _components(edges)
    cost_ns, depth = [0] * len(rules), [0] * len(rules)
    for component in components:
        rule_id = component[0]
        children = [child for child, _ in edges[rule_id]]
        if len(component) > 1 or rule_id in children:
            return _left_recursion(component)
        cost_ns[rule_id] = 30 + 2 * n_elements[rule_id] + sum(cost_ns[child] for child in children)
        depth[rule_id] = 1 + max((depth[child] for child in children), default=0)
        if depth[rule_id] > MAX_DEPTH:
            return _refused(rule_id, f"at most {MAX_DEPTH:,} rules that start with one another", "name them directly")
        if cost_ns[rule_id] > MAX_SEARCH_NS:
            return _too_ambiguous(rule_id, _FEW_PATHS)
    if sum(cost_ns[start] for start in starts) > MAX_SEARCH_NS:
        return _too_ambiguous(max(starts, key=cost_ns.__getitem__), _FEW_PATHS)
    return None


def _possibly_empty(rules: list[Alternates]) -> list[bool]:
    """Which rules may produce no text at all, found by counting down the symbols of each sequence that are not."""
    empty = [False] * len(rules)
    missing: list[tuple[int, int]] = []  # per sequence without terminals: its rule, its symbols not known to be empty
    users: list[list[int]] = [[] for _ in rules]
    found = []
    for rule_id, rule in enumerate(rules):
        for sequence in rule:
            if not sequence:
                found.append(rule_id)
            elif TERMINAL not in sequence:
                for item in sequence:
                    users[item].append(len(missing))
                missing.append((rule_id, len(sequence)))
    while found:
        rule_id = found.pop()
        if empty[rule_id]:
            continue
        empty[rule_id] = True
        for index in users[rule_id]:
            user, n_left = missing[index]
            missing[index] = (user, n_left - 1)
            if n_left == 1:
                found.append(user)
    return empty


def _expansion_fault(rules: list[Alternates], empty: list[bool], root: int) -> Fault | None:
    """Walk the components from the leaves up and bound the stacks that a rule becomes before a character is read.

    A bound counts paths. Where it is too high for a component, `_expand` counts what libllama would hold, for stacks
    that are alike are dropped there. Rules that the root never comes to are left out: libllama expands what it uses.
    """
    used = _reachable(rules, root)
    edges = [_first_rules(rule, empty) if used[rule_id] else [] for rule_id, rule in enumerate(rules)]
    n_stacks, n_elements = [0] * len(rules), [0] * len(rules)  # elements: the heights of all stacks together
    reaches_character = [False] * len(rules)
    n_left = MAX_EXPANDED_STACKS
    for component in _components(edges)[0]:
        if not used[component[0]]:
            continue
        inside = set(component)
        leaving = [
            (child, is_last) for rule_id in component for child, is_last in edges[rule_id] if child not in inside
        ]
        if any(child in inside and not is_last for rule_id in component for child, is_last in edges[rule_id]):
            return _left_recursion(component)
        n_own = 1 + sum(len(rules[rule_id]) + len(edges[rule_id]) for rule_id in component)
        n_bound = n_own + sum(n_stacks[child] for child, _ in leaving)
        e_bound = 2 * n_own + sum(n_elements[child] + (0 if is_last else n_stacks[child]) for child, is_last in leaving)
        if n_bound > MAX_STACKS or e_bound > MAX_STACK_ELEMENTS:
            expanded = _expand(rules, component[0])
            if expanded is None or expanded[0] > n_left:
                return _too_ambiguous(min(component), _FEW_STACKS)
            n_bound, e_bound = expanded
            n_left -= n_bound
        reaches = any(reaches_character[child] for child, _ in leaving)
        reaches |= any(_starts_with_character(rules[rule_id], empty) for rule_id in component)
        if not reaches and not empty[component[0]]:
            return _refused(min(component), "a rule that leads to text", "write out what it should match")
        for rule_id in component:
            n_stacks[rule_id], n_elements[rule_id], reaches_character[rule_id] = n_bound, e_bound, reaches
    return None


def _reachable(rules: list[Alternates], root: int) -> list[bool]:
    used = [False] * len(rules)
    todo = [root]
    while todo:
        rule_id = todo.pop()
        if not used[rule_id]:
            used[rule_id] = True
            todo += {item for sequence in rules[rule_id] for item in sequence if item != TERMINAL}
    return used


def _starts_with_character(rule: Alternates, empty: list[bool]) -> bool:
    for sequence in rule:
        for item in sequence:
            if item == TERMINAL:
                return True
            if not empty[item]:
                break
    return False


def _expand(rules: list[Alternates], rule_id: int) -> tuple[int, int] | None:
    """How many stacks libllama holds to expand a rule, and their elements; None where they pass the limits.

    A stack is a number; `nodes` gives what it stands on and its topmost position. 0 is what lies under the rule.
    """
    numbers: dict[tuple[int, int, int, int], int] = {}
    nodes: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
    heights = [0]

    def push(below: int, rule: int, alternate: int, index: int) -> int:
        node = (below, rule, alternate, index)
        number = numbers.setdefault(node, len(nodes))
        if number == len(nodes):
            nodes.append(node)
            heights.append(heights[below] + 1)
        return number

    def started(below: int, rule: int) -> list[int]:
        return [push(below, rule, n, 0) if sequence else below for n, sequence in enumerate(rules[rule])]

    seen: set[int] = set()
    todo = started(0, rule_id)
    n_elements = 0
    while todo:
        stack = todo.pop()
        if stack in seen:
            continue
        seen.add(stack)
        n_elements += heights[stack]
        if len(nodes) > 2 * MAX_STACKS or len(seen) > MAX_STACKS or n_elements > MAX_STACK_ELEMENTS:
            return None
        below, rule, alternate, index = nodes[stack]
        item = rules[rule][alternate][index] if stack else TERMINAL
        if item != TERMINAL:
            is_last = index == len(rules[rule][alternate]) - 1
            todo += started(below if is_last else push(below, rule, alternate, index + 1), item)
    return len(seen), n_elements


def _left_recursion(component: list[int]) -> Fault:
    return Fault(
        min(component),
        "a rule that reads a character before it comes to itself again",
        "left recursion in '{name}'",
        "turn it round: list ::= item list | item, or use item+; a repetition of what may be empty is one too",
    )


def _refused(rule_id: int, expected: str, hint: str) -> Fault:
    return Fault(rule_id, expected, "'{name}'", hint)


def _too_ambiguous(rule_id: int, expected: str) -> Fault:
    return Fault(rule_id, expected, "more in '{name}'", "write what alternatives have in common once, in front of them")
