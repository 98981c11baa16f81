{{/* A container that calls the nodes as `iscp-admin` does, by the nodes' own certificate. */}}
{{- define "iscp.client" -}}
image: {{ include "iscp.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "iscp.containerSecurity" . | nindent 2 }}
command: [sh, -euc]
resources:
  requests: {cpu: 100m, memory: 128Mi}
  limits: {memory: 256Mi}
{{- end }}

{{- define "iscp.clientEnv" -}}
- {name: ISCP_ENDPOINT, value: "{{ include "iscp.name" . }}:{{ .Values.service.port }}"}
{{- if .Values.tls.secret }}
- {name: ISCP_CA_FILE, value: /etc/iscp/tls/ca.crt}
- {name: ISCP_CERT_FILE, value: /etc/iscp/tls/tls.crt}
- {name: ISCP_KEY_FILE, value: /etc/iscp/tls/tls.key}
- {name: ISCP_SERVER_NAME, value: {{ include "iscp.nodeName" . }}}
{{- end }}
{{- end }}

{{/* Whether jobs or views are to be applied. */}}
{{- define "iscp.applies" -}}
{{- if or .Values.jobs .Values.views.sql -}}true{{- end -}}
{{- end }}
