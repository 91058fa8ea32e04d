{{- /* The chart's name, also where another chart depends on this one by an alias, which .Chart.Name would be: commands find the agents by it. */ -}}
{{- define "agent.chart" -}}istio-pod-network-controller{{- end -}}

{{- define "agent.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) | trunc 63 | trimSuffix "-" -}}
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
{{- with merge (dict) (.Values.agent.podLabels | default dict) (.Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* YAML reads off without quotes as false. */ -}}
{{- define "agent.cni" -}}{{ .Values.hooks.cni.mode | default "off" }}{{- end -}}
{{- define "agent.nri" -}}{{ .Values.hooks.nri.mode | default "off" }}{{- end -}}

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
{{- $raw := ternary (list "NET_RAW") list (eq .Values.redirection.backend "iptables") -}}
{{- $trace := ternary (list "SYS_PTRACE") list .Values.runtime.processFallback -}}
{{- $sidecars := ternary (list "KILL" "CHOWN" "DAC_OVERRIDE" "SETUID" "SETGID") list .Values.proxies.enabled -}}
{{- concat (list "SYS_ADMIN" "NET_ADMIN") $raw $trace $sidecars | toJson -}}
{{- end -}}

{{- /* Whether the agent sees the node's processes: to open /proc/PID/ns, or to signal proxies. */ -}}
{{- define "agent.hostPID" -}}{{ or .Values.runtime.processFallback .Values.proxies.enabled }}{{- end -}}

{{- define "agent.seLinuxOptions" -}}
{{- /* container_t may neither connect to the runtime's socket nor open another pod's namespace. The level has no categories: the kernel gives a Unix socket
that a proxy accepts the level of who connects, and the proxy may not read one with another pod's. */ -}}
{{- $options := .Values.agent.seLinuxOptions | default (include "agent.node" . | fromJson).selinux -}}
{{- if $options }}{{ merge (dict) $options (dict "level" "s0") | toJson }}{{ else }}{}{{ end -}}
{{- end -}}

{{- /* The agent that removes a taint has to tolerate it. */ -}}
{{- define "agent.tolerations" -}}
{{- $startup := dict "key" .Values.hooks.startupTaint.key "operator" "Exists" -}}
{{- $given := .Values.agent.tolerations | default list -}}
{{- $missing := and .Values.hooks.startupTaint.enabled (not (has (dict "operator" "Exists") $given)) -}}
{{- ternary (list $startup) list $missing | concat $given | toYaml -}}
{{- end -}}

{{- /* A socket in a directory of the pod's own, since during an update two agents run on the node. It is the program's default. */ -}}
{{- define "agent.healthSocket" -}}/run/istio-pod-network-health/health.sock{{- end -}}

{{- /* How the kubelet asks the agent at a path of HTTP: it cannot reach a socket file itself. */ -}}
{{- define "agent.probe" -}}
exec:
  command: [/istio-pod-network-probe, --socket, {{ include "agent.healthSocket" . }}, {{ . }}]
{{- end -}}

{{- define "agent.updateStrategy" -}}
{{- $strategy := .Values.agent.updateStrategy | default dict -}}
{{- $rolling := $strategy.rollingUpdate | default dict -}}
{{- /* Without them the API server's defaults. */ -}}
{{- $surge := dig "maxSurge" 0 $rolling | toString -}}
{{- $away := dig "maxUnavailable" 1 $rolling | toString -}}
{{- $none := list "0" "0%" -}}
{{- $rolls := ne $strategy.type "OnDelete" -}}
{{- if and $rolls (eq (has $surge $none) (has $away $none)) -}}
{{- fail (printf "agent.updateStrategy.rollingUpdate.maxSurge=%s and maxUnavailable=%s: the API server wants one of them to be 0, and not both" $surge $away) -}}
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
  args: [cni, install, --binary-only, {{ printf "--cni-bin-dir=%s" $node.bin | quote }}]
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
  {{- with .Values.agent.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - name: {{ ternary "cni-bin" "cni-conf" $install }}
      mountPath: {{ ternary $node.bin $node.conf $install }}
{{- end -}}

{{- /* The Secrets that profiles may use, as JSON. The agent starts without those that are missing. */ -}}
{{- define "agent.sidecarSecrets" -}}
{{- ternary .Values.proxies.secrets list .Values.proxies.enabled | toJson -}}
{{- end -}}

{{- /* The audiences of the tokens that the agent may create, as JSON. */ -}}
{{- define "agent.tokenAudiences" -}}
{{- $istio := ternary (list "istio-ca") list .Values.proxies.istio.enabled -}}
{{- ternary (concat .Values.proxies.tokenAudiences $istio | uniq) list .Values.proxies.enabled | toJson -}}
{{- end -}}

{{- /* The ConfigMaps of pods' namespaces that the agent may read, as JSON. */ -}}
{{- define "agent.configMaps" -}}
{{- $istio := ternary (list "istio-ca-root-cert" "istio-ca-crl") list .Values.proxies.istio.enabled -}}
{{- ternary (concat .Values.proxies.configMaps $istio | uniq) list .Values.proxies.enabled | toJson -}}
{{- end -}}
