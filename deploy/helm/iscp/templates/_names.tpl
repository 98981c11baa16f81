{{- define "iscp.name" -}}
{{- $release := .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- contains "iscp" $release | ternary $release (printf "%s-iscp" $release) -}}
{{- end }}

{{- define "iscp.headless" -}}
{{ include "iscp.name" . }}-nodes
{{- end }}

{{- define "iscp.etcd" -}}
{{ include "iscp.name" . }}-etcd
{{- end }}

{{- define "iscp.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "iscp.name" .) "default") -}}
{{- end }}

{{/* What the certificates of nodes name, as the node's settings say. */}}
{{- define "iscp.nodeName" -}}
{{- $given := dig "tls" "node_name" "" (.Values.config.security | default dict) -}}
{{- $given | default (printf "node.%s.iscp" (.Values.config.cluster | default "default")) -}}
{{- end }}

{{/* The label of pods that may call the nodes. */}}
{{- define "iscp.clientLabel" -}}
{{ include "iscp.name" . }}-client
{{- end }}

{{- define "iscp.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "iscp.etcdImage" -}}
{{- with .Values.etcd.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end }}

{{/* (context, component): what never changes of a component's labels, for selectors. */}}
{{- define "iscp.selector" -}}
app.kubernetes.io/name: iscp
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* (context, component) */}}
{{- define "iscp.labels" -}}
{{ include "iscp.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The chart's etcd, else the one that is named; a list as JSON. */}}
{{- define "iscp.endpoints" -}}
{{- $endpoints := .Values.etcd.endpoints -}}
{{- if .Values.etcd.deploy -}}
  {{- $endpoints = list -}}
  {{- range $ordinal := until (int .Values.etcd.replicas) -}}
    {{- $endpoints = append $endpoints (printf "%s-%d.%s.%s.svc:2379" (include "iscp.etcd" $) $ordinal (include "iscp.etcd" $) $.Release.Namespace) -}}
  {{- end -}}
{{- end -}}
{{- $endpoints | toJson -}}
{{- end }}
