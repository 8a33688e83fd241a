import os

import pytest


@pytest.fixture(scope="session")
def cluster():
    """One local Ray cluster for all tests of a session; it ends with them, and reports nothing to anybody."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    from course.systems.ray_cluster import start_ray

    assert start_ray(cpus=8)  # places for actors, not cores
    yield ray
    ray.shutdown()
