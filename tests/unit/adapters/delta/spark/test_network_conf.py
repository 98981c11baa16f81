"""Spark's own ports: on the loopback interface, or with its authentication and encryption on."""

from __future__ import annotations

import pytest

from iscp.adapters.delta.spark.network_conf import network_conf, refuse_open_ports, stays_here
from iscp.core.values.errors import ConfigurationError

SECRET = {"spark.authenticate.secret": "s"}
FAR = "spark://m1:7077,m2:7077"


def test_masters_here_bind_to_loopback() -> None:
    for master in ("local", "local[*]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://localhost:1"):
        assert stays_here(master)
        assert network_conf(master, insecure=False)["spark.driver.bindAddress"] == "127.0.0.1"
        refuse_open_ports(master, False, {"spark.authenticate": "false"})
    for master in (FAR, "spark://127.0.0.1:1,m2:1", "yarn", "k8s://https://127.0.0.1:6443"):
        assert not stays_here(master)


def test_masters_elsewhere_authenticate_and_encrypt() -> None:
    conf = network_conf(FAR, insecure=False)
    assert {conf[name] for name in conf if name.endswith(("authenticate", "enabled"))} == {"true"}
    assert set(conf) >= {"spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"}
    assert network_conf(FAR, insecure=True) == {}


def test_without_a_secret_they_are_refused() -> None:
    refuse_open_ports(FAR, False, SECRET)
    refuse_open_ports(FAR, True, {})
    refuse_open_ports("yarn", False, {})
    with pytest.raises(ConfigurationError, match=r"spark\.authenticate\.secret.*security\.insecure"):
        refuse_open_ports(FAR, False, {})
    for name in ("spark.authenticate", "spark.network.crypto.enabled"):
        with pytest.raises(ConfigurationError, match=f"has {name} turned off"):
            refuse_open_ports(FAR, False, {**SECRET, name: "false"})
    refuse_open_ports(FAR, False, {**SECRET, "spark.network.crypto.enabled": "false", "spark.ssl.rpc.enabled": "true"})
