import pytest

import tiny


@pytest.fixture(scope="session")
def models():
    return tiny.all_models()
