"""What tests of reports share."""

import pytest
from report_samples import audit_of_twins, nasty_folder

from trueshift.report.output import write_audit


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """An audit and the page of it, to be read only."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "data").mkdir()
    source = nasty_folder(folder / "data")
    found = audit_of_twins(source)
    return found, write_audit(found, source, folder)
