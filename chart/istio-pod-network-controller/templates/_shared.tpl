{{- /*
The proxies that the pods of a node share, as JSON. Two DaemonSets for one profile would be two proxies that want the same ports of the same pods.
*/ -}}
{{- define "agent.sharedProxies" -}}
{{- if and .Values.proxies.shared (eq .Values.runtime.name "docker") -}}
{{- fail "proxies.shared with runtime.name=docker: the agent finds these proxies by CRI, which Docker does not have; use nodes with containerd or CRI-O, or leave proxies.shared empty" -}}
{{- end -}}
{{- $seen := list -}}
{{- $proxies := list -}}
{{- range $i, $proxy := .Values.proxies.shared -}}
{{- if not $.Values.proxies.enabled -}}
{{- fail (printf "proxies.shared has the profile %s, but proxies.enabled=false: no agent would tell the proxy which pods to serve; set proxies.enabled=true, or leave proxies.shared empty" .profile) -}}
{{- end -}}
{{- if has .profile $seen -}}
{{- fail (printf "proxies.shared has the profile %s twice: a node runs one proxy for a profile" .profile) -}}
{{- end -}}
{{- $seen = append $seen .profile -}}
{{- $image := include "agent.wholeImage" (list (printf "proxies.shared[%d].image" $i) .image) -}}
{{- $proxies = append $proxies (set (deepCopy .) "image" $image) -}}
{{- end -}}
{{- toJson $proxies -}}
{{- end -}}

{{- /* The account of these proxies, and what OpenShift allows them. */ -}}
{{- define "agent.sharedName" -}}{{ include "agent.name" . }}-shared{{- end -}}

{{- /* (list $ "PROFILE"). The name is another one than the agent's: whoever looks for agents by their labels must not find proxies. */ -}}
{{- define "agent.sharedSelector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "agent.chart" $root }}-shared
app.kubernetes.io/instance: {{ $root.Release.Name }}
pod-network-controller.istio.io/shared-proxy: {{ last . | quote }}
{{- end -}}

{{- /* Where the agent writes a profile's files. */ -}}
{{- define "agent.sharedRoot" -}}/run/istio-pod-network-controller/shared{{- end -}}

{{- /*
The pod's template: (list $ PROXY). It has no version of the chart and nothing that follows from the agent's, so that an upgrade of the chart that
changes nothing of the proxy does not end it.
*/ -}}
{{- define "agent.sharedPod" -}}
{{- $root := first . -}}
{{- $proxy := last . -}}
{{- $v := $root.Values -}}
metadata:
  labels:
    {{- include "agent.sharedSelector" (list $root $proxy.profile) | nindent 4 }}
    {{- with $v.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: proxy
    {{- if include "agent.openshift" $root }}
    openshift.io/required-scc: {{ include "agent.sharedName" $root }}
    {{- end }}
spec:
  serviceAccountName: {{ include "agent.sharedName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $proxy.priorityClassName | default $v.agent.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  terminationGracePeriodSeconds: {{ dig "terminationGracePeriodSeconds" 300 $proxy | int }}
  {{- with $proxy.imagePullSecrets | default $v.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with hasKey $proxy "nodeSelector" | ternary $proxy.nodeSelector $v.agent.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.agent.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with hasKey $proxy "tolerations" | ternary $proxy.tolerations (include "agent.tolerations" $root | fromYamlArray) }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: proxy
      {{- include "agent.sharedContainer" . | nindent 6 }}
  volumes:
    # The kubelet makes the directories if the proxy's pod is there before the agent.
    - name: files
      hostPath: {path: {{ include "agent.sharedRoot" . }}/{{ $proxy.profile }}/files, type: DirectoryOrCreate}
    - name: run
      hostPath: {path: {{ include "agent.sharedRoot" . }}/{{ $proxy.profile }}/run, type: DirectoryOrCreate}
    - name: netns
      hostPath: {path: /var/run/netns, type: DirectoryOrCreate}
{{- end -}}

{{- /*
SYS_ADMIN is what setns asks for: the proxy listens in the namespaces of its pods. Runtimes give capabilities to root alone. The group is what
the pods' rules know the proxy by.
*/ -}}
{{- define "agent.sharedContainer" -}}
{{- $proxy := last . -}}
image: {{ $proxy.image | quote }}
imagePullPolicy: {{ $proxy.imagePullPolicy | default "IfNotPresent" }}
command:
  {{- toYaml $proxy.command | nindent 2 }}
{{- with $proxy.args }}
args:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  # The proxy answers its version in /run/sidecar/$POD_UID: two pods of it run while one replaces the other.
  - {name: POD_UID, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.uid}}}
  {{- with $proxy.env }}
  {{- include "agent.asStored" . | nindent 2 }}
  {{- end }}
# Started, and so ready, once the agent has found that it serves all pods, or has none to serve: then the pod that it replaces is deleted.
startupProbe:
  {{- if $proxy.startupProbe }}
  {{- toYaml $proxy.startupProbe | nindent 2 }}
  {{- else }}
  exec: {command: [/bin/sh, -c, "[ ! -e /etc/sidecar/current ] || [ -e /run/sidecar/$POD_UID/serving ]"]}
  periodSeconds: 1
  failureThreshold: 2147483647
  {{- end }}
{{- with $proxy.readinessProbe }}
readinessProbe:
  {{- toYaml . | nindent 2 }}
{{- end }}
# The proxy finishes its connections until it ends, or terminationGracePeriodSeconds are over.
lifecycle:
  {{- if hasKey $proxy "lifecycle" }}
  {{- toYaml $proxy.lifecycle | nindent 2 }}
  {{- else }}
  preStop: {exec: {command: [/bin/sh, -c, "kill -USR1 1; while :; do sleep 1; done"]}}
  {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsUser: 0
  runAsGroup: {{ $proxy.runAsGroup | default 1337 | int64 }}
  runAsNonRoot: false
  capabilities: {drop: [ALL], add: [SYS_ADMIN]}
  seccompProfile: {type: RuntimeDefault}
  {{- with include "agent.seLinuxOptions" (first .) | fromJson }}
  seLinuxOptions: {{ toJson . }}
  {{- end }}
{{- with $proxy.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: files, mountPath: /etc/sidecar, readOnly: true}
  - {name: run, mountPath: /run/sidecar}
  # Namespaces that are made later have to appear, and those that are removed must not stay.
  - {name: netns, mountPath: /var/run/netns, readOnly: true, mountPropagation: HostToContainer}
{{- end -}}
