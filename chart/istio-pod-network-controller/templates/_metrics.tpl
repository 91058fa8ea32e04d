{{- /* What other projects' objects are named in: the job of the agent's targets, which the alerts and the dashboard ask for. */ -}}
{{- define "agent.metricsJob" -}}istio-pod-network-controller{{- end -}}

{{- define "agent.metricsPort" -}}{{- regexFind "[0-9]+$" (toString .Values.monitoring.address) -}}{{- end -}}

{{- /* Where the Secret of monitoring.tlsSecret is mounted, or nothing. */ -}}
{{- define "agent.metricsCertDir" -}}
{{- if and .Values.monitoring.secure .Values.monitoring.tlsSecret -}}/etc/istio-pod-network-controller/metrics{{- end -}}
{{- end -}}

{{- /* Fails where a value of monitoring could have no effect. */ -}}
{{- define "agent.checkMetrics" -}}
{{- $m := .Values.monitoring -}}
{{- $host := toString .Values.monitoring.address | trimSuffix (printf ":%s" (include "agent.metricsPort" .)) | trimAll "[]" -}}
{{- if and $m.tlsSecret (not $m.secure) -}}
{{- fail (printf "monitoring.tlsSecret=%s with monitoring.secure=false: metrics are not served by TLS; set monitoring.secure=true" $m.tlsSecret) -}}
{{- end -}}
{{- if and $m.serviceMonitor.enabled (or (eq (toString .Values.monitoring.address) "0") (has $host (list "127.0.0.1" "localhost" "::1"))) -}}
{{- fail (printf "monitoring.serviceMonitor.enabled=true with monitoring.address=%s: Prometheus cannot reach that; set monitoring.address=:15079" (toString .Values.monitoring.address)) -}}
{{- end -}}
{{- end -}}

{{- /* Relabelings with the action that the operator's definition adds, in lists that are one field to server-side apply. */ -}}
{{- define "agent.relabelings" -}}
{{- $all := list -}}
{{- range . }}{{ $all = append $all (hasKey . "action" | ternary . (set (deepCopy .) "action" "replace")) }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{- /*
The endpoint of the ServiceMonitor: the chart's, with monitoring.serviceMonitor.endpoint over it. With monitoring.secure Prometheus shows its own token, unless
the values name another; its account needs the ClusterRole that ends in -metrics-reader. An update has two agents at one address: without the labels that are
dropped they are one target, which is scraped once.
*/ -}}
{{- define "agent.endpoint" -}}
{{- $more := .Values.monitoring.serviceMonitor.endpoint -}}
{{- $own := dict "port" "metrics" "interval" "30s" -}}
{{- if .Values.monitoring.secure -}}
{{- $_ := set $own "scheme" "https" -}}
{{- if not $more.tlsConfig }}{{ $_ := set $own "tlsConfig" (dict "insecureSkipVerify" true) }}{{ end -}}
{{- if not (pick $more "authorization" "basicAuth" "bearerTokenSecret" "oauth2") }}{{ $_ := set $own "bearerTokenFile" "/var/run/secrets/kubernetes.io/serviceaccount/token" }}{{ end -}}
{{- end -}}
{{- $node := dict "sourceLabels" (list "__meta_kubernetes_pod_node_name") "targetLabel" "node" -}}
{{- $job := dict "targetLabel" "job" "replacement" (include "agent.metricsJob" .) -}}
{{- $target := dict "action" "labeldrop" "regex" "pod|container|endpoint" -}}
{{- $lists := dict "relabelings" (concat (list $node $job $target) ($more.relabelings | default list)) -}}
{{- with $more.metricRelabelings }}{{ $_ := set $lists "metricRelabelings" . }}{{ end -}}
{{- range $key, $list := $lists }}{{ $_ := set $lists $key (include "agent.relabelings" $list | fromYamlArray) }}{{ end -}}
{{- mergeOverwrite $own (deepCopy $more) $lists | toYaml -}}
{{- end -}}

{{- /* Whether the agent asks the API server about the tokens of those who ask it something. */ -}}
{{- define "agent.reviews" -}}
{{- if or .Values.monitoring.secure .Values.inspect.enabled -}}true{{- end -}}
{{- end -}}
