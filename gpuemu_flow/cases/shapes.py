"""Shape classes (``Case.shape_class``): sizes of dims that reveal bugs, small ones first.

==================  ==============================================================================
``tail``            a small odd size (3, 5, 7 ... 15): a tile that is never filled
``pow2_plus_1``     one element in the last tile (65, 17, 129 ...)
``prime``           a prime above one tile (131, 67, 521 ...)
``maximum``         one dim at its largest size, the others small
``equal``           two dims of one size above 1: swapped axes keep the shape
``pow2_minus_1``    one element missing in the last tile (63, 31, 127 ...)
``ones``            one dim of size 1, the others above
``pow2``            a power of two: no mask is needed
``multiple_of_128``  128, 256, 384 ...: whole tiles, several of them
``candidates``      listed sizes that are of no class above; also for a schema with only one shape
``fixed``           a whole shape that was listed (edge cases, shapes from the command line)
``all_ones``        every dim of size 1
``all_minimum``     every dim at its smallest size, where that is not 1
``empty``           one dim of size 0
``all_maximum``     every dim at its largest size: index arithmetic
``random``          any size of the range, small and large ones alike; long runs only
==================  ==============================================================================

A class concerns one dim, the focus, which changes from case to case. Each other dim takes the size
that it has had least often, out of several classes, so that no effect of it is blamed on the focus.
If this makes a tensor large, the other dim takes a small size. A dim with a list of candidates
takes only these, and has a class if a candidate belongs to it. If a range allows only multiples of
a number, and none of them is in a class, the class applies to the multiples divided by the number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from gpuemu_flow.cases.op_schema import Dim, OpSchema, allowed_sizes, allows_size
from gpuemu_flow.model.syntax import ExpressionError, names_in
from gpuemu_flow.model.types import Shape

PER_DIM = ("tail", "pow2_plus_1", "prime", "pow2_minus_1", "pow2", "multiple_of_128")
CLASSES = (
    "tail", "pow2_plus_1", "prime", "maximum", "equal", "pow2_minus_1", "ones", "pow2",
    "multiple_of_128", "candidates", "fixed", "all_ones", "all_minimum", "empty", "all_maximum",
)  # fmt: skip

# Limits on the elements of a case's largest tensor: the usual one, with one dim at its maximum,
# with one dim of any size, the hard limit, and the hard limit for sizes that the configuration
# lists.
SMALL = 2**14
MEDIUM = 2**16
LARGE = 2**20
HUGE = 2**24
LISTED = 2**30

MOST_PAIRS = 32  # pairs of dims that are made equal
TRIED = 16  # sizes of a dim that are tried before its smallest one is taken
MIXED = 2  # sizes of each class that a dim takes while another one is the focus
FEW = 8  # a range of no more sizes than this is the list of them
SAME_SIZES = (33, 17, 7, 64, 127, 5, 4, 3, 2)
SMALL_SIZES = (3, 2, 5, 8, 12, 20, 33)
TAIL_SIZES = (3, 5, 7, 9, 11, 13, 15)
POWERS = (64, 16, 128, 32, 256, 4, 8, 512, 1024, 2048, 4096, 8192, 2)
FAR = 2**14  # has the last of several tiles in most kernels, and still takes little time
FAR_CLASSES = ("pow2_plus_1", "prime")
PRIMES = (131, 67, 257, 37, 521, 1031, 19, 23, 2053, 4099, 8209)


def is_prime(n: int) -> bool:
    """Tell whether `n` (below 3.3e24) is prime, by the Miller-Rabin test with the first 13 primes.
    Source: Sorenson and Webster, "Strong pseudoprimes to twelve prime bases", 2015."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if n < 2 or any(n % p == 0 for p in bases):
        return n in bases
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        power = pow(base, odd, n)
        if power in (1, n - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % n
            if power == n - 1:
                break
        else:
            return False
    return True


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


MEMBER: dict[str, Callable[[int], bool]] = {
    "tail": lambda n: n in TAIL_SIZES,
    "pow2_plus_1": lambda n: n >= 5 and _is_power_of_two(n - 1),
    "prime": lambda n: n > 16 and is_prime(n),
    "pow2_minus_1": lambda n: n >= 7 and _is_power_of_two(n + 1),
    "pow2": lambda n: n >= 2 and _is_power_of_two(n),
    "multiple_of_128": lambda n: n > 0 and n % 128 == 0,
}
"""For each class of sizes that concerns a single dim: the test that tells whether a size belongs to
it."""

TYPICAL: dict[str, tuple[int, ...]] = {
    "tail": TAIL_SIZES,
    "pow2_plus_1": tuple(n + 1 for n in POWERS if n >= 4),
    "prime": PRIMES,
    "pow2_minus_1": tuple(n - 1 for n in POWERS if n >= 8),
    "pow2": POWERS,
    "multiple_of_128": (128, 256, 384, 640, 512, 1024, 2048, 4096),
}
"""Sizes of each class that dims with a range take, the most useful first."""


def listed_sizes(dim: Dim) -> tuple[int, ...]:
    """Return all sizes of a dim if they are listed or few; return nothing for a wider range."""
    if dim.candidates:
        return dim.candidates
    if (dim.largest - dim.smallest) // dim.multiple_of < FEW:
        return tuple(range(dim.smallest, dim.largest + 1, dim.multiple_of))
    return ()


def class_sizes(dim: Dim, shape_class: str) -> tuple[int, ...]:
    listed = listed_sizes(dim)
    if listed:
        return tuple(n for n in listed if MEMBER[shape_class](n))
    typical, step = TYPICAL[shape_class], dim.multiple_of
    found = [n for n in typical if dim.min <= n <= dim.max and n % step == 0]
    if not found and step > 1:
        found = [n * step for n in typical if dim.min <= n * step <= dim.max]
    if not found and shape_class in ("tail", "prime"):
        above = range(max(dim.smallest, 17), min(dim.largest, dim.smallest + 4096) + 1)
        odd = (n for n in above if n % 2 and n % step == 0)
        wanted = (n for n in odd if shape_class == "tail" or is_prime(n))
        found = [n for n, _ in zip(wanted, range(3))]  # noqa: B905 - the first three
    return _with_a_far_one(found, dim, shape_class)


def _with_a_far_one(sizes: list[int], dim: Dim, shape_class: str) -> tuple[int, ...]:
    """Return `sizes` with a far larger one in second place, if the dim and the class allow it. The
    first size may fit into one large tile. The larger one fills many tiles and part of another."""
    if not sizes or shape_class not in FAR_CLASSES:
        return tuple(sizes)
    step, end = dim.multiple_of, min(dim.largest, FAR)
    multiples = range(end // step, sizes[0] // step, -1)
    far = (n for k in multiples if MEMBER[shape_class](n := k * step) or MEMBER[shape_class](k))
    second = next(far, None)
    if second is None:
        return tuple(sizes)
    return (sizes[0], second, *(n for n in sizes[1:] if n != second))


def small_sizes(dim: Dim) -> tuple[int, ...]:
    """Return small sizes, those above 1 first, for a dim that the case does not focus on."""
    listed = listed_sizes(dim)
    if listed:
        return tuple(sorted(listed, key=lambda n: (n <= 1, n == 0)))
    step = dim.multiple_of
    small = [n for n in SMALL_SIZES if dim.min <= n <= dim.max and n % step == 0]
    if not small:
        first = dim.smallest
        small = [n for n in (first, first + step, first + 2 * step) if n <= dim.largest]
    return tuple(small)


class Sizes(Struct, frozen=True):
    """The shapes of one case."""

    dims: tuple[tuple[str, int], ...]  # in schema order; empty for a fixed shape
    shapes: tuple[Shape, ...]  # one per input


class ShapePlanner:
    """Chooses the sizes of one case after another, using all sizes of a dim equally often."""

    def __init__(self, schema: OpSchema) -> None:
        self._schema = schema
        self._dims = schema.dims
        self._tensors = self._tensor_axes()
        self._small = [small_sizes(dim) for dim in self._dims]
        self._least = [min((n for n in small if n), default=0) for small in self._small]
        self._free = [i for i, dim in enumerate(self._dims) if dim.smallest < dim.largest]
        self._focus_order = self._by_interest()
        self._by_class = self._class_table()
        self._mixed = [self._mixed_sizes(i) for i in range(len(self._dims))]
        self._pairs = self._equal_pairs()
        self._used: list[Counter[int]] = [Counter() for _ in self._dims]
        self._turns: Counter[str] = Counter()
        self.classes = self._available()
        self.has_ranges = any(not listed_sizes(dim) for dim in self._dims)

    @staticmethod
    def label(shape_class: str) -> str:
        return shape_class.partition(":")[0]

    def next_sizes(self, shape_class: str, salt: int | None = None) -> Sizes:
        """Choose sizes for one more case of a class."""
        if shape_class.startswith("fixed:"):
            shape = self._schema.fixed_shapes[int(shape_class.partition(":")[2])]
            return Sizes((), tuple(shape for _ in self._schema.inputs))
        turn = self._turns[shape_class] if salt is None else salt
        sizes = self._choose(shape_class, turn, salt)
        if salt is None:
            self._turns[shape_class] += 1
            for used, size in zip(self._used, sizes, strict=True):
                used[size] += 1
        named = self._schema.all_sizes(self._named(sizes))
        return Sizes(tuple(named.items()), self._schema.shapes(named))

    def _named(self, sizes: Sequence[int]) -> dict[str, int]:
        named = {dim.name: size for dim, size in zip(self._dims, sizes, strict=True)}
        if self._schema.allows(named):
            return named
        rarely = [self._dims[i].name for i in self._focus_order[:1]]
        return allowed_sizes(self._schema, named, rarely) or allowed_sizes(self._schema) or named

    def _tensor_axes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return, for each tensor, the product of its fixed sizes, and the indices of its dims."""
        place = {dim.name: i for i, dim in enumerate(self._dims)}
        out = []
        for tensor in (*self._schema.inputs, *self._schema.outputs):
            fixed, axes = 1, []
            for axis in tensor.dims:
                if axis in place:
                    axes.append(place[str(axis)])
                elif isinstance(axis, int):
                    fixed *= axis
            out.append((fixed, tuple(axes)))
        return list(dict.fromkeys(out))

    def _by_interest(self) -> list[int]:
        """Return the indices of the dims, in the order in which cases focus on them. Reduced dims
        (in an input but in no output) come first. Among these, and among the others, the dims of
        the inputs' last axes come first, because kernels tile and mask the last axes."""
        outputs = {
            name for t in self._schema.outputs for axis in t.dims for name in self._behind(axis)
        }
        from_last: dict[str, int] = {}
        for tensor in self._schema.inputs:
            for distance, axis in enumerate(reversed(tensor.dims)):
                for name in self._behind(axis):
                    from_last[name] = min(distance, from_last.get(name, distance))

        def rank(i: int) -> tuple[bool, int, int]:
            name = self._dims[i].name
            kept = name in outputs if outputs else True
            return kept, from_last.get(name, len(self._dims)), -i

        return sorted(range(len(self._dims)), key=rank)

    def _behind(self, axis: str | int) -> tuple[str, ...]:
        derived = {dim.name: dim.expression for dim in self._schema.derived}
        if isinstance(axis, int):
            return ()
        if axis not in derived:
            return (axis,)
        return tuple(n for part in sorted(names_in(derived[axis])) for n in self._behind(part))

    def _class_table(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Return, for each class and each dim (by index), the sizes that belong to the class."""
        table: dict[str, dict[int, tuple[int, ...]]] = {}
        for name in PER_DIM:
            table[name] = {i: class_sizes(self._dims[i], name) for i in self._free}
        table["ones"] = {i: (1,) for i in self._free if allows_size(self._dims[i], 1)}
        table["empty"] = {i: (0,) for i in self._free if allows_size(self._dims[i], 0)}
        long = [i for i in self._free if self._dims[i].largest > max(TAIL_SIZES)] or self._free
        table["maximum"] = {i: (self._dims[i].largest,) for i in long}
        rest: dict[int, tuple[int, ...]] = {}
        for i in self._free:
            classed = {n for sizes in table.values() for n in sizes.get(i, ())}
            rest[i] = tuple(n for n in listed_sizes(self._dims[i]) if n not in classed)
        table["candidates"] = rest
        out: dict[str, dict[int, tuple[int, ...]]] = {}
        for name, dims in table.items():
            possible = {i: self._possible(i, sizes, HUGE) for i, sizes in dims.items()}
            out[name] = {i: sizes for i, sizes in possible.items() if sizes}
        return out

    def _mixed_sizes(self, i: int) -> tuple[int, ...]:
        """Return sizes of dim `i`: one per class and a small one, then a second such series."""
        columns = [self._by_class[name].get(i, ())[:MIXED] for name in PER_DIM]
        columns.append(self._small[i][:MIXED])
        ranked = (column[n] for n in range(MIXED) for column in columns if n < len(column))
        return tuple(dict.fromkeys(ranked))

    def _possible(self, i: int, sizes: Iterable[int], limit: int) -> tuple[int, ...]:
        """Return `sizes` of dim `i` that keep tensors within `limit` (`LISTED` for listed dims)."""
        if listed_sizes(self._dims[i]):
            limit = LISTED
        least = self._least
        return tuple(n for n in sizes if self._largest([*least[:i], n, *least[i + 1 :]]) <= limit)

    def _equal_pairs(self) -> list[tuple[int, int, tuple[int, ...]]]:
        order = [i for i in self._focus_order if self._dims[i].largest > 1]
        pairs: list[tuple[int, int, tuple[int, ...]]] = []
        for place, i in enumerate(order):
            for j in order[place + 1 :]:
                if len(pairs) == MOST_PAIRS or (i not in self._free and j not in self._free):
                    continue
                listed = listed_sizes(self._dims[i]) or listed_sizes(self._dims[j])
                sizes = dict.fromkeys((*SAME_SIZES, *(n for n in listed if n > 1)))
                two = (self._dims[i], self._dims[j])
                both = [n for n in sizes if all(allows_size(dim, n) for dim in two)]
                both = [n for n in both[:FEW] if self._pair_elements(i, j, n) <= HUGE]
                if both:
                    pairs.append((i, j, tuple(both)))
        return pairs

    def _pair_elements(self, i: int, j: int, size: int) -> int:
        sizes = list(self._least)
        sizes[i] = sizes[j] = size
        return self._largest(sizes)

    def _available(self) -> tuple[str, ...]:
        several = len(self._free) > 1
        smallest_is_one = all(allows_size(dim, 1) for dim in self._dims)
        found = {name for name, dims in self._by_class.items() if dims}
        if self._pairs:
            found.add("equal")
        if several:
            found.add("all_ones" if smallest_is_one else "all_minimum")
        if several and self._largest([dim.largest for dim in self._dims]) <= HUGE:
            found.add("all_maximum")
        if self._dims and not self._free:
            found = {"candidates"}
        if not self._dims and not self._schema.fixed_shapes:
            found = {"candidates"}
        names: list[str] = []
        for name in CLASSES:
            if name == "fixed":
                names += [f"fixed:{i}" for i in range(len(self._schema.fixed_shapes))]
            elif name in found:
                names.append(name)
        return tuple(names)

    def _largest(self, sizes: Sequence[int]) -> int:
        if self._schema.derived:
            return self._largest_derived(sizes)
        largest = 0
        for count, axes in self._tensors:
            elements = count
            for axis in axes:
                elements *= sizes[axis]
            largest = max(largest, elements)
        return largest

    def _largest_derived(self, sizes: Sequence[int]) -> int:
        named = {dim.name: size for dim, size in zip(self._dims, sizes, strict=True)}
        try:
            named = self._schema.all_sizes(named)
        except ExpressionError:
            return 0  # other sizes will take their place
        tensors = (*self._schema.inputs, *self._schema.outputs)
        return max(
            math.prod(named[a] if isinstance(a, str) else a for a in tensor.dims)
            for tensor in tensors
        )

    def _choose(self, shape_class: str, turn: int, salt: int | None) -> list[int]:
        if shape_class == "all_maximum":
            return [dim.largest for dim in self._dims]
        if shape_class == "all_ones":
            return [1 for _ in self._dims]
        if shape_class == "all_minimum":
            return [_smallest_positive(dim) for dim in self._dims]
        wanted: dict[int, tuple[int, ...]]
        if shape_class == "random":
            wanted = {
                i: self._possible(i, (_random_size(dim, turn + i),), LARGE)
                for i, dim in enumerate(self._dims)
            }
            start = turn % max(len(self._dims), 1)
            order = [*self._focus_order[start:], *self._focus_order[:start]]
            return self._assign(order, wanted, MEDIUM, salt)
        if shape_class == "equal":
            first, second, both = self._pairs[turn % len(self._pairs)]
            size = both[turn // len(self._pairs) % len(both)]
            wanted = {first: (size,), second: (size,)}
            order = [first, second, *self._focus_order]
            return self._assign(order, wanted, SMALL, salt, in_focus=2)
        wanted = dict(self._by_class.get(shape_class, {}))
        candidates = [i for i in self._focus_order if i in wanted]
        if candidates:
            focus = candidates[turn % len(candidates)]
            order = [focus, *self._focus_order]
            single = shape_class in ("ones", "empty", "maximum")
            mixed = {} if single else dict(enumerate(self._mixed))
            wanted = {**mixed, focus: wanted[focus]}
        else:
            order = self._focus_order
        limit = MEDIUM if shape_class == "maximum" else SMALL
        return self._assign(order, wanted, limit, salt)

    def _assign(
        self,
        order: Iterable[int],
        wanted: dict[int, tuple[int, ...]],
        limit: int,
        salt: int | None,
        in_focus: int = 1,
    ) -> list[int]:
        """Choose each dim's size, in `order`: a wanted one, or a small one if `limit` requires it.
        The limit does not apply to the first `in_focus` dims. For `salt`, see `next_sizes`."""
        sizes = list(self._least)
        settled: list[int] = []
        for i in dict.fromkeys(order):
            taken = {sizes[j] for j in settled}
            options = self._ranked(i, wanted.get(i, ()), taken, salt)[:TRIED]
            options += self._ranked(i, self._small[i], taken, salt)[:TRIED]
            for size in options:
                sizes[i] = size
                if len(settled) < in_focus or self._largest(sizes) <= limit:
                    break
            else:
                sizes[i] = self._least[i]
            settled.append(i)
        return sizes

    def _ranked(
        self, i: int, options: tuple[int, ...], taken: set[int], salt: int | None
    ) -> list[int]:
        """Return the sizes in `options` in the order in which to try them for dim `i`. Without
        `salt`, the least used come first; if equally used, those not in `taken` come first. With
        `salt`, the order is that of `options`, but begins at a place that the salt decides."""
        if len(options) < 2:
            return list(options)
        if salt is not None:
            start = (salt >> 8 * (i % 4)) % len(options)
            return [*options[start:], *options[:start]]
        used = self._used[i]
        # A size of 0 or 1 hides most bugs of the other dims, so it counts as used thrice.
        return sorted(options, key=lambda n: (used[n] * (1 if n > 1 else 3), n in taken))


def _smallest_positive(dim: Dim) -> int:
    """Return the smallest size above 0 that a dim can have; 0 if its only size is 0."""
    if dim.candidates:
        return min((n for n in dim.candidates if n), default=0)
    return dim.smallest or min(dim.multiple_of, dim.largest)


def _random_size(dim: Dim, salt: int) -> int:
    """Draw a size of a dim: first its number of bits, then a size with that many bits. Only
    integers are used, so that the size is the same on every machine."""
    mixed = (salt * 0x9E3779B97F4A7C15 ^ salt >> 29) & (2**64 - 1)
    listed = listed_sizes(dim)
    if listed:
        return listed[(mixed >> 20) % len(listed)]
    step = dim.multiple_of
    low, high = dim.smallest // step, dim.largest // step
    bits = range(low.bit_length(), high.bit_length() + 1)
    length = bits[(mixed >> 8) % len(bits)]
    first, last = max(low, 1 << length >> 1), min(high, (1 << length) - 1)
    return (first + (mixed >> 24) % (last - first + 1)) * step
