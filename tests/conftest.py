"""What holds for every test: Hypothesis draws the same examples each time and does not judge the machine's speed."""

from hypothesis import HealthCheck, settings

settings.register_profile("draftproof", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("draftproof")
