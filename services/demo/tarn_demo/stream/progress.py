"""Whether the partitions of a process go on, by what Kafka says of the ends of their logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tarn_demo.stream.tasks import Place

SILENT_S_MAX = 15.0
STANDING_S_MAX = 60.0
ASSIGNED_WITHIN_S = 90.0


class Progress:
    """What was seen of the logs and of the process.

    Args:
        now_s: time in seconds, of a clock that never goes back, as in all that follows.
    """

    def __init__(self, now_s: float) -> None:
        self._started_s = self._answered_s = now_s
        self._assigned = False
        self._behind: dict[Place, tuple[int, float]] = {}
        self._ahead: dict[Place, str] = {}
        self._lost: list[str] = []

    def saw(
        self, now_s: float, positions: Mapping[Place, int], ends: Mapping[Place, int], *, assigned: bool
    ) -> None:
        """Note an answer of Kafka.

        Args:
            now_s: when.
            positions: the offset that comes next, by place of this process, from before Kafka was asked.
            ends: the offset that the next message will get, by place.
            assigned: whether places were assigned to this process ever, if only none.
        """
        self._answered_s, self._assigned = now_s, assigned
        before, self._behind = self._behind, {}
        for place, at in positions.items():
            if at < ends.get(place, 0):
                known = before.get(place)
                self._behind[place] = known if known is not None and known[0] == at else (at, now_s)
        doubted = self._ahead
        self._ahead = {
            place: f"{place.topic}, partition {place.partition}: offset {at} comes next, and the log ends "
            f"at {ends[place]}: the topic was made again, or has lost messages"
            for place, at in positions.items()
            if at > ends.get(place, at)
        }
        self._lost = [said for place, said in self._ahead.items() if place in doubted]

    def faults(self, now_s: float) -> list[str]:
        """What keeps the process from working, one sentence each."""
        silent_s = now_s - self._answered_s
        found = [f"Kafka has not answered for {silent_s:.0f} s"] if silent_s > SILENT_S_MAX else []
        return [*found, *self.standing(now_s)]

    def standing(self, now_s: float, *, times: int = 1) -> list[str]:
        """What does not go on although Kafka answers.

        Args:
            now_s: when.
            times: how many times as long as is a fault it has stood.
        """
        waits_s = now_s - self._started_s
        if not self._assigned and waits_s > ASSIGNED_WITHIN_S * times:
            return [f"no partitions were assigned within {waits_s:.0f} s"]
        return [
            f"{place.topic}, partition {place.partition}: stands at offset {at} for {now_s - since_s:.0f} s"
            for place, (at, since_s) in self._behind.items()
            if now_s - since_s > STANDING_S_MAX * times
        ]

    def lost(self) -> list[str]:
        """Whose log ended before its position, in two answers: one may be of a broker that starts."""
        return self._lost
