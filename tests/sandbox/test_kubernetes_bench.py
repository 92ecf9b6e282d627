"""The measurement of reading a big cluster, on a small one."""

from __future__ import annotations

from bench import kubernetes_reads


def test_its_bounds_hold_on_a_small_cluster(capsys) -> None:  # type: ignore[no-untyped-def]
    found = kubernetes_reads.measure(200, 20, 0.05)
    kubernetes_reads.show(found)
    assert found["ok"], capsys.readouterr().out
    what = {row[0].split(",")[0]: row for row in found["rows"]}
    assert what["first list"][3] >= 220
    assert what["unchanged"][1] == 0
    assert what["50 pods change"][3] == 50
