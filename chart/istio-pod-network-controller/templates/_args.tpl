{{- /*
The arguments of `run`. Each line of the list is a flag, the value of the chart that it comes from ("": the chart's own), and what it is set to: a flag
without it keeps the program's default, which the templates know. Lists are joined as flags and annotations write them.
*/ -}}
{{- define "agent.args" -}}
{{- $v := .Values -}}
{{- $node := include "agent.node" . | fromJson -}}
{{- $from := dict -}}
- run
{{- range list
  (list "node-name" "" "$(NODE_NAME)")
  (list "agent-namespace" "" "$(POD_NAMESPACE)")
  (list "pod-name" "" "$(POD_NAME)")
  (list "daemonset" "" (ternary (include "agent.name" .) "" (eq (include "agent.cni" .) "install")))
  (list "keep-dir" "" "/run/istio-pod-network-controller/kept")
  (list "health-addr" "")
  (list "nri-name" "")
  (list "cni-socket" "")
  (list "cni-plugin-source" "")
  (list "sidecar-root" "")
  (list "sidecar-secrets" "")
  (list "sidecar-profiles" "")
  (list "shared-root" "")
  (list "runtime" "runtime.name" $node.runtime)
  (list "runtime-endpoint" "runtime.endpoint" $node.endpoint)
  (list "pods-from" "pods.from" $v.pods.from)
  (list "read-as-node" "pods.readAsNode" $v.pods.readAsNode)
  (list "kubelet-socket" "pods.kubeletDir" (printf "%s/pods-api/pods-api.sock" $node.kubelet))
  (list "fail-open" "hooks.failOpen" $v.hooks.failOpen)
  (list "nri" "hooks.nri.mode" (include "agent.nri" .))
  (list "nri-socket" "hooks.nri.socket" $v.hooks.nri.socket)
  (list "cni" "hooks.cni.mode" (include "agent.cni" .))
  (list "cni-bin-dir" "hooks.cni.binDir" $node.bin)
  (list "cni-conf-dir" "hooks.cni.confDir" $node.conf)
  (list "cni-fail-open" "hooks.cni.failOpen" $v.hooks.cni.failOpen)
  (list "cni-exclude-namespaces" "hooks.cni.excludeNamespaces" $node.exclude)
  (list "startup-taint" "hooks.startupTaint.enabled" $v.hooks.startupTaint.enabled)
  (list "startup-taint-key" "hooks.startupTaint.key" $v.hooks.startupTaint.key)
  (list "backend" "redirection.backend" $v.redirection.backend)
  (list "select" "redirection.select" $v.redirection.select)
  (list "exclude-namespaces" "redirection.excludeNamespaces" $v.redirection.excludeNamespaces)
  (list "unsupported-runtime-handlers" "redirection.unsupportedRuntimeHandlers" $v.redirection.unsupportedRuntimeHandlers)
  (list "metrics-addr" "monitoring.address" $v.monitoring.address)
  (list "metrics-secure" "monitoring.secure" $v.monitoring.secure)
  (list "metrics-cert-dir" "monitoring.tlsSecret" (include "agent.metricsCertDir" .))
  (list "log-level" "agent.logLevel" $v.agent.logLevel)
  (concat (list "sidecars" "proxies.enabled") ($v.proxies.enabled | ternary (list true) list))
  (concat (list "sidecars-required" "proxies.required") (and $v.proxies.enabled $v.proxies.required | ternary (list true) list))
  (concat (list "sidecar-token-audiences" "proxies.tokenAudiences") (list (include "agent.tokenAudiences" . | fromJsonArray) | compact))
}}
{{- $flag := first . }}
{{- $_ := set $from $flag (index . 1) }}
{{- range slice . 2 }}
- {{ printf "--%s=%s" $flag (join "," .) | quote }}
{{- end }}
{{- end }}
{{- range $key := list "interceptionMode" "includeOutboundIPRanges" "excludeOutboundIPRanges" "includeInboundPorts" "inboundPorts" "excludeInboundPorts"
  "includeOutboundPorts" "excludeOutboundPorts" "envoyPort" "envoyInboundPort" "envoyTunnelPort" "foreignRules" "holdSeconds" "ipv6"
}}
{{- $flag := regexReplaceAll "([a-z])([A-Z])" (replace "IPRanges" "IpRanges" $key) "${1}-${2}" | lower }}
{{- $_ := set $from $flag (printf "redirection.defaults.%s" $key) }}
{{- if hasKey $v.redirection.defaults $key }}
- {{ get $v.redirection.defaults $key | join "," | printf "--%s=%s" $flag | quote }}
{{- end }}
{{- end }}
{{- if not $v.inspect.enabled }}
{{- $_ := set $from "inspect-addr" "inspect.enabled" }}
{{- else if not (regexMatch "(^|\n)--inspect-addr=" (join "\n" $v.agent.extraArgs)) }}
- "--inspect-addr=:15078"
{{- end }}
{{- $free := list "cluster-dns" "cni-status-needs-agent" "inspect-addr" "nri-index" "pprof-addr" "verify-interval" }}
{{- range $v.agent.extraArgs }}
{{- if not (regexMatch "^--[a-z0-9-]+=" .) }}{{ fail (printf "agent.extraArgs: %q: write it as --flag=value" .) }}{{ end }}
{{- $flag := regexFind "[a-z0-9][a-z0-9-]*" . }}
{{- if not (or (hasKey $from $flag) (has $flag $free)) }}{{ fail (printf "agent.extraArgs: --%s: it takes --%s and --%s" $flag (initial $free | join ", --") (last $free)) }}{{ end }}
{{- if hasKey $from $flag }}{{ fail (printf "agent.extraArgs: --%s: %s" $flag (get $from $flag | empty | ternary "the chart sets it itself" (printf "set %s" (get $from $flag)))) }}{{ end }}
{{- $_ := set $from $flag "it once" }}
- {{ quote . }}
{{- end }}
{{- end -}}
