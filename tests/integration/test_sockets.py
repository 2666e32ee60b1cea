"""What a run on this machine listens on, and who gets an answer."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from local_cells import DDP, GPIPE, HOROVOD, PARAMETER_SERVER, PIPEDREAM
from torch.distributed import HashStore

from ddlbench.strategies.horovod.executor import join_rendezvous


@pytest.mark.parametrize(
    "cell", [DDP, HOROVOD, PARAMETER_SERVER, PIPEDREAM, GPIPE], ids=lambda cell: cell.strategy
)
def test_a_local_run_listens_on_loopback_only(cell, shared_cells):
    """hardening E2: Horovod's rendezvous listened on all interfaces."""
    if cell is HOROVOD:
        pytest.importorskip("horovod.torch")
    assert shared_cells.run(cell).listened == {"127.0.0.1"}


@pytest.fixture
def server():
    rendezvous = join_rendezvous(HashStore(), 0, ["n1", "n1"], "127.0.0.1", "our-secret")
    yield rendezvous
    rendezvous.server.shutdown()
    rendezvous.server.server_close()


@pytest.mark.parametrize("path", ["global/0", "our-secre:1/global/0", "our-secret2:1/global/0", ""])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_horovods_rendezvous_answers_nobody_without_the_secret(path, method, server):
    request = Request(f"http://127.0.0.1:{server.port}/{path}", data=b"mine", method=method)
    with pytest.raises(HTTPError) as caught:
        urlopen(request, timeout=10)
    assert caught.value.code in (400, 403, 404)
    assert server.server.cache.get("global", {}).get("0") != b"mine"


def test_horovods_client_reaches_it_by_the_address_that_it_is_told(server):
    assert server.server.server_address[0] == "127.0.0.1"
    # What Horovod makes of the two variables that it reads.
    where = f"http://{server.address}:{server.port}/global/key"
    urlopen(Request(where, data=b"mine", method="PUT"), timeout=10)
    assert urlopen(where, timeout=10).read() == b"mine"


def test_ranks_without_a_secret_of_the_run_get_one_from_the_store():
    store = HashStore()
    first = join_rendezvous(store, 0, ["n1", "n1"], "127.0.0.1")
    try:
        second = join_rendezvous(store, 1, ["n1", "n1"], "127.0.0.1")
        assert second.address == first.address
        assert len(first.address.rpartition("/")[2]) == 32
    finally:
        first.server.shutdown()
        first.server.server_close()
