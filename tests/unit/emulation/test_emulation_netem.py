"""What tc is asked for, and what is read of its answers."""

from ddlbench.emulation.netem import drops_of, egress, ingress
from ddlbench.experiment.fabric import LinkCondition

SHOWN = """\
qdisc noqueue 0: dev lo root refcnt 2
 Sent 0 bytes 0 pkt (dropped 7, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
qdisc netem 8001: dev port0 root refcnt 2 limit 1042 delay 10ms loss 1% rate 500Mbit
 Sent 9850 bytes 98 pkt (dropped 3, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
qdisc netem 8002: dev port1 root refcnt 2 limit 1042 delay 10ms
 Sent 98 bytes 1 pkt (dropped 2, overlimits 0 requeues 0)
"""


def test_delay_and_loss_are_where_packets_arrive():
    condition = LinkCondition(0.01, 500e6, 0.01)
    assert egress(condition) == ["rate", "500000000bit", "limit", "1000"]
    # 500 Mbit/s for 10 ms are 417 packets of 1500 bytes.
    assert ingress(condition) == [
        *("delay", "10000us", "loss", "1%", "rate", "500000000bit", "limit", "1417")
    ]


def test_what_is_not_set_is_not_asked_for():
    condition = LinkCondition(0.0005, None, 0.0)
    assert egress(condition) == []
    assert ingress(condition) == ["delay", "500us", "limit", "1000000"]


def test_drops_are_those_of_netem():
    assert drops_of(SHOWN) == [3, 2]
    assert drops_of("") == []
