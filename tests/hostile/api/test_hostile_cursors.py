"""Cursors: no client sets a cursor of one stream through the name of another."""

from __future__ import annotations

import pytest

from tests.support.api_client import Api
from tests.support.broker_fixtures import unique_name


@pytest.mark.parametrize("other", [("{name},b", "c"), ("{name},b,c", "0"), ("{name}", "b/c"), ("{name}", r"b\,c")])
def test_commas_in_names_do_not_join_cursors(api: Api, other: tuple[str, str]) -> None:
    """The parts of a cursor's key are joined by commas."""
    name = unique_name("cursor")
    own = {"cursorId": name, "stream": "b,c", "partition": 0}
    cursor_id, stream = other[0].format(name=name), other[1]
    api.SetCursor(**own, offset=7)
    if stream.isalnum():
        api.SetCursor(cursorId=cursor_id, stream=stream, partition=0, offset=1)
    else:
        assert api.FetchCursor(cursorId=cursor_id, stream=stream, partition=0).offset == -1
    assert api.FetchCursor(**own).offset == 7
