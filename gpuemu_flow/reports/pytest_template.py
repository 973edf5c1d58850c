"""The fixed parts of an exported test: plain Python that needs only numpy.

Names in capitals are constants. `pytest_export` writes their values, which differ from case to
case, above these parts.
"""

HEAD = '''\
"""A failing case as a test: it fails while the bug is there and passes once it is fixed.

It needs {needs} and the op itself; run it with pytest, or with python alone. Exported by
gpuemu-flow, which it does not need.
"""
'''

READ_TENSORS = '''\
def read_tensors():
    """The tensors of the file beside this one, by name (format: safetensors)."""
    with open(os.path.join(HERE, TENSORS), "rb") as file:
        data = file.read()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[start + begin : start + end], np.uint8)
        tensors[name] = raw.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
'''

LAY_OUT = '''\
def lay_out(values, place):
    """The values in memory as the case had them, between guard zones: a view, and all bytes."""
    raw = np.empty(place["nbytes"] + 64, np.uint8)
    memory = raw[-raw.ctypes.data % 64 :][: place["nbytes"]]
    fill = bytes.fromhex(place["fill"])
    memory[:] = np.frombuffer(fill * (memory.size // len(fill)), np.uint8)
    view = np.ndarray(values.shape, values.dtype, memory, place["offset"], place["strides"])
    view[...] = values
    return view, memory


def fill_fresh_memory(byte):
    """Fill memory before the op gets it: elements that the op never writes will show."""
    for size in range(1, 1024):
        # numpy keeps a few freed blocks of each size below 1 KiB and hands them out as they are.
        blocks = [np.full(size, byte, np.uint8) for _ in range(8)]
        del blocks
    try:
        ctypes.CDLL(None).mallopt(-6, byte ^ 0xFF)  # larger ones come from glibc
    except (AttributeError, OSError):
        pass  # another C library
'''

LOAD_FILE = '''\
def load():
    """The op, from its source as it is now."""
    with open(PROGRAM, "rb") as file:
        code = compile(file.read(), PROGRAM, "exec", dont_inherit=True)
    found = types.ModuleType("gpuemu_program_" + os.path.splitext(os.path.basename(PROGRAM))[0])
    found.__file__ = PROGRAM
    sys.modules[found.__name__] = found
    exec(code, found.__dict__)
    for name in FUNCTION.split("."):
        found = getattr(found, name)
    return found
'''

LOAD_MODULE = '''\
def load():
    """The op, imported."""
    found = importlib.import_module(MODULE)
    for name in FUNCTION.split("."):
        found = getattr(found, name)
    return found
'''

CALL = '''\
def call(op, inputs):
    """As its signature asks: by name, as one mapping, or in order."""
    try:
        parameters = list(inspect.signature(op).parameters.values())
    except (TypeError, ValueError):
        return op(*inputs.values(), **KWARGS)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [p.name for p in parameters if p.default is p.empty and p.kind in by_name]
    needed = [name for name in required if name not in KWARGS]
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.POSITIONAL_ONLY in kinds or (
        inspect.Parameter.VAR_POSITIONAL in kinds and not needed
    ):
        return op(*inputs.values(), **KWARGS)
    if len(needed) == 1 and needed[0] not in inputs:
        return op(dict(inputs), **KWARGS)
    return op(**inputs, **KWARGS)


def as_array(value):
    """A returned value as an array of its own; a torch tensor as numpy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        name = str(value.dtype).rpartition(".")[2]
        if name in EXTENDED:
            import torch

            bits = torch.uint8 if value.element_size() == 1 else torch.int16
            value = value.view(bits).numpy().view(EXTENDED[name])
        else:
            value = value.resolve_conj().resolve_neg().numpy()
    return np.array(value)


def run(op, inputs, seed):
    """Call the op; its outputs by name."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    returned = call(op, inputs)
    if returned is None and IN_PLACE:
        returned = {name: inputs[source] for name, source in IN_PLACE.items()}
    if isinstance(returned, dict):
        if len(returned) == 1 and len(RETURNED) == 1:
            returned = dict(zip(RETURNED, returned.values()))
    elif isinstance(returned, (tuple, list)):
        names = RETURNED if len(returned) == len(RETURNED) else OUTPUTS
        assert len(returned) == len(names), f"{len(returned)} outputs, not {OUTPUTS}"
        returned = dict(zip(names, returned))
    else:
        returned = {RETURNED[0]: returned}
    returned = {**{n: inputs[n] for n in OUTPUTS if n not in RETURNED}, **returned}
    return {name: as_array(value) for name, value in returned.items()}
'''

CHECK_CALLABLE = '''\
def check():
    """Run the op on the case; an error tells what is wrong."""
    tensors = read_tensors()
    laid = {name: lay_out(tensors[p["tensor"]], p) for name, p in INPUTS.items()}
    before = {name: memory.copy() for name, (_, memory) in laid.items()}
    inputs = {name: view.view() for name, (view, _) in laid.items()}
    for name, array in inputs.items():
        array.flags.writeable = INPUTS[name]["writable"]

    def restore():
        for name, (_, memory) in laid.items():
            memory[:] = before[name]

    surroundings = list(sys.path), dict(os.environ), os.getcwd(), sys.dont_write_bytecode
    try:
        sys.path[:0] = PATHS
        os.environ.update(ENVIRONMENT)
        os.chdir(ROOT)
        sys.dont_write_bytecode = True
        op = load()
        # Other values come first: what one call leaves behind must not matter to the next.
        for view, _ in laid.values():
            other = view.copy().reshape(-1)[::-1].reshape(view.shape)
            is_float = view.dtype.kind not in "biu"
            view[...] = (other * 0.5 + 0.3).astype(view.dtype) if is_float else other
        try:
            run(op, inputs, SEED)
        except Exception:
            pass
        restore()
        fill_fresh_memory(0x5B)
        outputs = run(op, inputs, SEED)
        for name, (view, memory) in laid.items():
            if name in MUTATES:
                view[...] = tensors[INPUTS[name]["tensor"]]
            assert np.array_equal(memory, before[name]), f"the op wrote to input {name!r}"
        check_outputs(outputs, tensors)
        for turn in range(REPEATS):
            restore()
            fill_fresh_memory(0xA4)
            check_same(outputs, run(op, inputs, (SEED ^ 0x5DEECE66D) + turn))
    finally:
        fill_fresh_memory(0xFF)
        sys.path[:], environment, folder, sys.dont_write_bytecode = surroundings
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
'''

CHECK_SAME = '''\
def check_same(outputs, again):
    """An identical call must give the same bits."""
    for name, first in outputs.items():
        second = again[name]
        same = first.shape == second.shape and first.dtype == second.dtype
        assert same and first.tobytes() == second.tobytes(), f"another call changed {name!r}"
'''

RUN_SCRIPT = '''\
def encode(values, place):
    """A tensor as the protocol has it."""
    data = base64.b64encode(values.tobytes()).decode()
    head = {"shape": list(values.shape), "strides": place["strides"], "dtype": values.dtype.name}
    return {**head, "data": data}


def decode(tensor):
    """The array of a tensor object."""
    name = (tensor.get("dtype") or "float32").lower()
    name = ALIASES.get(name, name)
    data = base64.b64decode(tensor["data"], validate=True)
    return np.frombuffer(data, EXTENDED.get(name, name)).reshape(tensor["shape"])


def run(tensors, fill):
    """Start the program on the case; its outputs by name.

    glibc fills fresh memory with `fill`: elements that the op never writes will show.
    """
    inputs = {name: encode(tensors[p["tensor"]], p) for name, p in INPUTS.items()}
    done = subprocess.run(
        COMMAND,
        input=json.dumps({"inputs": inputs, "kwargs": KWARGS}).encode(),
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "MALLOC_PERTURB_": str(fill ^ 0xFF)},
        timeout=TIMEOUT,
        check=False,
    )
    stderr = done.stderr.decode("utf-8", "replace")[-2000:]
    assert done.returncode == 0, f"exit code {done.returncode}\\n{stderr}"
    reply = json.loads(done.stdout)
    named = reply.get("outputs") or {OUTPUTS[0]: reply.get("output") or reply}
    if len(named) == 1 and len(OUTPUTS) == 1:
        named = dict(zip(OUTPUTS, named.values()))
    return {name: decode(tensor) for name, tensor in named.items()}
'''

CHECK_SCRIPT = '''\
def check():
    """Run the program on the case; an error tells what is wrong."""
    tensors = read_tensors()
    outputs = run(tensors, 0x5B)
    check_outputs(outputs, tensors)
    for _ in range(REPEATS):
        check_same(outputs, run(tensors, 0xA4))
'''

CHECK_OUTPUTS = '''\
def check_outputs(outputs, tensors):
    """Hold the outputs against the reference's; an AssertionError names the first wrong element."""
    assert not EXPECTED or set(outputs) == set(EXPECTED), f"the outputs are {sorted(outputs)}"
    for name, want in EXPECTED.items():
        actual, expected = outputs[name], tensors[want["values"]]
        assert actual.shape == expected.shape, (
            f"{name!r} has shape {actual.shape}, expected {expected.shape}"
        )
        assert actual.dtype.name in want["dtypes"], (
            f"{name!r} has dtype {actual.dtype}, expected {want['dtypes']}"
        )
        wrong = ~right_elements(actual, expected, want, tensors)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{wrong.sum()} of {wrong.size} elements of {name!r} are wrong; at {list(at)}: "
                f"actual {actual[at]!s}, expected {expected[at]!s}"
            )
        check_invariants(name, actual, want, tensors)
'''

RIGHT_EXACT = """\
    if actual.dtype == expected.dtype and not want["allowed"] and actual.dtype.kind in "iub":
        if want["atol"] == want["rtol"] == 0:
            return actual == expected
"""

RIGHT_HEAD = '''\
def right_elements(actual, expected, want, tensors):
    """Return a mask of the elements within the tolerance, or equal as NaN or Inf."""
'''

RIGHT_VALUES = """\
    a = raw = actual.astype(np.float64)
    e = expected.astype(np.float64)
    finite = np.isfinite(e)
    with np.errstate(all="ignore"):
        tolerance = want["atol"] + want["rtol"] * np.abs(e)
        if want["allowed"]:
            tolerance = tensors[want["allowed"]]
"""

RIGHT_CLIPPED = """\
        if want["largest"]:  # rounding alone may overflow; the reference is wider than the output
            over = np.isinf(a) & finite
            if not want["has_inf"]:
                over = (np.isinf(a) & finite) | (np.isnan(a) & ~np.isnan(e))
                a = np.where(np.isnan(a) & over, e, a)
                e = np.where(np.isinf(e), np.copysign(want["largest"], e), e)
            a = np.where(over, np.copysign(want["largest"], a), a)
"""

RIGHT_CLOSE = """\
        right = finite & np.isfinite(a) & (np.abs(a - e) <= tolerance)
    right |= (a == e) | (np.isnan(raw) & np.isnan(e))
"""

RIGHT_UNJUDGED = """\
    if want["unjudged"]:
        right |= tensors[want["unjudged"]]
"""

INVARIANTS_HEAD = '''\
def check_invariants(name, actual, want, tensors):
    """Assert what must hold of the output whatever the reference says."""
    a = np.atleast_1d(actual.astype(np.float64))
    asked = np.ones(a.shape, bool)
    if want["exempt"]:
        asked &= ~np.atleast_1d(tensors[want["exempt"]])
'''

NO_INVARIANTS = '''\
def check_invariants(name, actual, want, tensors):
    """Nothing is asked beside closeness."""
'''

INVARIANTS = {
    "non_negative": """\
    assert not ((a < 0) & asked).any(), f"{name!r} has elements below zero"
""",
    "finite": """\
    assert not (~np.isfinite(a) & asked).any(), f"{name!r} has elements that are not finite"
""",
    "no_nan": """\
    assert not (np.isnan(a) & asked).any(), f"{name!r} has elements that are NaN"
""",
    "no_inf": """\
    assert not (np.isinf(a) & asked).any(), f"{name!r} has elements that are infinite"
""",
    "normalized": """\
    with np.errstate(all="ignore"):
        off = ~(np.abs(a.sum(axis=-1) - 1.0) <= want["sum_tolerance"])
    assert not (off & asked.all(axis=-1)).any(), f"{name!r} does not sum to 1 over the last dim"
""",
    "symmetric": """\
    assert a.size == 0 or (a.ndim > 1 and a.shape[-1] == a.shape[-2]), f"{name!r} is not square"
    if a.size:
        b = np.swapaxes(a, -1, -2)
        with np.errstate(all="ignore"):
            tolerance = want["pair"][0] + want["pair"][1] * np.abs(b)
            near = np.isfinite(a - b) & (np.abs(a - b) <= tolerance)
        same = near | (a == b) | (np.isnan(a) & np.isnan(b))
        pairs = asked & np.swapaxes(asked, -1, -2)
        assert not (~same & pairs).any(), f"{name!r} is not symmetric"
""",
}

TEST_DIRECT = """\
def {test}():
    check()


if __name__ == "__main__":
    check()
    print(PASSED)
"""

TEST_CHILD = """\
def {test}():
    # In a process of its own, which the op may crash or hang.
    command = [PYTHON or sys.executable, os.path.abspath(__file__)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False
    )
    ended = f"exit code {{done.returncode}}\\n{{done.stderr[-4000:]}}"
    assert done.returncode == 0 and done.stdout.rstrip().endswith(PASSED), ended


if __name__ == "__main__":
{limit}    check()
    print(PASSED)
"""

MEMORY_LIMIT = """\
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, used + MEMORY_LIMIT))
"""
