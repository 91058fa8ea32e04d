{{- /* Labels of the test's objects. They must not have those by which the DaemonSet knows its pods. */ -}}
{{- define "agent.testLabels" -}}
app.kubernetes.io/name: {{ include "agent.chart" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" (include "agent.chart" .) .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The argument is the weight: lower ones are made first. */ -}}
{{- define "agent.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
