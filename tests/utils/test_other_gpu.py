"""Work on a GPU that is not the first one: it is the current device of a run, and what comes from it is waited for."""

from contextlib import contextmanager
from unittest.mock import Mock

import numpy as np
import torch

from trueshift.utils.async_copy import AsyncCopy
from trueshift.utils.distributed import joined_processes


def test_a_copy_is_waited_for_on_the_device_that_it_comes_from(monkeypatch):
    second, event = torch.device("cuda", 1), Mock(**{"query.return_value": False})
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: ("the stream of", device))
    monkeypatch.setattr(torch, "empty", Mock(**{"return_value.numpy.return_value": np.zeros(3)}))
    copy = AsyncCopy(Mock(spec=torch.Tensor, is_cuda=True, device=second, shape=(3,), dtype=torch.float64))
    event.record.assert_called_once_with(("the stream of", second))
    assert not copy.ready
    event.synchronize.assert_not_called()
    copy.numpy()
    event.synchronize.assert_called_once_with()


def test_the_device_asked_for_is_the_current_one_within_a_run(monkeypatch):
    current = [0]

    @contextmanager
    def device(name):
        current.append(torch.device(name).index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    for name, index in (("cuda:1", 1), ("cpu", 0)):
        with joined_processes(name) as (found, rank):
            assert (found, rank, current[-1]) == (name, 0, index)
    assert current == [0]
