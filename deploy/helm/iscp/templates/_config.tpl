{{/* The nodes' file: the values' settings, and those that are the chart's own. */}}
{{- define "iscp.config" -}}
{{- $health := dict "listen" "0.0.0.0:7431" -}}
{{- $own := dict "listen" "0.0.0.0:7430" "data_dir" "/var/lib/iscp" "health" $health -}}
{{- if .Values.tls.secret -}}
  {{- $files := dict "ca_file" "/etc/iscp/tls/ca.crt" "cert_file" "/etc/iscp/tls/tls.crt" "key_file" "/etc/iscp/tls/tls.key" -}}
  {{- $security := dict "tls" $files -}}
  {{- if not (dig "insecure" false (.Values.config.security | default dict)) -}}
    {{- $security = set $security "authentication" true -}}
  {{- end -}}
  {{- $own = set $own "security" $security -}}
{{- end -}}
{{- $etcd := dict "endpoints" (include "iscp.endpoints" . | fromJsonArray) -}}
{{- if include "iscp.etcdClientSecret" . -}}
  {{- range $setting, $key := dict "ca_file" "ca.crt" "cert_file" "tls.crt" "key_file" "tls.key" -}}
    {{- $etcd = set $etcd $setting (printf "/etc/iscp/etcd-tls/%s" $key) -}}
  {{- end -}}
{{- end -}}
{{- $own = set $own "etcd" $etcd -}}
{{- if .Values.gateway.enabled -}}
  {{- $own = set $own "gateway" (dict "listen" "0.0.0.0:7480") -}}
{{- end -}}
{{- if .Values.page.enabled -}}
  {{- $hosts := dig "hosts" (list) (.Values.config.page | default dict) -}}
  {{- if and .Values.ingress.enabled (eq .Values.ingress.port "page") -}}
    {{- $hosts = append $hosts .Values.ingress.host | uniq -}}
  {{- end -}}
  {{- $own = set $own "page" (dict "listen" "0.0.0.0:7432" "hosts" $hosts) -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
  {{- $own = set $own "metrics" (dict "listen" "0.0.0.0:9464") -}}
{{- end -}}
{{- $buckets := dict -}}
{{- range $bucket, $secret := .Values.s3.bucketSecrets -}}
  {{- $buckets = set $buckets $bucket (dict "credentials_file" (printf "/etc/iscp/s3/%s" $bucket)) -}}
{{- end -}}
{{- with $buckets -}}
  {{- $own = set $own "storage" (dict "s3" (dict "buckets" .)) -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toToml -}}
{{- end }}

{{/* How long a pod may take to end: the hook, the node's orderly stop, and more than the node lives beyond it. */}}
{{- define "iscp.graceSeconds" -}}
{{- add (ceil (.Values.config.stop_timeout_s | default 20)) .Values.rollout.preStopSeconds 10 -}}
{{- end }}

{{/* What no schema can say: each fault by the value's name, with the remedy. */}}
{{- define "iscp.check" -}}
{{- $values := .Values -}}
{{- $uri := $values.config.log.uri -}}
{{- if not $uri -}}
  {{- fail "config.log.uri is empty: give the directory or URI below which the job log lies, as s3://BUCKET/iscp" -}}
{{- end -}}
{{- if hasPrefix "/" $uri -}}
  {{- $held := false -}}
  {{- range $values.extraVolumeMounts -}}
    {{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" (trimSuffix "/" $uri)) -}}{{- $held = true -}}{{- end -}}
  {{- end -}}
  {{- if not $held -}}
    {{- fail (printf "config.log.uri is %s, which no volume holds: name one in extraVolumes and extraVolumeMounts that all nodes share" $uri) -}}
  {{- end -}}
{{- end -}}
{{- include "iscp.checkImages" . -}}
{{- include "iscp.checkTls" . -}}
{{- include "iscp.checkEtcd" . -}}
{{- include "iscp.checkS3" . -}}
{{- include "iscp.checkSpark" . -}}
{{- include "iscp.checkIngress" . -}}
{{- include "iscp.checkMetrics" . -}}
{{- include "iscp.checkApply" . -}}
{{- include "iscp.checkMemory" . -}}
{{- end }}

{{- define "iscp.checkImages" -}}
{{- if not .Values.image.repository -}}
  {{- fail "image.repository is empty: build the image by `scripts/image REGISTRY/iscp:TAG`, push it, and name REGISTRY/iscp here: it is in no registry otherwise" -}}
{{- end -}}
{{- with .Values.etcd -}}
  {{- if and .deploy (not .image.digest) (not .image.byTag) -}}
    {{- fail (printf "etcd.image.digest is empty: a tag may lead elsewhere tomorrow. Give the sha256:… that `skopeo inspect --format '{{.Digest}}' docker://%s:%s` prints, or set etcd.image.byTag=true" .image.repository .image.tag) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "iscp.checkTls" -}}
{{- if not (or .Values.tls.secret (dig "insecure" false (.Values.config.security | default dict))) -}}
  {{- fail "tls.secret is empty: name the secret of the nodes' certificate, or set config.security.insecure=true where everybody who reaches the nodes may do everything" -}}
{{- end -}}
{{- if and .Values.tls.certManager.issuer (not .Values.tls.secret) -}}
  {{- fail "tls.certManager.issuer is given, and tls.secret is empty: name the secret that cert-manager is to make" -}}
{{- end -}}
{{- end }}

{{/* Executors in pods of their own would need rights, an account and ports of the nodes, which nothing here makes. */}}
{{- define "iscp.checkSpark" -}}
{{- $master := dig "master" "" (.Values.config.spark | default dict) -}}
{{- if not (regexMatch "^(|local(\\[.*\\])?|spark://.+)$" $master) -}}
  {{- fail (printf "config.spark.master is %s: the chart makes no service account, rights and ports for it. Leave it out, or name a standalone master, spark://HOST:PORT" $master) -}}
{{- end -}}
{{- end }}

{{- define "iscp.checkIngress" -}}
{{- with .Values.ingress -}}
  {{- if .enabled -}}
    {{- if not .host -}}
      {{- fail "ingress.host is empty: name the host at which users call" -}}
    {{- end -}}
    {{- if and (eq .port "http") (not $.Values.gateway.enabled) -}}
      {{- fail "ingress.port is http, and gateway.enabled is false: set it, or ingress.port=grpc" -}}
    {{- end -}}
    {{- if and (eq .port "page") (not $.Values.page.enabled) -}}
      {{- fail "ingress.port is page, and page.enabled is false: set it, or ingress.port=grpc" -}}
    {{- end -}}
    {{- if and $.Values.networkPolicy.enabled (not $.Values.networkPolicy.clients) -}}
      {{- fail "ingress.enabled is true, and networkPolicy.clients is empty: name there the pods of the ingress controller, which reach no node otherwise" -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "iscp.checkMetrics" -}}
{{- with .Values.metrics -}}
  {{- if and .enabled $.Values.networkPolicy.enabled (not .clients) -}}
    {{- fail "metrics.enabled is true, and metrics.clients is empty: name there the pods of Prometheus, which reach no node otherwise" -}}
  {{- end -}}
  {{- if and .enabled .serviceMonitor.enabled $.Values.tls.secret (not .serviceMonitor.tlsSecret) -}}
    {{- fail "metrics.serviceMonitor.tlsSecret is empty, and tls.secret is given: name a secret with the certificate that Prometheus shows" -}}
  {{- end -}}
  {{- if and (or .serviceMonitor.enabled .rules.enabled .dashboard.enabled) (not .enabled) -}}
    {{- fail "metrics.enabled is false, and something that reads metrics is enabled: set it" -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "iscp.checkApply" -}}
{{- if include "iscp.applies" . -}}
  {{- if and .Values.tls.secret (not .Values.apply.tokenSecret) (not (dig "insecure" false (.Values.config.security | default dict))) -}}
    {{- fail "apply.tokenSecret is empty, and jobs or views are given: name a secret whose key `token` holds the token of an editor, which `iscp-admin token create` prints" -}}
  {{- end -}}
  {{- if and .Values.views.sql (not .Values.views.targetRoot) -}}
    {{- fail "views.targetRoot is empty, and views.sql is given: name the directory or URI below which the views are kept" -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "iscp.checkS3" -}}
{{- $storage := .Values.config.storage | default dict -}}
{{- $region := dig "s3" "region" "" $storage -}}
{{- with .Values.s3 -}}
  {{- if and .credentialsSecret .webIdentity.roleArn -}}
    {{- fail "s3.credentialsSecret and s3.webIdentity.roleArn are both given: give one" -}}
  {{- end -}}
  {{- if and (or .credentialsSecret .bucketSecrets .webIdentity.roleArn) (not $region) -}}
    {{- fail "s3 has credentials, and config.storage.s3.region is empty: give the buckets' region, us-east-1 where the store has none" -}}
  {{- end -}}
  {{- range $bucket, $settings := dig "s3" "buckets" (dict) $storage -}}
    {{- if not (or $settings.credentials_file (hasKey $.Values.s3.bucketSecrets $bucket)) -}}
      {{- fail (printf "config.storage.s3.buckets has %s, and s3.bucketSecrets does not: name there the secret with its key" $bucket) -}}
    {{- end -}}
  {{- end -}}
  {{- if and (hasPrefix "s3" $.Values.config.log.uri) (not $region) -}}
    {{- fail (printf "config.log.uri is %s, and config.storage.s3.region is empty: give the bucket's region, us-east-1 where the store has none" $.Values.config.log.uri) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* A heap that does not fit into the limit is a pod that is killed whenever it is under load. */}}
{{- define "iscp.checkMemory" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString -}}
{{- $heap := dig "driver_memory_mb" 2048 (.Values.config.spark | default dict) | int -}}
{{- if regexMatch "^[0-9]+[GM]i$" $limit -}}
  {{- $mebibytes := mul (regexFind "^[0-9]+" $limit | int) (hasSuffix "Gi" $limit | ternary 1024 1) | int -}}
  {{- if lt $mebibytes (add $heap 1024 | int) -}}
    {{- fail (printf "resources.limits.memory is %s, too little for a heap of %d MiB (config.spark.driver_memory_mb) and 1 GiB for all else" $limit $heap) -}}
  {{- end -}}
{{- end -}}
{{- end }}
