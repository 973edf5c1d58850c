"""`--shard I/N` for CI matrices."""

from __future__ import annotations

from mini_workspace import Mini


def ops(mini: Mini, *words: str) -> set[str]:
    return {result["op"] for result in mini.run(*words)["results"]}


def test_each_op_is_in_one_shard_whatever_is_cached(mini: Mini) -> None:
    mini.without_causes()
    first = [ops(mini, "--shard", f"{n}/2") for n in (1, 2)]
    assert first[0] | first[1] == {"scale", "total", "relu"}
    assert not first[0] & first[1]
    mini.run()  # now all is cached here, and no other machine sees it
    assert [ops(mini, "--shard", f"{n}/2") for n in (1, 2)] == first
    more = [ops(mini, "--shard", f"{n}/7") for n in range(1, 8)]
    assert sorted(op for part in more for op in part) == ["relu", "scale", "total"]
    assert set() in more, "an empty shard is no failure"
    mini.keep_only("scale")
    alone = [ops(mini, "--shard", f"{n}/2") for n in (1, 2)]
    assert alone == [part & {"scale"} for part in first], "other ops move none"


def test_what_is_no_shard(mini: Mini) -> None:
    apart = "the first number is one from 1 to 2"
    for shard, reason in (
        ("0/2", apart), ("3/2", apart),
        *((text, "is no shard") for text in ("1", "1/", "/2", "-1/2", "1/99999999", "a/b")),
    ):  # fmt: skip
        assert reason in mini.command("run", f"--shard={shard}", code=2).stderr
    assert "is no shard" in mini.command("ci", "--shard=1/2/3", code=2).stderr
