"""For all tests: examples may take as long as the machine is busy; what has to be fast says so itself."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("iscp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("iscp")
