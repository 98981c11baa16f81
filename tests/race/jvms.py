"""Contenders in JVMs of their own: a bare one with a gateway, with the log stores and nothing of Spark around them."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from iscp.delta.selftest.commit_race import Contender, StoreContender, hadoop_uri
from iscp.spark.java import delta_jars, find_java, log_store_jar, s3_jars, spark_jars
from iscp.spark.jvm_launch import LOG_STORE, default_cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FOR_LOCAL_PATHS = ("hadoop-client", "slf4j-api", "commons-logging")


class Jvm:
    """A JVM with the log stores on its class path, and no Spark at work; `settings` of Hadoop where it goes to S3."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        environ = dict(os.environ)
        java = find_java(environ)
        own = log_store_jar()
        assert own is not None
        jars = [jar for jar in spark_jars() if settings or jar.name.startswith(_FOR_LOCAL_PATHS)]
        cache = default_cache_dir(environ)
        jars += delta_jars(cache, java, environ)
        if settings:
            jars += s3_jars(cache, java, environ)
        port, self.child = launch_gateway(
            jarpath=str(next(jar for jar in spark_jars() if jar.name.startswith("py4j"))),
            classpath=os.pathsep.join(map(str, [*jars, own])),
            javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
            java_path=str(java.executable),
            die_on_exit=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self.view = self._gateway.jvm
        self.conf = self.view.org.apache.hadoop.conf.Configuration()
        for name, value in (settings or {}).items():
            self.conf.set(name, value)

    def store(self, class_name: str = LOG_STORE) -> Any:
        return reduce(getattr, class_name.split("."), self.view)(self.conf)

    def path(self, path: Path | str) -> Any:
        return self.view.org.apache.hadoop.fs.Path(hadoop_uri(str(path)))

    def lines(self, *lines: str) -> Any:
        found = self.view.java.util.ArrayList()
        for line in lines:
            found.add(line)
        return found.iterator()

    def contender(self, log: Path | str, name: str, class_name: str = LOG_STORE) -> StoreContender:
        return StoreContender(self.view, self.store(class_name), self.conf, str(log), name)

    def close(self) -> None:
        # py4j would report to it, whenever Python collects garbage, which objects it may free.
        self._gateway._gateway_client.is_connected = False
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


class AtOnce:
    """A contender whose `start` waits, run beside the others in a thread of its own."""

    def __init__(self, inner: Contender, pool: ThreadPoolExecutor) -> None:
        self.name = inner.name
        self._inner, self._pool = inner, pool
        self._attempt: Future[None] | None = None

    def prepare(self, version: int) -> None:
        self._inner.prepare(version)

    def start(self) -> None:
        self._attempt = self._pool.submit(self._inner.start)

    def result(self) -> bool:
        assert self._attempt is not None
        self._attempt.result()
        return self._inner.result()
