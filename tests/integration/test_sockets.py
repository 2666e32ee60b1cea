"""What a run on this machine listens on, and who gets an answer."""

from __future__ import annotations

import threading
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from local_cells import local_site, odd_cell, run_one, running
from torch.distributed import HashStore

from ddlbench.strategies.horovod.rendezvous import join_rendezvous


class Listeners(threading.Thread):
    """Addresses on which processes under this one listen, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.addresses: set[str] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            for process in running():
                try:
                    found = process.net_connections("inet")
                except psutil.Error:
                    continue
                self.addresses |= {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("strategy", ["ddp", "horovod", "parameter-server", "pipedream", "gpipe"])
def test_a_local_run_listens_on_loopback_only(strategy, tmp_path):
    """hardening E2: Horovod's rendezvous listened on all interfaces."""
    options = {"balance": "3+3"} if strategy in ("pipedream", "gpipe") else {}
    listeners = Listeners()
    listeners.start()
    try:
        cell = odd_cell("slow", strategy, options=options)
        result, _ = run_one(cell, local_site(tmp_path), tmp_path)
    finally:
        listeners.ended.set()
        listeners.join()
    assert result["status"] == "ok", result["reason"]
    assert listeners.addresses == {"127.0.0.1"}


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
