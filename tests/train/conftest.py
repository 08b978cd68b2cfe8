"""What tests of training share."""

import pytest
from training_runs import learn, write_flows, write_scenes


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="session")
def flows(tmp_path_factory):
    return write_flows(tmp_path_factory.mktemp("flows"))


@pytest.fixture(scope="session")
def data(scenes, flows):
    """Options for the data of each task."""
    paths = {"classification": "sample", "segmentation": scenes, "fields": flows}
    return {task: {"task": task, "data__path": path} for task, path in paths.items()}


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    return learn(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def learned(tmp_path_factory, data):
    """One that learns the class of every pixel, with all that it can leave behind; others are compared with it."""
    more = {"evaluate__protocols": "[ade20k-circular]", "ema_decay": 0.9, "model__drop_path_rate": 0.3}
    return learn(tmp_path_factory.mktemp("learned"), **data["segmentation"], **more)
