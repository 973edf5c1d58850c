"""Results that clients submitted, before and after they are stored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from operator import attrgetter

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.cache import to_text
from gpuemu_flow.types import CheckResult, Json, Verdict, number_from_json, number_to_json
from gpuemu_flow.verdicts import Elements

TIME_DIGITS = 20  # keys sort as the times do
as_text = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_name_as_text = lru_cache(maxsize=256)(to_text)


@dataclass(frozen=True)
class CountedResult:
    """The part of a validation that reports and baselines use.

    Attributes
    ----------
    verdict : Verdict
    elements : Elements
    max_abs, max_rel, max_ulp, tolerance_used : float
        May be NaN or infinite.
    failure_id : str
        Id of the recorded failure; empty if the case passed.
    """

    verdict: Verdict
    elements: Elements = field(default_factory=Elements)
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    tolerance_used: float = 0.0
    failure_id: str = ""

    @classmethod
    def of(cls, result: CheckResult, failure_id: str = "") -> CountedResult:
        """Make a CountedResult from a case's result."""
        stats = result.stats
        return cls(
            result.verdict,
            Elements.of(result),
            float(stats.max_abs),
            float(stats.max_rel),
            float(stats.max_ulp),
            float(stats.tolerance_used),
            failure_id,
        )

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        figures = _read_figures(self)
        if not math.isfinite(sum(figures)):
            figures = tuple(map(number_to_json, figures))
        return {
            "verdict": self.verdict.value,
            "elements": self.elements.to_json(),
            **dict(zip(_FIGURES, figures, strict=True)),
            "failure_id": self.failure_id,
        }

    def to_text(self, elements: str = "") -> str:
        """Return `to_json` as JSON text.

        Parameters
        ----------
        elements : str
            The attribute `elements` as JSON text; empty to make this text here.
        """
        figures = _read_figures(self)
        total = sum(figures)
        if tuple(map(type, figures)) != _FLOATS or total - total != 0.0:
            return to_text(self.to_json())
        max_abs, max_rel, max_ulp, used = figures
        return (
            f'{{"verdict":"{self.verdict.value}","elements":{elements or self.elements.to_text()},'
            f'"max_abs":{max_abs!r},"max_rel":{max_rel!r},"max_ulp":{max_ulp!r},'
            f'"tolerance_used":{used!r},"failure_id":{_name_as_text(self.failure_id)}}}'
        )

    @classmethod
    def from_json(cls, data: Json) -> CountedResult:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        return cls(
            Verdict(data["verdict"]),
            Elements.from_json(data["elements"]),
            **{name: float(number_from_json(data[name])) for name in _FIGURES},
            failure_id=str(data["failure_id"]),
        )


_FIGURES = ("max_abs", "max_rel", "max_ulp", "tolerance_used")
_FLOATS = (float,) * len(_FIGURES)
_read_figures = attrgetter(*_FIGURES)


@dataclass(frozen=True)
class StoredResult:
    """The stored result of one validation.

    Attributes
    ----------
    key : str
        Unique key that sorts by time.
    op : str
    seed : int
    dtype : str
    source : str
        ``validate`` or ``submit``.
    judged_by : str
        Digest of everything that decided the verdict. It differs if the reference or the tolerances
        have changed.
    judged : CountedResult
    text : str
        The daemon's reply as JSON text. It is not parsed, because thousands of parsed replies would
        slow down garbage collection, which stops all threads.
    client : JSON
        Known facts about the client. ``id``, ``name``, ``pid``, ``host`` and ``user`` describe its
        process. ``origin`` is the name of the code that computed the output, and ``code`` is the
        digest of this code.
    files : str
        Digest that identifies the source files of the code that computed the output; empty if the
        client named no files.
    """

    key: str
    op: str
    seed: int
    dtype: str
    source: str
    judged_by: str
    judged: CountedResult
    text: str
    client: Mapping[str, Json] = field(default_factory=dict)
    files: str = ""

    @property
    def result(self) -> dict[str, Json]:
        """Return the daemon's reply."""
        found: dict[str, Json] = json.loads(self.text)
        return found

    @property
    def origin(self) -> str:
        """Return the name of the code that computed the output; empty if unknown."""
        return str(self.client.get("origin", ""))

    @property
    def time_ns(self) -> int:
        """Return the Unix time in ns."""
        return int(self.key[:TIME_DIGITS])


@dataclass
class NewResult:
    """A validation that is to be stored; see `StoredResult`.

    Attributes
    ----------
    op, seed, dtype, source, judged, client : see `StoredResult`
    judged_by : str
        As in `StoredResult`. `encode` does not use it, so it may be set after `encode` was called.
    files : mapping of str to str
        The sha256 of each file of the code that computed the output. Equal sets of files are stored
        only once.
    result : mapping
        The daemon's reply. `encode` stores the reply as `text` and leaves this mapping empty, since
        each garbage collection would visit all objects in it.
    text, client_text, elements_text : str
        `result`, `client` and `judged.elements` as JSON text; `encode` makes those that are empty.
    """

    op: str
    seed: int
    dtype: str
    judged: CountedResult
    result: Mapping[str, Json]
    source: str
    judged_by: str = ""
    client: Mapping[str, Json] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    client_text: str = ""
    elements_text: str = ""
    _encoded: str = field(default="", init=False)

    def encode(self) -> str:
        """Return the JSON text of the record, up to the keys ``judged_by`` and ``files``.

        The text has no closing brace, so that these two keys can be appended.

        Raises
        ------
        ValueError
            A number of `result` is NaN or infinite.
        """
        if not self._encoded:
            op, dtype, source = map(_name_as_text, (self.op, self.dtype, self.source))
            begin = f'{{"op":{op},"seed":{int(self.seed)},"dtype":{dtype},"source":{source}'
            self.text = text = self.text or as_text(self.result)
            self.result = {}
            client = self.client_text or to_text(dict(self.client))
            judged = self.judged.to_text(self.elements_text)
            self._encoded = f'{begin},"judged":{judged},"client":{client},"result":{text}'
        return self._encoded
