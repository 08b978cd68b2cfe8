"""What tests of reports share."""

import pytest
from report_samples import NastyScenes, audit_of_segmenters, audit_of_twins, nasty_folder

from trueshift.report.page import write_audit


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """An audit of classifiers and its page, to be read only."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "data").mkdir()
    source = nasty_folder(folder / "data")
    found = audit_of_twins(source)
    return found, write_audit(found, source, folder)


@pytest.fixture(scope="session")
def written_scenes(tmp_path_factory):
    """The same of segmentation models."""
    found = audit_of_segmenters(NastyScenes())
    return found, write_audit(found, NastyScenes(), tmp_path_factory.mktemp("scenes"))
