{{/* Who makes the certificates of the chart's own members: `given`, `cert-manager`, `chart`; empty: nobody. */}}
{{- define "iscp.etcdCertificates" -}}
{{- with .Values.etcd -}}
{{- if and .deploy (not .insecure) -}}
{{- if .tls.serverSecret -}}given{{- else if .tls.certManager.issuer -}}cert-manager{{- else -}}chart{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "iscp.etcdServerSecret" -}}
{{- if include "iscp.etcdCertificates" . -}}
{{ .Values.etcd.tls.serverSecret | default (printf "%s-server" (include "iscp.etcd" .)) }}
{{- end -}}
{{- end }}

{{/* Empty: nodes speak to etcd without TLS. */}}
{{- define "iscp.etcdClientSecret" -}}
{{- if or .Values.etcd.tls.clientSecret (include "iscp.etcdCertificates" .) -}}
{{ .Values.etcd.tls.clientSecret | default (printf "%s-client" (include "iscp.etcd" .)) }}
{{- end -}}
{{- end }}

{{/* The domain of the members, by which they and the nodes call them. */}}
{{- define "iscp.etcdDomain" -}}
{{ include "iscp.etcd" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "iscp.checkEtcd" -}}
{{- with .Values.etcd -}}
  {{- if and .deploy .endpoints -}}
    {{- fail "etcd.endpoints names an etcd, and etcd.deploy is true: set etcd.deploy=false, or leave out the endpoints" -}}
  {{- end -}}
  {{- if not (or .deploy .endpoints) -}}
    {{- fail "etcd.endpoints is empty, and etcd.deploy is false: name etcd's members, HOST:PORT each, or set etcd.deploy=true" -}}
  {{- end -}}
  {{- if and .insecure (or .tls.serverSecret .tls.clientSecret .tls.certManager.issuer) -}}
    {{- fail "etcd.insecure is true, and etcd.tls is given: leave out one of the two" -}}
  {{- end -}}
  {{- if .deploy -}}
    {{- include "iscp.checkOwnEtcd" $ -}}
  {{- else -}}
    {{- if or .tls.serverSecret .tls.certManager.issuer -}}
      {{- fail "etcd.tls.serverSecret and etcd.tls.certManager are for the chart's own members, and etcd.deploy is false: leave them out" -}}
    {{- end -}}
    {{- if not (or .tls.clientSecret .insecure) -}}
      {{- fail "etcd.tls.clientSecret is empty: name the secret by which nodes speak to etcd, or set etcd.insecure=true where everybody who reaches it may read the hashes of tokens and do everything" -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "iscp.checkOwnEtcd" -}}
{{- with .Values.etcd -}}
  {{- if .authSecret -}}
    {{- fail "etcd.authSecret is for an etcd that is there, and etcd.deploy is true: the chart's own members know nodes by their certificate" -}}
  {{- end -}}
  {{- if ne (empty .tls.serverSecret) (empty .tls.clientSecret) -}}
    {{- fail "of etcd.tls.serverSecret and etcd.tls.clientSecret one is empty: give both, or neither" -}}
  {{- end -}}
  {{- if and .tls.serverSecret .tls.certManager.issuer -}}
    {{- fail "etcd.tls.certManager.issuer and etcd.tls.serverSecret are both given: give one" -}}
  {{- end -}}
{{- end -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "iscp.etcd" .) | toJson -}}
{{- $other := .Values.etcd.insecure | ternary "https" "http" -}}
{{- if contains (printf "--listen-peer-urls=%s:" $other) $there -}}
  {{- fail (printf "etcd.insecure is %t, and the members that run were installed with %t, which cannot change while they run: keep that, or see the section on upgrades of docs/kubernetes.md" .Values.etcd.insecure (not .Values.etcd.insecure)) -}}
{{- end -}}
{{- end }}
