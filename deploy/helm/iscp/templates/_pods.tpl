{{/* What the restricted Pod Security standard wants of a pod. Without a user it is the image's, or the cluster's choice. */}}
{{- define "iscp.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* And of a container. */}}
{{- define "iscp.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* (context, component): no two on a host, and evenly over the zones. What `affinity` says of nodes stands instead. */}}
{{- define "iscp.spread" -}}
{{- $hard := eq (index . 0).Values.spread "hard" -}}
{{- $given := eq (index . 1) "node" | ternary (index . 0).Values.affinity dict -}}
affinity:
  {{- with $given }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if not (hasKey $given "podAntiAffinity") }}
  podAntiAffinity:
    {{- if $hard }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "iscp.selector" . | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "iscp.selector" . | nindent 14 }}
    {{- end }}
  {{- end }}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "iscp.selector" . | nindent 8 }}
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ $hard | ternary "DoNotSchedule" "ScheduleAnyway" }}
    labelSelector:
      matchLabels: {{- include "iscp.selector" . | nindent 8 }}
{{- end }}

{{/* What every pod of the chart has. */}}
{{- define "iscp.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- include "iscp.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
