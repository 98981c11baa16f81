"""Records how long searches take, around whoever answers them."""

from __future__ import annotations

from collections.abc import Callable

from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.metrics.attributes import ERROR
from iscp.core.metrics.index_metrics import SEARCH_DURATION
from iscp.core.values.untrusted_values import error_code
from iscp.ports.system import Clock, Meter
from iscp.ports.target_reading import Searching


class MeteredSearch:
    """Port Searching, around another one."""

    def __init__(self, service: Searching, meter: Meter, clock: Clock) -> None:
        self._service = service
        self._meter = meter
        self._clock = clock

    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        began_s, failed = self._clock.monotonic_s(), dict[str, str]()
        try:
            return self._service.search(request, account, alive)
        except BaseException as error:
            failed = {ERROR.name: error_code(error).name}
            raise
        finally:
            self._meter.record(SEARCH_DURATION, self._clock.monotonic_s() - began_s, failed)

    def close(self) -> None:
        self._service.close()
