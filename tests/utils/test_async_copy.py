"""Results on their way from a device: read once they have arrived, whichever device is the current one."""

from unittest.mock import Mock

import numpy as np
import torch

from trueshift.utils.async_copy import AsyncCopy


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
