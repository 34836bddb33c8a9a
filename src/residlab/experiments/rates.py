"""Learning rates, tuned on a grid that goes on while its best one lies at an edge."""

from collections.abc import Iterable, Mapping

from residlab.experiments.record import Record


def best_rate(scores: Mapping[float, float], *, equal: float = 0.0) -> float:
    """Return the rate with the lowest loss; among equals, as where all diverged, the lowest rate.

    Parameters
    ----------
    scores
        Rate -> loss.
    equal
        Losses that differ from the lowest by no more than this are equal: where nothing is learnt at any rate, noise
        does not choose one.
    """
    lowest = min(scores.values())
    return min(rate for rate, score in scores.items() if score <= lowest + equal)


def wanted_rates(
    first: Iterable[float],
    scores: Mapping[float, float],
    limits: tuple[float, float],
    *,
    factor: float = 2.0,
    equal: float = 0.0,
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
    equal
        As in `best_rate`.
    """
    rates = set(first)
    while rates <= set(scores):
        best = best_rate({rate: scores[rate] for rate in rates}, equal=equal)
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
