{{/* The variables of a node's container. */}}
{{- define "iscp.env" -}}
- name: ISCP_NODE_ID
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: ISCP_ADVERTISE
  value: $(ISCP_NODE_ID).{{ include "iscp.headless" . }}.{{ .Release.Namespace }}.svc:7430
{{- with .Values.etcd.authSecret }}
- name: ISCP_ETCD__USER
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: username}
- name: ISCP_ETCD__PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: password}
{{- end }}
{{- with .Values.s3.credentialsSecret }}
{{- $secret := . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ . }}{{ if eq . "AWS_SESSION_TOKEN" }}, optional: true{{ end }}}
{{- end }}
{{- end }}
{{- with .Values.s3.webIdentity.roleArn }}
- name: AWS_ROLE_ARN
  value: {{ . }}
- name: AWS_WEB_IDENTITY_TOKEN_FILE
  value: /var/run/secrets/iscp/token
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
