"""Bugs to be planted in the core, one at a time: what a simulation is worth that does not find them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from persistent_state import batch, clock, driver, merge
from persistent_state.steps import combine, lift, shard
from persistent_state.store import entry, log, run


@dataclass(frozen=True)
class Bug:
    """A mistake that someone could make: pieces of a function's source, replaced."""

    name: str
    says: str
    target: Any
    changes: tuple[tuple[str, str], ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while this lasts."""
        source = textwrap.dedent(inspect.getsource(self.target))
        for right, wrong in self.changes:
            assert source.count(right) == 1, (
                f"{self.name}: {right!r} stands {source.count(right)} times in {self.target}"
            )
            source = source.replace(right, wrong)
        names = vars(sys.modules[self.target.__module__])
        made: dict[str, Any] = {}
        exec(compile("from __future__ import annotations\n" + source, self.name, "exec"), names, made)
        # The function itself is changed, whoever has imported it.
        right_code = self.target.__code__
        self.target.__code__ = made[self.target.__name__].__code__
        try:
            yield
        finally:
            self.target.__code__ = right_code


def bug(name: str, says: str, target: Any, *changes: tuple[str, str]) -> Bug:
    return Bug(name, says, target, changes)


BUGS = (
    # The state at a clock
    bug(
        "cut at the clock",
        "What is at the clock counts as below it.",
        merge.below,
        ("starts < clock))", "starts <= clock))"),
    ),
    bug("no limit of a run", "A run cut back at a start is read whole.", run.read_run, ("run.below)", "None)")),
    bug(
        "retained clocks folded over",
        "Folding keeps only the cuts apart, not the retained clocks.",
        batch.cuts_to_keep,
        ("(*basis.retained, *after.cuts)", "after.cuts[-1:]"),
    ),
    bug(
        "coarse intervals forgotten",
        "A batch does not say how coarse its intervals are.",
        clock.split_intervals,
        ("return starts, Coarse(low, high, step)", "return starts, None"),
    ),
    bug(
        "coarse intervals ignored",
        "The clock moves into the middle of a stored interval.",
        clock.clean_clock,
        ("segments = list(coarse)", "segments = []"),
    ),
    bug(
        "coarse intervals dropped early",
        "An interval is forgotten before the clock has passed it.",
        batch.advance,
        ("if segment.high > clock)", "if segment.low > clock)"),
    ),
    bug(
        "ordered monoid folded in a batch",
        "Updates whose order matters are folded before all have come.",
        shard.merge_shard,
        ("apart = BEGINNING if plan.layout.is_ordered else None", "apart = None"),
    ),
    bug(
        "ordered monoid folded above the clock",
        "Rewriting runs folds updates that others may still go between.",
        shard._apart_from,
        ("return after.clock if plan.layout.is_ordered else None", "return None"),
    ),
    bug(
        "ordered monoid folded in part",
        "Only some runs are folded, though others hold what goes between.",
        shard._keep,
        ("if plan.layout.is_ordered:", "if False:"),
    ),
    bug(
        "equal hashes taken for equal keys",
        "Keys are told apart by their hash alone.",
        merge.sort,
        ("same_hash & keys.same_as_previous", "same_hash | keys.same_as_previous"),
    ),
    # Clocks
    bug(
        "global clock of the fastest",
        "The global clock waits for one task, not for all.",
        entry.global_clock,
        ("if all(task.is_at(c) for task in active)", "if any(task.is_at(c) for task in active)"),
    ),
    bug(
        "upstream clock of the fastest channel",
        "The fastest channel moves the clock.",
        clock.upstream_min,
        ("return min(", "return max("),
    ),
    bug("no delay", "The allowed delay is ignored.", clock.upstream_min, ("c.newest - delay", "c.newest")),
    bug(
        "silent channel ignored",
        "A channel that has delivered nothing does not hold the clock.",
        clock.live_channels,
        ("if not c.ended and", "if not c.ended and c.newest is not None and"),
    ),
    bug(
        "channels outlive a start",
        "After a start channels are believed as far as they were before it.",
        driver._cut_back,
        ("channel.cut_back(clock, now)", "channel"),
    ),
    bug(
        "thinning too far",
        "Between the global clock and its own a task keeps no clocks in common with others.",
        clock.thin_cuts,
        ("c % step == 0", "False"),
    ),
    bug(
        "clock not cut",
        "The clock that a batch moves its task to is not one of its cuts.",
        batch.advance,
        ("settings.interval, coarse), clock)", "settings.interval, coarse))"),
        ("else min(lows, default=clock)", "else clock"),
    ),
    bug(
        "close at the newest message",
        "The closing clock is not above the newest message.",
        clock.next_multiple,
        ("(timestamp // interval + 1)", "(timestamp // interval)"),
    ),
    # Positions and what a replay has seen
    bug(
        "position one too far", "A start skips a message.", clock.move_position, ("Position(end,", "Position(end + 1,")
    ),
    bug(
        "position one too few",
        "A message is read twice.",
        clock.move_position,
        ("Position(end,", "Position(max(end - 1, 0),"),
    ),
    bug(
        "replay from the newest",
        "A start goes on where the last one stopped.",
        clock.rewind_position,
        ("first = replay_from(position, clock)", "first = position.next"),
    ),
    bug(
        "replay from too late",
        "What reached exactly the clock does not start the replay.",
        clock.replay_from,
        ("if newest >= clock", "if newest > clock"),
    ),
    bug(
        "accounted forgotten",
        "A start forgets what is in the state already.",
        clock.rewind_position,
        ("return Position(first, accounted,", "return Position(first, (),"),
    ),
    bug(
        "accounted at the clock",
        "A start takes what is at its clock for accounted.",
        clock.is_accounted,
        ("timestamps < below", "timestamps <= below"),
    ),
    bug(
        "accounted dropped early",
        "A start that was not read through is forgotten.",
        clock.rewind_position,
        ("pairs = sorted({*position.accounted, (position.next, clock)})", "pairs = [(position.next, clock)]"),
    ),
    # Late and bad rows
    bug(
        "all is late",
        "Every message is declared late.",
        lift.lift_chunk,
        ("place.timestamps < basis.clock", "place.timestamps < 2**63 - 1"),
    ),
    bug(
        "late at the clock",
        "What is at the clock is late.",
        lift.lift_chunk,
        ("place.timestamps < basis.clock", "place.timestamps <= basis.clock"),
    ),
    bug(
        "nothing is late",
        "No message is declared late.",
        lift.lift_chunk,
        ("place.timestamps < basis.clock", "place.timestamps < -(2**63)"),
    ),
    bug(
        "late again on replay",
        "What a replay delivers again below the clock counts as late again.",
        lift.lift_chunk,
        ("place.positions, stamps)", "place.positions, stamps) | (place.positions >= position.next)"),
    ),
    bug(
        "side rows kept at a start",
        "What is read again stays aside, and is set aside again.",
        driver._cut_back,
        ("sides.take_back(files, side, clock, replays) for side", "side for side"),
    ),
    bug(
        "side rows in every shard",
        "Every shard writes the late and bad rows.",
        combine.combine,
        ("sides if i == part % plan.shards else ()", "sides"),
    ),
    bug(
        "settled too early",
        "Rows aside that a start may still take back are taken for final.",
        entry.SideFile.is_settled,
        ("return all(end <=", "return any(end <="),
    ),
    bug(
        "settled rows collected",
        "Late rows are deleted once they are no longer listed one by one.",
        driver.collect,
        ("sides.settled(log.files, task))", "())"),
    ),
    # Commit
    bug(
        "settled rows of the newest only",
        "A driver that slept through a takeover deletes late rows that the new one has settled.",
        driver.collect,
        ("for entry in entries.values() for task in entry.tasks.values()}", "for task in newest.tasks.values()}"),
    ),
    bug(
        "commit before the run is durable",
        "A run counts as written though the store did not say so.",
        run.write_bytes,
        ("files.create(path, data)", "try:\n        files.create(path, data)\n    except Exception:\n        pass"),
    ),
    bug(
        "shard missing",
        "A commit does not need all shards.",
        driver._with_batch,
        ("answered != list(range(newest.shards))", "False"),
        ("zip(ordered, shard_digests(newest, task), strict=True)", "()"),
    ),
    bug(
        "shard twice",
        "A shard may answer twice.",
        driver._with_batch,
        ("answered != list(range(newest.shards))", "set(answered) != set(range(newest.shards))"),
        ("zip(ordered, shard_digests(newest, task), strict=True)", "()"),
    ),
    bug(
        "shards in any order",
        "What shards say depends on the order in which parts arrive.",
        batch.advance,
        ("reports = sorted(reports, key=lambda report: report.part)", "reports = list(reports)"),
    ),
    bug(
        "stale cache",
        "A shard goes on from what it remembers, whatever the log says.",
        shard._held_runs,
        ("cached is not None and digest(cached, basis.clock) == basis.digests[shard]", "cached is not None"),
    ),
    bug(
        "runs cut wrongly",
        "At a start runs are not cut at the upper bounds of shards.",
        driver._cut_runs,
        ("high=min(high, run.high)", "high=high"),
        ("low=max(low, run.low)", "low=low"),
    ),
    bug(
        "no epoch in a commit",
        "A driver that was taken over goes on committing.",
        driver.commit,
        ("newest.epoch != epoch or first.epoch != epoch", "False"),
    ),
    bug(
        "lost answer taken for a loss",
        "A driver whose own entry exists tries again.",
        log.Log.append,
        ("if self._stands(path, data):", "if False:"),
    ),
    bug(
        "lost answer taken for a commit",
        "A driver takes any entry of its number for its own.",
        log.Log._stands,
        ("bytes(self.files.read(path)) == data", "True"),
    ),
    bug(
        "no look for a newer driver",
        "A driver whose number was collected believes that it committed.",
        log.Log.append,
        ("newest.epoch > entry.epoch", "False"),
        ("newest.number > entry.number and", "False and"),
    ),
    bug(
        "no look for a newer entry",
        "A task whose number was collected believes that it committed.",
        log.Log.append,
        ("newest.number > entry.number and", "False and"),
    ),
    bug(
        "damaged entry accepted",
        "Entries are not checked.",
        entry.from_bytes,
        ("if not newline or seal !=", "if False and seal !="),
    ),
    # Collection
    bug(
        "named run collected",
        "Collection does not look at what entries name.",
        driver.collect,
        ('if f"{folder}/{file}" not in named and written', "if written"),
    ),
    bug(
        "run of a batch under way collected",
        "Collection takes runs that a commit will name.",
        driver.collect,
        ("written < (newest.epoch, task.batch)", "written <= (newest.epoch, task.batch + 1)"),
    ),
)
