"""Everything that Python code in a worker depends on is reported, however it came by it."""

from __future__ import annotations

from runner_workspace import Workspace, make_case


def test_a_function_and_its_modules(ws: Workspace) -> None:
    ws.write("lib/helper.py", "import json\nVALUE = 1\n")
    program = ws.program(
        "callable",
        """
        import sys, os
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))
        def op(x):
            import helper
            open("made.txt", "w").close()
            open("made.txt").close()
            try:
                open("nothing.bin")
            except OSError:
                pass
            return x + len(open("data.txt").read()) + len(os.listdir("lib"))
        """,
    )
    ws.write("data.txt", "12")
    with ws.pool.session(program) as session:
        _, outcome = session.call(make_case(0))
        assert outcome.ok, outcome.error
        seen = session.observed()
        session.call(make_case(1))
        assert session.observed() is seen
    root = str(ws.folder)
    own = {p.removeprefix(root) for p in seen.files if p.startswith(root)}
    assert own == {"/program.py", "/lib/helper.py", "/data.txt"}
    assert f"{root}/nothing.bin" in seen.missed
    assert seen.listed == {f"{root}/lib"}
    assert any("numpy/__init__.py" in path for path in seen.files)
