{{- /* The chart's name, also where another chart depends on this one by an alias, which .Chart.Name would be: commands find the agents by it. */ -}}
{{- define "agent.chart" -}}istio-pod-network-controller{{- end -}}

{{- define "agent.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "agent.selector" -}}
app.kubernetes.io/name: {{ include "agent.chart" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.ownLabels" -}}
{{ include "agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" (include "agent.chart" .) .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "agent.labels" -}}
{{ include "agent.ownLabels" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* An object's, with more of its own, which win: (list $ LABELS). */ -}}
{{- define "agent.labelsWith" -}}
{{- include "agent.labels" (first .) | fromYaml | merge (dict) (last . | default dict) | toYaml -}}
{{- end -}}

{{- /* Those of the agent's pods: podLabels win over commonLabels. Versions are not among them: a new version of the chart alone restarts no agent. */ -}}
{{- define "agent.podLabels" -}}
{{ include "agent.selector" . }}
{{- with merge (dict) (.Values.podLabels | default dict) (.Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* YAML reads off without quotes as false. */ -}}
{{- define "agent.cni" -}}{{ .Values.cni | default "off" }}{{- end -}}
{{- define "agent.nri" -}}{{ .Values.nri | default "off" }}{{- end -}}

{{- /* The agent's account, to which roles and policies refer. */ -}}
{{- define "agent.account" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create=false: name your account by serviceAccount.name; without it every pod of the namespace would have the agent's rights, by the account default" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "agent.name" .) -}}
{{- end -}}

{{- define "agent.capabilities" -}}
{{- /*
SYS_ADMIN enters a pod's network namespace, NET_ADMIN writes rules there, iptables-legacy needs NET_RAW to talk to the kernel, SYS_PTRACE
is what /proc/PID/ns asks for. Proxies run as users of their own: KILL signals them, CHOWN gives them their files, DAC_OVERRIDE takes these away again,
and SETUID and SETGID have sockets that stand in for them be theirs.
*/ -}}
{{- $raw := ternary (list "NET_RAW") list (eq .Values.backend "iptables") -}}
{{- $trace := ternary (list "SYS_PTRACE") list .Values.processFallback -}}
{{- $sidecars := ternary (list "KILL" "CHOWN" "DAC_OVERRIDE" "SETUID" "SETGID") list .Values.sidecars.enabled -}}
{{- concat (list "SYS_ADMIN" "NET_ADMIN") $raw $trace $sidecars | toJson -}}
{{- end -}}

{{- /* Whether the agent sees the node's processes: to open /proc/PID/ns, or to signal proxies. */ -}}
{{- define "agent.hostPID" -}}{{ or .Values.processFallback .Values.sidecars.enabled }}{{- end -}}

{{- define "agent.seLinuxOptions" -}}
{{- /* container_t may neither connect to the runtime's socket nor open another pod's namespace. */ -}}
{{- .Values.seLinuxOptions | default (include "agent.node" . | fromJson).selinux | toJson -}}
{{- end -}}

{{- /* The agent that removes a taint has to tolerate it. */ -}}
{{- define "agent.tolerations" -}}
{{- $startup := dict "key" .Values.startupTaintKey "operator" "Exists" -}}
{{- $given := .Values.tolerations | default list -}}
{{- $missing := and .Values.startupTaint (not (has (dict "operator" "Exists") $given)) -}}
{{- ternary (list $startup) list $missing | concat $given | toYaml -}}
{{- end -}}

{{- define "agent.healthSocket" -}}
{{- if hasPrefix "unix://" .Values.healthAddr -}}{{- trimPrefix "unix://" .Values.healthAddr -}}{{- end -}}
{{- end -}}

{{- /* How the kubelet asks the agent at a path of HTTP: (list $ "/readyz"). It can reach an address itself, but not a socket file. */ -}}
{{- define "agent.probe" -}}
{{- $addr := (first .).Values.healthAddr -}}
{{- with include "agent.healthSocket" (first .) -}}
exec:
  command: [/istio-pod-network-probe, --socket, {{ . | quote }}, {{ last $ }}]
{{- else -}}
{{- /* A wildcard address is asked on loopback: the kubelet shares the agent's network. */ -}}
{{- $port := regexFind "[0-9]+$" $addr -}}
{{- $host := $addr | trimSuffix (printf ":%s" $port) | trimAll "[]" -}}
httpGet:
  path: {{ last $ }}
  host: {{ has $host (list "" "0.0.0.0" "::") | ternary "127.0.0.1" $host | quote }}
  port: {{ $port }}
{{- end }}
{{- end -}}

{{- define "agent.updateStrategy" -}}
{{- $strategy := .Values.updateStrategy | default dict -}}
{{- $rolling := $strategy.rollingUpdate | default dict -}}
{{- /* Without them the API server's defaults. */ -}}
{{- $surge := dig "maxSurge" 0 $rolling | toString -}}
{{- $away := dig "maxUnavailable" 1 $rolling | toString -}}
{{- $none := list "0" "0%" -}}
{{- $rolls := ne $strategy.type "OnDelete" -}}
{{- if and $rolls (eq (has $surge $none) (has $away $none)) -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge=%s and maxUnavailable=%s: the API server wants one of them to be 0, and not both" $surge $away) -}}
{{- end -}}
{{- if and $rolls (not (has $surge $none)) (not (include "agent.healthSocket" .)) -}}
{{- fail (printf "healthAddr=%s and updateStrategy.rollingUpdate.maxSurge=%s: two agents of a node cannot both listen there; set maxSurge=0 and maxUnavailable=1, or healthAddr to unix:///PATH" .Values.healthAddr $surge) -}}
{{- end -}}
{{- toYaml $strategy -}}
{{- end -}}

{{- /*
What the init container does to the node's CNI chain before the agent starts: install the plugin's binary, or remove the entry. One directory, one
call, no capability.
*/ -}}
{{- define "agent.cniPlugin" -}}
{{- $install := eq (include "agent.cni" .) "install" -}}
{{- $node := include "agent.node" . | fromJson -}}
- name: cni-plugin
  image: {{ include "agent.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if $install }}
  args: [cni, install, --binary-only, {{ printf "--cni-bin-dir=%s" $node.bin | quote }}, {{ printf "--cni-plugin-source=%s" .Values.cniPluginSource | quote }}]
  {{- else }}
  args: [cni, uninstall, {{ printf "--cni-conf-dir=%s" $node.conf | quote }}]
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  securityContext:
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    # The directory belongs to root.
    runAsUser: 0
    runAsNonRoot: false
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
    {{- with include "agent.seLinuxOptions" . | fromJson }}
    seLinuxOptions: {{ toJson . }}
    {{- end }}
  {{- /* The agent's, which is not there yet: nothing more is reserved, and the pod keeps its quality of service class. */}}
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - name: {{ ternary "cni-bin" "cni-conf" $install }}
      mountPath: {{ ternary $node.bin $node.conf $install }}
{{- end -}}

{{- /* The Secrets that profiles may use, as JSON. The agent starts without those that are missing. */ -}}
{{- define "agent.sidecarSecrets" -}}
{{- ternary .Values.sidecars.secrets list .Values.sidecars.enabled | toJson -}}
{{- end -}}

{{- /* The audiences of the tokens that the agent may create, as JSON. */ -}}
{{- define "agent.tokenAudiences" -}}
{{- $istio := ternary (list "istio-ca") list .Values.sidecars.istio.enabled -}}
{{- ternary (concat .Values.sidecars.tokenAudiences $istio | uniq) list .Values.sidecars.enabled | toJson -}}
{{- end -}}

{{- /* The ConfigMaps of pods' namespaces that the agent may read, as JSON. */ -}}
{{- define "agent.configMaps" -}}
{{- $istio := ternary (list "istio-ca-root-cert" "istio-ca-crl") list .Values.sidecars.istio.enabled -}}
{{- ternary (concat .Values.sidecars.configMaps $istio | uniq) list .Values.sidecars.enabled | toJson -}}
{{- end -}}

{{- /*
The agent runs proxies by the runtime's CRI. Without the policy its right to create tokens would be a right to every account of the cluster.
*/ -}}
{{- define "agent.checkSidecars" -}}
{{- $narrowed := include "agent.policy" (dict "root" . "asked" .Values.admission.restrictAgent "kind" "ValidatingAdmissionPolicy") -}}
{{- include "agent.checkIstio" (dict "root" . "narrowed" $narrowed) -}}
{{- if and (include "agent.tokenAudiences" . | fromJsonArray) (not $narrowed) -}}
{{- fail (printf "sidecars.tokenAudiences with admission.restrictAgent=%v on a cluster without ValidatingAdmissionPolicies, or where they were not asked for: without the policy the agent could create tokens of every account; set admission.restrictAgent=true on Kubernetes 1.30 or newer, or leave sidecars.tokenAudiences empty" .Values.admission.restrictAgent) -}}
{{- end -}}
{{- if and .Values.sidecars.enabled (eq .Values.containerRuntime "docker") -}}
{{- fail "sidecars.enabled=true with containerRuntime=docker: Docker has no CRI, by which the agent runs proxies; use nodes with containerd or CRI-O, or leave sidecars.enabled=false" -}}
{{- end -}}
{{- if and .Values.sidecars.enabled (include "agent.openshift" .) (not .Values.sidecars.untestedPlatform) -}}
{{- fail "sidecars.enabled=true with platform=openshift: nobody has run managed proxies where SELinux is enforcing; try them on a node that may fail, and set sidecars.untestedPlatform=true for that" -}}
{{- end -}}
{{- include "agent.checkRequiredProxies" . -}}
{{- include "agent.checkDefinitions" . -}}
{{- $_ := include "agent.sharedProxies" . -}}
{{- end -}}

{{- /* What Istio's proxies need. narrowed says whether a policy bounds the tokens that the agent may create. */ -}}
{{- define "agent.checkIstio" -}}
{{- $v := .root.Values -}}
{{- if $v.sidecars.istio.enabled -}}
{{- $missing := list -}}
{{- if not $v.sidecars.enabled }}{{ $missing = append $missing "an agent that runs proxies (sidecars.enabled=true)" }}{{ end -}}
{{- if not $v.sidecars.istio.image }}{{ $missing = append $missing "the image of Istio's proxy, of the control plane's version (sidecars.istio.image)" }}{{ end -}}
{{- if eq $v.containerRuntime "docker" }}{{ $missing = append $missing "nodes with containerd or CRI-O (containerRuntime)" }}{{ end -}}
{{- if not .narrowed }}{{ $missing = append $missing (ternary "the policy that bounds the agent's tokens (admission.restrictAgent)" "a cluster with policies that bound the agent's tokens (Kubernetes 1.30), or admission.restrictAgent=true" (eq (toString $v.admission.restrictAgent) "false")) }}{{ end -}}
{{- with $missing }}{{ fail (printf "sidecars.istio.enabled=true needs: %s" (join "; " .)) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* Helm makes definitions at a first installation, and no later: a release of a chart that had none lacks them. */ -}}
{{- define "agent.checkDefinitions" -}}
{{- if and .Values.sidecars.enabled .Release.IsUpgrade (not (.Capabilities.APIVersions.Has "pod-network-controller.istio.io/v1alpha1/ProxyProfile")) -}}
{{- fail "sidecars.enabled=true on a cluster that does not know ProxyProfiles, and an upgrade makes no definitions: run `helm show crds CHART | kubectl apply --server-side -f -` first (`helm template --is-upgrade` wants --api-versions pod-network-controller.istio.io/v1alpha1/ProxyProfile)" -}}
{{- end -}}
{{- end -}}

{{- /* What would let pods start without their proxy all the same. */ -}}
{{- define "agent.checkRequiredProxies" -}}
{{- if and .Values.sidecars.enabled .Values.sidecars.required -}}
{{- if .Values.failOpen -}}
{{- fail "sidecars.required=true with failOpen=true: failOpen lets start what sidecars.required refuses; set one of them to false" -}}
{{- else if and (eq (include "agent.nri" .) "off") (ne (include "agent.cni" .) "install") -}}
{{- fail (printf "sidecars.required=true with nri=off and cni=%s: no agent is asked before a pod starts; set nri=required or cni=install, or sidecars.required=false" (include "agent.cni" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Every flag of `run`, once; those of sidecars only if they are on. Lists are joined as the flags and the pods' annotations write them. */ -}}
{{- define "agent.args" -}}
{{- $v := .Values -}}
{{- $node := include "agent.node" . | fromJson -}}
{{- include "agent.checkCNI" . -}}
{{- include "agent.checkRequiredPlugins" . -}}
{{- include "agent.checkSidecars" . -}}
- run
- --node-name=$(NODE_NAME)
- --agent-namespace=$(POD_NAMESPACE)
- --pod-name=$(POD_NAME)
{{- range list
  (list "daemonset" (ternary (include "agent.name" .) "" (eq (include "agent.cni" .) "install")))
  (list "runtime" $node.runtime)
  (list "runtime-endpoint" $node.endpoint)
  (list "pods-from" $v.podsFrom)
  (list "read-as-node" $v.readAsNode)
  (list "kubelet-socket" (printf "%s/pods-api/pods-api.sock" $node.kubelet))
  (list "keep-dir" "/run/istio-pod-network-controller/kept")
  (list "backend" $v.backend)
  (list "select" $v.select)
  (list "exclude-namespaces" (join "," $v.excludeNamespaces))
  (list "unsupported-runtime-handlers" (join "," $v.unsupportedRuntimeHandlers))
  (list "nri" (include "agent.nri" $))
  (list "nri-socket" $v.nriSocket)
  (list "nri-name" $v.nriName)
  (list "nri-index" $v.nriIndex)
  (list "fail-open" $v.failOpen)
  (list "startup-taint" $v.startupTaint)
  (list "startup-taint-key" $v.startupTaintKey)
  (list "cni" (include "agent.cni" $))
  (list "cni-bin-dir" $node.bin)
  (list "cni-conf-dir" $node.conf)
  (list "cni-socket" $v.cniSocket)
  (list "cni-plugin-source" $v.cniPluginSource)
  (list "cni-fail-open" $v.cniFailOpen)
  (list "cni-status-needs-agent" $v.cniStatusNeedsAgent)
  (list "cni-exclude-namespaces" (join "," $node.exclude))
  (list "include-outbound-ip-ranges" (join "," $v.includeOutboundIPRanges))
  (list "exclude-outbound-ip-ranges" (join "," $v.excludeOutboundIPRanges))
  (list "include-inbound-ports" (join "," $v.includeInboundPorts))
  (list "inbound-ports" $v.inboundPorts)
  (list "exclude-inbound-ports" (join "," $v.excludeInboundPorts))
  (list "include-outbound-ports" (join "," $v.includeOutboundPorts))
  (list "exclude-outbound-ports" (join "," $v.excludeOutboundPorts))
  (list "envoy-port" (int $v.envoyPort))
  (list "envoy-inbound-port" (int $v.envoyInboundPort))
  (list "envoy-tunnel-port" (int $v.envoyTunnelPort))
  (list "interception-mode" $v.interceptionMode)
  (list "ipv6" $v.ipv6)
  (list "cluster-dns" (join "," $v.clusterDNS))
  (list "health-addr" $v.healthAddr)
  (list "metrics-addr" $v.metricsAddr)
  (list "metrics-secure" $v.metrics.secure)
  (list "metrics-cert-dir" (include "agent.metricsCertDir" $))
  (list "inspect-addr" (ternary $v.inspectAddr "0" $v.inspect.enabled))
  (list "pprof-addr" $v.pprofAddr)
  (list "log-level" $v.logLevel)
  (list "verify-interval" $v.verifyInterval)
  (list "foreign-rules" $v.foreignRules)
  (list "hold-seconds" $v.holdSeconds)
}}
- {{ printf "--%s=%v" (first .) (last .) | quote }}
{{- end }}
{{- if $v.sidecars.enabled }}
- "--sidecars=true"
{{- if $v.sidecars.required }}
- "--sidecars-required=true"
{{- end }}
{{- with include "agent.tokenAudiences" . | fromJsonArray }}
- {{ printf "--sidecar-token-audiences=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- end -}}
