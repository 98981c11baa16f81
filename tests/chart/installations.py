"""Values of several installations, which between them reach every branch of the chart's templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ON_SSD = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}
DIGEST = f"sha256:{'a' * 64}"

SMALLEST: Mapping[str, Any] = {
    "image": {"repository": "images.example/iscp"},
    "etcd": {"image": {"digest": DIGEST}},
    "config": {"log": {"uri": "s3://lake/iscp"}, "storage": {"s3": {"region": "eu-1"}}},
    "tls": {"secret": "lake-tls"},
}
"""What has to be given."""

INSTALLATIONS: Mapping[str, Mapping[str, Any]] = {
    "smallest": SMALLEST,
    "on a shared file system": {
        "replicas": 1,
        "config": {
            "log": {"uri": "/lake/iscp"},
            "stop_timeout_s": 45.5,
            "bounds": {"rows_max": 7_000_000},
            "spark": {"driver_memory_mb": 3072, "conf": {"spark.sql.session.timeZone": "UTC"}},
            "storage": {"self_test": ["/lake/derived"]},
            "security": {"insecure": True},
        },
        "image": {"repository": "images.example/iscp", "digest": DIGEST, "pullSecrets": ["images"]},
        "resources": {"limits": {"memory": "6Gi"}},
        "extraVolumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
        "extraVolumeMounts": [{"name": "lake", "mountPath": "/lake"}],
        "etcd": {
            "deploy": False,
            "endpoints": ["etcd-0:2379", "etcd-1:2379"],
            "authSecret": "etcd-user",
            "insecure": True,
        },
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
    },
    "guarded and spread": {
        **SMALLEST,
        "spread": "hard",
        "tls": {"secret": "lake-tls", "certManager": {"issuer": "company", "issuerKind": "ClusterIssuer"}},
        "image": {"repository": "images.example/iscp", "tag": "2"},
        "config": {
            "log": {"uri": "s3://lake/iscp"},
            "storage": {"s3": {"region": "eu-1", "buckets": {"acme.raw": {"endpoint": "https://store.example"}}}},
        },
        "s3": {"credentialsSecret": "lake-keys", "bucketSecrets": {"acme.raw": "acme-keys", "beta": "beta-keys"}},
        "etcd": {
            "image": {"byTag": True},
            "tls": {"clientSecret": "etcd-client", "serverSecret": "etcd-server"},
            "storage": {"className": "fast"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "etcd", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "gateway": {"enabled": True, "port": 80},
        "page": {"enabled": True, "port": 8080},
        "metrics": {
            "enabled": True,
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
            "serviceMonitor": {
                "enabled": True,
                "tlsSecret": "prometheus-tls",
                "tokenSecret": "prometheus-token",
                "labels": {"release": "prometheus"},
            },
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
        "service": {"annotations": {"example.com/internal": "true"}},
        "networkPolicy": {
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "data"}}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
        },
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "lake.example",
            "port": "http",
            "tlsSecret": "lake-front",
            "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
        },
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ON_SSD}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "iscp", "operator": "Exists"}],
        "priorityClassName": "high",
        "podLabels": {"team": "data"},
        "podAnnotations": {"example.com/scrape": "false"},
    },
    "by a web identity": {
        **SMALLEST,
        "s3": {"webIdentity": {"roleArn": "arn:aws:iam::123456789012:role/lake"}},
        "serviceAccount": {"name": "lake-reader", "annotations": {"example.com/role": "lake"}},
        "etcd": {"image": {"digest": DIGEST}, "tls": {"certManager": {"issuer": "company"}}},
        "runAsUser": None,
        "jobs": [{"table": "s3://lake/orders", "name": "copy", "target": "s3://lake/copy", "key": ["id"]}],
        "views": {
            "sql": "CREATE MATERIALIZED VIEW daily AS\n  SELECT day, sum(total) AS total FROM orders GROUP BY day;\n",
            "targetRoot": "s3://lake/views",
            "tables": {"orders": "s3://lake/orders"},
        },
        "apply": {"tokenSecret": "editor-token", "account": "acme"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "initContainers": [{"name": "wait", "image": "images.example/wait:1", "command": ["wait"]}],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraEnvFrom": [{"secretRef": {"name": "webhooks"}}],
    },
    "on a network that is trusted": {
        "image": {"repository": "images.example/iscp"},
        "config": {
            "log": {"uri": "s3://lake/iscp"},
            "storage": {"s3": {"region": "eu-1"}},
            "security": {"insecure": True},
        },
        "etcd": {"image": {"digest": DIGEST}, "insecure": True},
        "jobs": [{"table": "s3://lake/orders", "name": "copy", "target": "s3://lake/copy", "key": ["id"]}],
    },
}
