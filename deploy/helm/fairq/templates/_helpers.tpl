{{- define "fairq.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}
{{- define "fairq.selector" -}}
app.kubernetes.io/name: fairq
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}
{{- define "fairq.labels" -}}
{{ include "fairq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- define "fairq.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- define "fairq.scheme" -}}{{ if .Values.tlsSecret }}HTTPS{{ else }}HTTP{{ end }}{{- end }}
{{- define "fairq.container-security" -}}
runAsNonRoot: true
runAsUser: 10001
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- /* (list VALUES NAME DEFAULT): what is given, also 0; `default` takes 0 for unset. */}}
{{- define "fairq.given" -}}{{ if hasKey (index . 0) (index . 1) }}{{ index (index . 0) (index . 1) }}{{ else }}{{ index . 2 }}{{ end }}{{- end }}
