{{- /* What other projects' objects are named in: the job of the agent's targets, which the alerts and the dashboard ask for. */ -}}
{{- define "agent.metricsJob" -}}istio-pod-network-controller{{- end -}}

{{- define "agent.metricsPort" -}}{{- regexFind "[0-9]+$" (toString .Values.metricsAddr) -}}{{- end -}}

{{- /* Where the Secret of metrics.tlsSecret is mounted, or nothing. */ -}}
{{- define "agent.metricsCertDir" -}}
{{- if and .Values.metrics.secure .Values.metrics.tlsSecret -}}/etc/istio-pod-network-controller/metrics{{- end -}}
{{- end -}}

{{- /* Fails where a value of metrics could have no effect. */ -}}
{{- define "agent.checkMetrics" -}}
{{- $m := .Values.metrics -}}
{{- $host := toString .Values.metricsAddr | trimSuffix (printf ":%s" (include "agent.metricsPort" .)) | trimAll "[]" -}}
{{- if and $m.tlsSecret (not $m.secure) -}}
{{- fail (printf "metrics.tlsSecret=%s with metrics.secure=false: metrics are not served by TLS; set metrics.secure=true" $m.tlsSecret) -}}
{{- end -}}
{{- if and $m.serviceMonitor.enabled (not $m.service) -}}
{{- fail "metrics.serviceMonitor.enabled=true with metrics.service=false: a ServiceMonitor finds the agents by the Service; set metrics.service=true" -}}
{{- end -}}
{{- if and $m.serviceMonitor.enabled (or (eq (toString .Values.metricsAddr) "0") (has $host (list "127.0.0.1" "localhost" "::1"))) -}}
{{- fail (printf "metrics.serviceMonitor.enabled=true with metricsAddr=%s: Prometheus cannot reach that; set metricsAddr=:15079" (toString .Values.metricsAddr)) -}}
{{- end -}}
{{- end -}}

{{- /* Relabelings with the action that the operator's definition adds, in lists that are one field to server-side apply. */ -}}
{{- define "agent.relabelings" -}}
{{- $all := list -}}
{{- range . }}{{ $all = append $all (hasKey . "action" | ternary . (set (deepCopy .) "action" "replace")) }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{- /* Whether the agent asks the API server about the tokens of those who ask it something. */ -}}
{{- define "agent.reviews" -}}
{{- if or .Values.metrics.secure ((.Values.inspect).enabled) -}}true{{- end -}}
{{- end -}}
