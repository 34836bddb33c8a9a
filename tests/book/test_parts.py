"""What the overviews of the parts say of the records, against the records."""

from residlab.experiments.recorded import found, results_folder

ROOT = results_folder().parent


def text_of(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_part_ii_counts_its_runs():
    records = list(found("residual-free").records)
    assert f"{len(records)} training runs" in text_of("book/part2.md")
    assert round(sum(record.metrics["seconds"] for record in records) / 3600) == 11
    assert "eleven hours" in text_of("book/part2.md")


def test_part_iv_counts_its_runs():
    together = found("together")
    tuned, trained, examined, rounded = (len(together.stage(s)) for s in ("tuning", "main", "examine", "rounding"))
    assert (
        f"{tuned} runs that tune, {trained} that train what Parts I and II lack, {examined} models that are examined, "
        f"and {rounded} inferences in four arithmetics"
    ) in text_of("book/part4.md")
    changed = [record for record in together.stage("examine") if str(record.commit).endswith("+")]
    assert f"for the last {len(changed)} the probes of the training were switched off" in text_of("results/README.md")
