"""Learning rates, tuned on a grid that goes on while its best one lies at an edge."""

from collections.abc import Iterable, Mapping

from residlab.experiments.record import Record


def best_rate(scores: Mapping[float, float]) -> float:
    """Return the rate with the lowest loss; among equals, as where all diverged, the lowest rate."""
    return min(scores, key=lambda rate: (scores[rate], rate))


def wanted_rates(
    first: Iterable[float], scores: Mapping[float, float], limits: tuple[float, float], *, factor: float = 2.0
) -> list[float]:
    """Return the rates that a tuning wants so far: the first ones, and on from there while the best is at an edge.

    Parameters
    ----------
    first
        The grid to begin with.
    scores
        Rate -> loss of the runs that are done; infinity for one that diverged.
    limits
        The least and the largest rate to try.
    factor
        From one rate to the next.
    """
    rates = set(first)
    while rates <= set(scores):
        best = best_rate({rate: scores[rate] for rate in rates})
        beyond = best * factor if best == max(rates) else best / factor if best == min(rates) else None
        if beyond is None or not limits[0] <= beyond <= limits[1]:
            break
        rates.add(beyond)
    return sorted(rates)


def scores_by_rate(records: Iterable[Record]) -> dict[float, float]:
    """Return learning rate -> bits per byte; a run that diverged scores infinity."""
    scores = {}
    for record in records:
        bits = record.metrics["bits_per_byte"]
        scores[record.config["optimizer"]["lr"]] = float("inf") if bits is None else bits
    return scores
